"""Published runs: predicted step time within the tolerance printed beside each run in benchmarks/data/published_anchors.jsonl."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "replay_anchors.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay_anchors", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay_anchors"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


REPLAY = _load()
ANCHORS = {anchor.name: anchor for anchor in REPLAY.load_anchors()}


@cache
def ratio(name: str) -> float:
    """Predicted over published step time."""
    anchor = ANCHORS[name]
    return float(REPLAY.predicted_seconds(anchor) / anchor.published_seconds)


@pytest.mark.parametrize("name", ANCHORS)
def test_predicted_step_time(name):
    assert abs(ratio(name) - 1) <= ANCHORS[name].tolerance


@pytest.mark.parametrize(
    ("prefix", "count", "mean_error"),
    [("sc21", 10, 0.06), ("korthikanti", 8, 0.04), ("dgxc", 4, 0.05), ("mosaic", 24, 0.05)],
)
def test_mean_absolute_error_of_a_source(prefix, count, mean_error):
    errors = [abs(ratio(name) - 1) for name in ANCHORS if name.startswith(prefix)]
    assert len(errors) == count
    assert np.mean(errors) < mean_error


def test_300e9_tokens_of_gpt3_take_about_34_days_on_1024_a100():
    """arXiv 2104.04473, section 5.1: 34 days at 140 TFLOP/s per GPU."""
    anchor = ANCHORS["megatron-readme-175B-1024"]
    steps = 300e9 / (anchor.plan.training.global_batch_size * anchor.plan.training.sequence_length)
    days = steps * REPLAY.predicted_seconds(anchor) / 86400
    assert days == pytest.approx(34, rel=0.15)


def test_selective_recomputation_gains_what_was_published():
    """arXiv 2205.05198, table 5: throughput up by 29.0, 31.8, 29.7 and 32.1%."""
    for size, gain in (("22B", 0.290), ("175B", 0.318), ("530B", 0.297), ("1T", 0.321)):
        full, selective = (f"korthikanti-{size}-{kind}" for kind in ("full", "selective"))
        published = ANCHORS[full].published_seconds / ANCHORS[selective].published_seconds
        assert published - 1 == pytest.approx(gain, abs=0.002)
        predicted = published * ratio(full) / ratio(selective)
        assert predicted - 1 == pytest.approx(gain, abs=0.05)


def test_the_order_of_published_throughput_over_model_sizes_is_reproduced():
    """Larger GPTs of table 1 reach more of the peak; Spearman's rank correlation of achieved FLOP/s over the ten sizes."""
    names = [name for name in ANCHORS if name.startswith("sc21")]
    published, predicted = [], []
    for name in names:
        anchor = ANCHORS[name]
        result = REPLAY.estimate(anchor.plan, anchor.runtime, ignore_memory=True)
        devices = anchor.plan.num_devices_used
        published.append(result.flops.hardware / (anchor.published_seconds * devices))
        predicted.append(result.flops.hardware / (result.step_time_seconds.value * devices))
    ranks = [np.argsort(np.argsort(values)) for values in (published, predicted)]
    assert np.corrcoef(*ranks)[0, 1] > 0.8

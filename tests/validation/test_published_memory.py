"""Measured peaks of published runs beside predicted ones, and which runs went out of memory.

The tolerances are what the model reaches today, rounded up: a change that makes a framework's memory worse fails here.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from statistics import fmean

import pytest

from meshwright.validation.replay import replay
from meshwright.validation.results import ReplayRow

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "published_runs"


@lru_cache(maxsize=8)
def judged(dataset: str) -> tuple[ReplayRow, ...]:
    return tuple(row for row in replay(RUNS / f"{dataset}.jsonl").rows if row.judged)


def memory_errors(dataset: str) -> list[float]:
    """Predicted over measured, less 1: allocated where that was measured, else reserved, else all that the device holds."""
    errors = []
    for row in judged(dataset):
        assert row.predicted is not None
        pairs = (
            (row.predicted.peak_memory_bytes, row.measured.peak_memory_bytes),
            (row.predicted.reserved_memory_bytes, row.measured.reserved_memory_bytes),
            (row.device_peak_bytes, row.measured.device_memory_bytes),
        )
        errors += [mine / theirs - 1 for mine, theirs in pairs if mine is not None and theirs is not None][:1]
    return errors


def test_every_peak_of_simumax_is_within_3_percent() -> None:
    """MooreThreads/SimuMax @4dcaae5, docs/b200: allocated bytes of llama3 70B shapes under Megatron-LM."""
    errors = memory_errors("simumax_b200")
    assert len(errors) >= 12
    assert max(map(abs, errors)) <= 0.03


def test_every_peak_of_nanotron_is_within_6_percent() -> None:
    """Allocated bytes of a llama of 1.1 B under nine layouts of 8 devices, 8 to 43 GiB."""
    errors = memory_errors("nanotron_bench")
    assert len(errors) == 9
    assert max(map(abs, errors)) <= 0.06
    assert fmean(map(abs, errors)) <= 0.03


@pytest.mark.parametrize(("dataset", "rows", "mean"), [("bloom_prequel", 26, 0.07), ("torchtitan", 12, 0.015)])
def test_mean_error_of_what_devices_held(dataset: str, rows: int, mean: float) -> None:
    """Device bytes of BLOOM's trials under Megatron-DeepSpeed; reserved bytes of torchtitan's runs."""
    errors = memory_errors(dataset)
    assert len(errors) >= rows
    assert fmean(map(abs, errors)) <= mean


ONE_MISSED = pytest.mark.xfail(
    strict=True, reason="13 of 14: tp 1, pp 4, micro batch 8 is predicted to fit with 97% of the device"
)


@pytest.mark.parametrize(
    ("dataset", "recall"), [("aleph", 0.95), pytest.param("nanotron_bench", 0.95, marks=ONE_MISSED)]
)
def test_runs_out_of_memory_and_runs_that_ran(dataset: str, recall: float) -> None:
    """arXiv 2311.05610: 191 layouts went out of memory and 126 ran; nanotron: 14 and 9."""
    fits = {
        oom: [row.predicted.fits for row in judged(dataset) if row.predicted and row.measured.oom is oom]
        for oom in (True, False)
    }
    assert fits[True].count(False) >= recall * len(fits[True])
    assert fits[False].count(True) >= recall * len(fits[False])

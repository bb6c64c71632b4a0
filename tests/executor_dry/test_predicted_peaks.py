"""Peaks of dry runs beside those of real runs, to the byte, and beside what is predicted."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dry_worlds import LLAMA, MODELS, PIPELINE, TENSOR, dry, make_plan, zero

import meshwright
from costmodel.memory import plan_memory
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Plan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED: list[dict[str, Any]] = [
    json.loads(line) for line in (BENCHMARKS / "data" / "torch_peak_memory.jsonl").read_text().splitlines()
]
SCALARS = 24
"""Bytes: the step's sums, which `TrainingRun.step` reads while the peak is counted."""
SEVERAL = {**PIPELINE, "num_model_chunks": 2}


def _script() -> ModuleType:
    """The script that measured, which knows the plans."""
    spec = importlib.util.spec_from_file_location("measure_torch_memory", BENCHMARKS / "measure_torch_memory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _of_schedules() -> list[dict[str, Any]]:
    """The first measured case of every schedule, and of several chunks under ZeRO 3."""
    first: dict[object, dict[str, Any]] = {}
    for case in MEASURED:
        sizes = case.get("parallel", {})
        if "pipeline_schedule" in sizes:
            first.setdefault((sizes["pipeline_schedule"], sizes.get("zero_stage") == 3), case)
    return list(first.values())


def largest(plan: Plan, rank: int) -> int:
    return max(peak.total for peak in dry(plan, rank).peaks.values())


@pytest.mark.parametrize("case", _of_schedules(), ids=lambda case: case["parallel"]["pipeline_schedule"])
def test_a_dry_run_peaks_where_the_real_run_does(case: dict[str, Any]) -> None:
    """Messages hold what they send as long as schedules hold them, as gloo's and NCCL's do."""
    plan = _script().case_plan({name: value for name, value in case.items() if name != "peak_tensor_bytes"})
    for rank, measured in enumerate(case["peak_tensor_bytes"]):
        assert 0 <= measured - largest(plan, rank) <= SCALARS


def test_every_schedule_was_measured() -> None:
    assert len({case["parallel"]["pipeline_schedule"] for case in _of_schedules()}) == 8


def chunks(schedule: str, stage: int, **sizes: Any) -> Plan:
    count = {"num_micro_batches": 4, **sizes}
    return make_plan("llama-16", sequence=64, **{**SEVERAL, **zero(stage), "pipeline_schedule": schedule, **count})


def demo(**sizes: Any) -> Plan:
    recompute = sizes.pop("recompute", "none")
    layers = sizes.pop("layers_per_stage", None)
    parallel = {"micro_batch_size": 2, **sizes}
    return meshwright.make_plan(
        "llama-tiny-demo",
        "4xcpu",
        global_batch_size=16,
        sequence_length=64,
        sizes=parallel,
        layers_per_stage=layers,
        recompute=recompute,
    )


PLANS = {
    "breadth first, ZeRO 3": lambda: chunks("looped_bfs", 3),
    "interleaved, ZeRO 3": lambda: chunks("interleaved_1f1b", 3),
    "four chunks, breadth first, ZeRO 3": lambda: chunks("looped_bfs", 3, num_model_chunks=4),
    "four chunks, interleaved, ZeRO 2": lambda: chunks("interleaved_1f1b", 2, num_model_chunks=4, num_micro_batches=8),
    "four chunks, interleaved, ZeRO 3": lambda: chunks("interleaved_1f1b", 3, num_model_chunks=4, num_micro_batches=8),
    "stages that recompute some of their layers": lambda: demo(
        pipeline_parallel_size=4,
        pipeline_schedule="1f1b",
        layers_per_stage=(1, 2, 2, 3),
        recompute=["full:1", "none", "core_attention", "full:2"],
    ),
    "zero bubble in a loop": lambda: demo(
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        pipeline_schedule="interleaved_zero_bubble",
        num_model_chunks=2,
    ),
    "norms behind the blocks": lambda: make_plan("gemma2-uncapped", recompute="full", **{**TENSOR, **zero(3)}),
    "scores behind such norms": lambda: make_plan("gemma2-uncapped", attention="unfused", **PIPELINE),
    "a fused gate": lambda: make_plan("phi3", sequence=128, recompute="full", **zero(3)),
    "an activation in elementary operations": lambda: make_plan("gpt2", recompute="full", micro_batch_size=4),
}


LONG = ("four chunks, breadth first, ZeRO 3", "four chunks, interleaved, ZeRO 2", "interleaved, ZeRO 3")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in PLANS])
def test_predicted_peaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 2% on every rank, in models so small that single tensors count."""
    monkeypatch.setitem(MODELS, "llama-16", {**LLAMA, "num_hidden_layers": 16})
    plan = PLANS[name]()
    told = [stage.peak_bytes for stage in plan_memory(plan, load_runtime("torch"))]
    assert told == [pytest.approx(largest(plan, rank), rel=0.02) for rank in range(len(told))]

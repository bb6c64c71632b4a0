"""Predicted peaks of runtime torch beside peaks of live tensors counted in real runs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from costmodel.memory import plan_memory
from costmodel.runtimes.loader import load_runtime

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DATA = BENCHMARKS / "data" / "torch_peak_memory.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that measured the cases and knows their plans."""
    spec = importlib.util.spec_from_file_location("measure_torch_memory", BENCHMARKS / "measure_torch_memory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_peaks(case: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in case.items() if key != "peak_tensor_bytes"}


def test_every_case_of_the_script_is_measured(script: ModuleType) -> None:
    assert [without_peaks(case) for case in CASES] == script.CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(without_peaks(case)))
def test_peak_of_every_pipeline_rank(script: ModuleType, case: dict[str, Any]) -> None:
    """Within 7% on every rank: in models this small, states, copies and buffers weigh as much as activations."""
    predicted = [stage.peak_bytes for stage in plan_memory(script.case_plan(case), load_runtime("torch"))]
    assert predicted == [pytest.approx(peak, rel=0.07) for peak in case["peak_tensor_bytes"]]


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v"])
def test_several_chunks_keep_what_they_sent_to_the_end_of_the_step(script: ModuleType, schedule: str) -> None:
    """One more round of 2 micro-batches on rank 0 of 2: buffers, an output sent and an input's gradient per message and chunk."""
    buffers = []
    for count in (8, 10):
        sizes = {"pipeline_parallel_size": 2, "pipeline_schedule": schedule, "num_model_chunks": 2}
        plan = script.case_plan({"model": "llama", "parallel": {**sizes, "num_micro_batches": count}})
        terms = plan_memory(plan, load_runtime("torch"))[0].terms
        buffers += [term.bytes for term in terms if (term.name, term.phase) == ("pipeline_buffers", "forward_backward")]
    boundary, v_shaped = 32 * 64 * 2, schedule in ("zbv_zero_bubble", "dualpipe_v")
    received, sent = (1, 1) if v_shaped else (1, 2)  # chunk 0 has the embedding, and in a V chunk 1 the head
    assert buffers[1] - buffers[0] == 2 * boundary * (2 * received + 2 * sent)

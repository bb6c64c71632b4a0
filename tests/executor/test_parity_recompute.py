"""Stages that recompute different layers train exactly like one process, in float64, and run again only what is stated."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool, assert_parity
from executor_plans import make_plan

from costmodel.specs import RecomputeSpec

pytestmark = pytest.mark.distributed

TP: dict[str, Any] = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}
ZERO1: dict[str, Any] = {"zero_stage": 1, "data_parallel_shard_size": 2, "micro_batch_size": 1}
NONE = RecomputeSpec()


def pipeline(schedule: str, **sizes: Any) -> dict[str, Any]:
    return {"pipeline_parallel_size": 2, "pipeline_schedule": schedule, "micro_batch_size": 2, **sizes}


def full(layers: int) -> RecomputeSpec:
    return RecomputeSpec(kind="full", num_layers=layers)


def attention(layers: int) -> RecomputeSpec:
    return RecomputeSpec(kind="core_attention", num_layers=layers)


V: dict[str, Any] = {"num_model_chunks": 2}
CASES: dict[str, dict[str, Any]] = {
    "1f1b": {**pipeline("1f1b"), "recompute": (full(1), NONE)},
    "1f1b-attention": {**pipeline("1f1b"), "model": "gpt2", "recompute": (attention(1), full(2))},
    "zbv-zero1": {**pipeline("zbv_zero_bubble"), **V, **ZERO1, "recompute": (NONE, full(1), attention(1), NONE)},
    "dualpipe-v-tp2": {**pipeline("dualpipe_v"), **V, **TP, "recompute": (full(1), NONE, NONE, full(1))},
}


@pytest.mark.parametrize("name", CASES)
def test_stages_that_recompute_some_of_their_layers(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**CASES[name]))


@pytest.mark.parametrize(("recompute", "forwards"), [((full(1), NONE), 5), ((full(2), full(1)), 7)])
def test_only_the_stated_layers_run_again(pool: Pool, recompute: Any, forwards: int) -> None:
    """4 layers, and once more those recomputed as a whole."""
    plan = make_plan(**pipeline("1f1b"), recompute=recompute)
    calls = pool.run(2, {"kind": "forwards", "plan": plan.model_dump_json()})
    assert calls == forwards * plan.parallel.num_micro_batches

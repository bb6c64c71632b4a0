"""fp32 and bf16 plans against one process: as close as the number format allows.

The bf16 reference is mixed precision by hand: float32 master weights, forward and backward on a bfloat16 copy. SGD is used
because Adam's first steps follow the sign of gradients, which rounding flips where they are nearly 0.
"""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Parity, Pool
from executor_plans import make_plan

from costmodel.specs import OptimizerSpec

pytestmark = pytest.mark.distributed

SGD = OptimizerSpec(name="sgd", learning_rate=0.5, momentum=0.9)
TP: dict[str, Any] = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}
CASES: dict[str, dict[str, Any]] = {
    "one-process": {"micro_batch_size": 2},
    "zero3": {"zero_stage": 3, "data_parallel_shard_size": 2, "micro_batch_size": 1},
    "tp2-zero2-gpt2": {**TP, "zero_stage": 2, "data_parallel_shard_size": 2, "micro_batch_size": 2, "model": "gpt2"},
    "tp2-1f1b": {**TP, "pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "micro_batch_size": 2},
}


def train(pool: Pool, name: str, precision: str) -> Parity:
    plan = make_plan(**CASES[name], precision=precision, optimizer=SGD)
    result: Parity = pool.run(plan.num_devices_used, {"kind": "parity", "plan": plan.model_dump_json()})
    assert result.num_compared == result.num_parameters > 30
    return result


@pytest.mark.parametrize("name", CASES)
def test_bf16_follows_mixed_precision_by_hand(pool: Pool, name: str) -> None:
    result = train(pool, name, "bf16")
    assert result.relative_loss_difference < 1e-2
    # 2^-8 is bfloat16's spacing; independent roundings of the same gradients differ by a few of them.
    assert 1e-4 < result.relative_update_difference < 3e-2


@pytest.mark.parametrize("schedule", ["interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v"])
def test_a_split_backward_adds_up_gradients_in_fp32(pool: Pool, schedule: str) -> None:
    """As a whole one does: the same bf16 products in the same order, hence the same update to the last bit."""
    sizes: dict[str, Any] = {"pipeline_parallel_size": 2, "zero_stage": 2, "data_parallel_shard_size": 2, "batch": 32}
    whole, split = (
        make_plan(pipeline_schedule=name, num_model_chunks=2, precision="bf16", optimizer=SGD, **sizes)
        for name in ("interleaved_1f1b", schedule)
    )
    results = [pool.run(4, {"kind": "parity", "plan": plan.model_dump_json()}) for plan in (whole, split)]
    assert results[0].relative_update_difference == results[1].relative_update_difference < 3e-2


@pytest.mark.parametrize("name", ["one-process", "tp2-zero2-gpt2"])
def test_fp32_rounds_in_fp32(pool: Pool, name: str) -> None:
    result = train(pool, name, "fp32")
    assert result.relative_loss_difference < 1e-6
    assert 1e-9 < result.relative_update_difference < 1e-5

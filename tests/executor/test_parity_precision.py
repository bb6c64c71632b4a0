"""Mixed precision means bfloat16 products on float32 masters, reduced in float32; float32 rounds in float32.

The parity matrix compares mixed precision with one process that does it by hand: float32 master weights, forward and backward
of every micro-batch on a bfloat16 copy. Here are the formats themselves.
"""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool
from executor_plans import make_plan

from costmodel.specs import OptimizerSpec

pytestmark = pytest.mark.distributed

SGD = OptimizerSpec(name="sgd", learning_rate=0.5, momentum=0.9)
TP: dict[str, Any] = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}
PP: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b"}
SPLIT: dict[str, Any] = {**PP, "pipeline_schedule": "zbv_zero_bubble", "num_model_chunks": 2}


def zero(stage: int, shards: int = 2, **sizes: Any) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "micro_batch_size": 1, **sizes}


# What is reduced and gathered over processes, beside activations.
FP32, BF16 = {"torch.float32"}, {"torch.bfloat16"}
CASES: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "one-process": ({"micro_batch_size": 2}, set(), set()),
    "replicate": ({"data_parallel_replicate_size": 2, "micro_batch_size": 2}, FP32, set()),
    "zero1": (zero(1), FP32, BF16),
    "zero2": (zero(2), FP32, BF16),
    "zero3": (zero(3), FP32, BF16),
    "hybrid": (zero(2, data_parallel_replicate_size=2), FP32, BF16),
    "hpz": (zero(3, 4, hierarchical_partition_size=2), FP32, BF16),
    "tp2": ({**TP, "micro_batch_size": 2}, FP32, set()),
    "tp2-one-micro-batch": ({**TP, "micro_batch_size": 8, "model": "gpt2"}, FP32, set()),
    "tp2-zero2": ({**TP, **zero(2)}, FP32, BF16),
    "pp2-tied": ({**PP, "micro_batch_size": 2, "model": "gpt2"}, FP32, set()),
    "pp2-zero3-tied": ({**PP, **zero(3), "model": "llama-tied"}, FP32, BF16),
    "split-backward": ({**SPLIT, **zero(2)}, FP32, BF16),
    "tp2-gemma2": ({**TP, "micro_batch_size": 4, "model": "gemma2"}, FP32, set()),
    "tp2-gpt-neox": ({**TP, "micro_batch_size": 4, "model": "gpt-neox"}, FP32, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_masters_gradients_and_reductions_are_fp32(pool: Pool, name: str) -> None:
    sizes, reduced, gathered = CASES[name]
    plan = make_plan(**sizes, precision="bf16")
    seen = pool.run(plan.num_devices_used, {"kind": "formats", "plan": plan.model_dump_json()})
    assert seen["parameters"] == seen["optimizer state"] == FP32
    assert seen["activations"] == BF16
    assert (seen["reduced"], seen["gathered"]) == (reduced, gathered)
    # Before the reduction the last micro-batch's own gradients may still be in the format they were computed in.
    assert FP32 <= seen["gradients"] <= FP32 | BF16


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v"])
def test_a_split_backward_adds_up_gradients_in_fp32(pool: Pool, schedule: str) -> None:
    """The same bf16 products in the same order as in one process: sums in bf16 would be 1e-2 off."""
    sizes: dict[str, Any] = {"pipeline_parallel_size": 2, "zero_stage": 2, "data_parallel_shard_size": 2, "batch": 32}
    plan = make_plan(pipeline_schedule=schedule, num_model_chunks=2, precision="bf16", optimizer=SGD, **sizes)
    result = pool.run(4, {"kind": "parity", "plan": plan.model_dump_json()})
    assert result.relative_update_difference < 1e-6


@pytest.mark.parametrize("sizes", [{"micro_batch_size": 2}, {**TP, **zero(2, micro_batch_size=2), "model": "gpt2"}])
def test_fp32_rounds_in_fp32(pool: Pool, sizes: dict[str, Any]) -> None:
    plan = make_plan(**sizes, precision="fp32", optimizer=SGD)
    result = pool.run(plan.num_devices_used, {"kind": "parity", "plan": plan.model_dump_json()})
    assert result.num_compared == result.num_parameters > 30
    assert result.relative_loss_difference < 1e-6
    assert 1e-9 < result.relative_update_difference < 1e-5

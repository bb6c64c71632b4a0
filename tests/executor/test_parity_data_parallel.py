"""Data-parallel plans train exactly like one process, in float64."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool, assert_parity
from executor_plans import make_plan

from costmodel.specs import OptimizerSpec

pytestmark = pytest.mark.distributed

SGD = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9, max_grad_norm=0.5)
NO_CLIPPING = OptimizerSpec(learning_rate=1e-2, max_grad_norm=None)


def zero(stage: int, shards: int = 2, **sizes: Any) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "micro_batch_size": 1, **sizes}


CASES: dict[str, dict[str, Any]] = {
    "one-process": {"micro_batch_size": 8},
    "accumulation": {"micro_batch_size": 2},
    # A factor of 3 between micro-batch and global mean shows any rounding below float64.
    "accumulation-by-3": {"micro_batch_size": 2, "batch": 6},
    "replicate2-gpt2": {"model": "gpt2", "data_parallel_replicate_size": 2, "micro_batch_size": 2},
    "replicate4-tied": {"model": "llama-tied", "data_parallel_replicate_size": 4, "micro_batch_size": 1},
    "zero1": {**zero(1)},
    "zero2": {**zero(2)},
    "zero3": {**zero(3)},
    "zero1-gpt2-uneven": {**zero(1), "model": "gpt2-63"},
    "zero2-gpt2-untied": {**zero(2), "model": "gpt2-untied"},
    "zero3-3-shards-uneven-tied": {**zero(3, 3), "batch": 6, "model": "llama-tied-63"},
    "hybrid-zero1-sgd": {**zero(1), "data_parallel_replicate_size": 2, "optimizer": SGD},
    "hybrid-zero2": {**zero(2), "data_parallel_replicate_size": 2},
    "hybrid-zero3-gpt2": {**zero(3), "data_parallel_replicate_size": 2, "model": "gpt2-63"},
    "hpz": {**zero(3, 4), "hierarchical_partition_size": 2, "model": "llama-63"},
    "hpz-qwen2": {**zero(3, 4), "hierarchical_partition_size": 2, "model": "qwen2"},
    "recompute-full": {**zero(3), "recompute": "full"},
    "recompute-core-attention-gpt2": {**zero(3), "recompute": "core_attention", "model": "gpt2"},
    "recompute-full-one-process": {"micro_batch_size": 4, "recompute": "full", "model": "mistral-window"},
    "window-mixed-layers": {**zero(2), "model": "qwen2-mixed"},
    "unfused-attention": {**zero(2), "attention": "unfused", "model": "mistral-window"},
    "no-clipping": {**zero(2), "optimizer": NO_CLIPPING, "model": "qwen3"},
    "megatron-gpt-padded-vocabulary": {**zero(1), "model": "megatron-gpt"},
}


@pytest.mark.parametrize("name", CASES)
def test_data_parallel_parity(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**CASES[name]))

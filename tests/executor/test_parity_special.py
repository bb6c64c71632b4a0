"""Plans that the axes of the parity matrix do not reach train exactly like one process too, in float64."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool, assert_parity
from executor_plans import make_plan

from costmodel.specs import OptimizerSpec

pytestmark = pytest.mark.distributed

TP: dict[str, Any] = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}


def pipeline(schedule: str, **sizes: Any) -> dict[str, Any]:
    return {"pipeline_parallel_size": 2, "pipeline_schedule": schedule, "micro_batch_size": 2, **sizes}


def zero(stage: int, shards: int = 2) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "micro_batch_size": 1}


CASES: dict[str, dict[str, Any]] = {
    "one-process": {"micro_batch_size": 2, "recompute": "full", "model": "mistral-window"},
    "three-shards-of-a-tied-table-of-63": {**zero(3, 3), "batch": 6, "model": "llama-tied-63"},
    "zero1-padded-vocabulary": {**zero(1), "model": "megatron-gpt"},
    "tp2-padded-vocabulary": {**TP, "micro_batch_size": 4, "model": "megatron-gpt"},
    "stages-of-1-and-3-layers": {**pipeline("1f1b"), "layers_per_stage": (1, 3)},
}


@pytest.mark.parametrize("name", CASES)
def test_special_plans(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**CASES[name]))


FOUR_RANKS: dict[str, dict[str, Any]] = {
    "looped_bfs": {},
    "interleaved_zero_bubble": {"layers_per_stage": (1, 1, 2, 1, 1, 2, 1, 1)},
    "zbv_zero_bubble": {"layers_per_stage": (2, 1, 1, 1, 1, 1, 1, 2), "model": "llama-tied-10-layers"},
    "dualpipe_v": {"model": "llama-tied-10-layers"},
}


@pytest.mark.parametrize("schedule", FOUR_RANKS)
def test_four_ranks_with_uneven_stages(pool: Pool, schedule: str) -> None:
    sizes = pipeline(schedule, num_model_chunks=2, pipeline_parallel_size=4, micro_batch_size=1)
    assert_parity(pool, make_plan(**{"model": "llama-10-layers", **sizes, **FOUR_RANKS[schedule]}))


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "interleaved_zero_bubble"])
def test_four_chunks_are_gathered_again_within_the_step(pool: Pool, schedule: str) -> None:
    """torch keeps three stages of a rank gathered (`_add_unshard_reshard`); the gradients of a fourth must survive that."""
    sizes = pipeline(schedule, num_model_chunks=4)
    assert_parity(pool, make_plan("llama-10-layers", **{**sizes, **zero(2)}))


CLIPPED = OptimizerSpec(learning_rate=1e-2, max_grad_norm=0.5)
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero2": {"zero_stage": 2, "data_parallel_shard_size": 2},
    "1f1b": {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "data_parallel_replicate_size": 2},
}


@pytest.mark.parametrize("micro_batch_size", [1, 3, 6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_size_of_micro_batches_does_not_matter(pool: Pool, layout: str, micro_batch_size: int) -> None:
    """One global batch in 12, 4 or 2 micro-batches of each of 2 replicas, against one process that never splits it."""
    plan = make_plan(**LAYOUTS[layout], micro_batch_size=micro_batch_size, batch=24, optimizer=CLIPPED)
    assert plan.parallel.num_micro_batches == 12 // micro_batch_size
    assert_parity(pool, plan)


THREE_DIMENSIONS: dict[str, dict[str, Any]] = {
    "tp2-pp2-zero1": {**pipeline("1f1b"), **TP, **zero(1)},
    "tp2-pp2-zero2-gpt2": {**pipeline("1f1b"), **TP, **zero(2), "model": "gpt2"},
    "tp2-pp2-zero3-tied-interleaved": {
        **pipeline("interleaved_1f1b", num_model_chunks=2), **TP, **zero(3), "model": "qwen3-tied",
    },
    "tp2-pp2-zero2-uneven-recompute": {
        **pipeline("interleaved_1f1b", num_model_chunks=2), **TP, **zero(2), "model": "gpt2-63", "recompute": "full",
    },
    "tp2-pp2-replicate2": {**pipeline("1f1b"), **TP, "data_parallel_replicate_size": 2},
    "hybrid-hpz": {**zero(3, 4), "hierarchical_partition_size": 2, "data_parallel_replicate_size": 2, "model": "gpt2-63"},
    "zero3-8-shards": zero(3, 8),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", THREE_DIMENSIONS)
def test_three_dimensions(large_pool: Pool, name: str) -> None:
    assert_parity(large_pool, make_plan(**THREE_DIMENSIONS[name]))

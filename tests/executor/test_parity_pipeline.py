"""Pipelined plans, alone and with tensor and data parallelism, train exactly like one process, in float64."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool, assert_parity
from executor_plans import make_plan

pytestmark = pytest.mark.distributed

TP: dict[str, Any] = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}


def pipeline(schedule: str, **sizes: Any) -> dict[str, Any]:
    return {"pipeline_parallel_size": 2, "pipeline_schedule": schedule, "micro_batch_size": 2, **sizes}


def zero(stage: int, shards: int = 2) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "micro_batch_size": 1}


def interleaved(**sizes: Any) -> dict[str, Any]:
    return pipeline("interleaved_1f1b", num_model_chunks=2, **sizes)


def two_chunks(schedule: str, **sizes: Any) -> dict[str, Any]:
    return pipeline(schedule, num_model_chunks=2, **sizes)


CASES: dict[str, dict[str, Any]] = {
    "naive": pipeline("naive", micro_batch_size=8),
    "gpipe": pipeline("gpipe"),
    "1f1b": pipeline("1f1b"),
    "1f1b-uneven": {**pipeline("1f1b"), "layers_per_stage": (1, 3)},
    "1f1b-4-stages-tied": pipeline("1f1b", pipeline_parallel_size=4, micro_batch_size=1) | {"model": "gpt2"},
    "1f1b-tied": {**pipeline("1f1b"), "model": "llama-tied"},
    "1f1b-window": {**pipeline("1f1b"), "model": "qwen2-mixed"},
    "1f1b-recompute-full": {**pipeline("1f1b"), "recompute": "full", "model": "gpt2-untied"},
    "interleaved": interleaved(),
    "interleaved-tied-gpt2": {**interleaved(), "model": "gpt2-63"},
    "interleaved-core-attention": {**interleaved(), "recompute": "core_attention", "model": "qwen3"},
    "looped-bfs-tied-uneven": {**two_chunks("looped_bfs"), "model": "llama-tied", "layers_per_stage": (1, 1, 1, 1)},
    "looped-bfs-zero3": {**two_chunks("looped_bfs"), **zero(3)},
    "looped-bfs-one-micro-batch": two_chunks("looped_bfs", micro_batch_size=8),
    "interleaved-zero-bubble-tp2": {**two_chunks("interleaved_zero_bubble"), **TP},
    "interleaved-zero-bubble-zero2-tied": {**two_chunks("interleaved_zero_bubble"), **zero(2), "model": "gpt2-63"},
    "zbv-tied": {**two_chunks("zbv_zero_bubble"), "model": "llama-tied-63"},
    "zbv-few-micro-batches": two_chunks("zbv_zero_bubble", micro_batch_size=8),
    "zbv-zero1-recompute-full": {
        **two_chunks("zbv_zero_bubble"),
        **zero(1),
        "recompute": "full",
        "model": "qwen3-tied",
    },
    "zbv-tp2-tied": {**two_chunks("zbv_zero_bubble"), **TP, "model": "qwen3-tied"},
    "dualpipe-v-tp2": {**two_chunks("dualpipe_v"), **TP, "model": "llama-63"},
    "dualpipe-v-core-attention": {**two_chunks("dualpipe_v"), "recompute": "core_attention", "model": "gpt2"},
    "dualpipe-v-replicate2": {**two_chunks("dualpipe_v"), "data_parallel_replicate_size": 2, "micro_batch_size": 1},
    "tp2-1f1b": {**pipeline("1f1b"), **TP},
    "tp2-1f1b-tied-uneven": {**pipeline("1f1b"), **TP, "model": "llama-tied-63"},
    "tp2-gpipe-gpt2-no-sp": {**pipeline("gpipe"), "tensor_parallel_size": 2, "model": "gpt2"},
    "tp2-interleaved-tied": {**interleaved(), **TP, "model": "qwen3-tied"},
    "replicate2-gpipe": pipeline("gpipe", data_parallel_replicate_size=2, micro_batch_size=1),
    "zero1-1f1b": {**pipeline("1f1b"), **zero(1)},
    "zero2-gpipe-tied-uneven": {**pipeline("gpipe"), **zero(2), "model": "llama-tied-63"},
    "zero3-1f1b-tied-recompute": {**pipeline("1f1b"), **zero(3), "recompute": "full", "model": "llama-tied"},
    "zero3-interleaved-gpt2": {**interleaved(), **zero(3), "model": "gpt2"},
}


@pytest.mark.parametrize("name", CASES)
def test_pipeline_parity(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**CASES[name]))


FOUR_RANKS: dict[str, dict[str, Any]] = {
    "looped_bfs": {},
    "interleaved_zero_bubble": {"layers_per_stage": (1, 1, 2, 1, 1, 2, 1, 1)},
    "zbv_zero_bubble": {"layers_per_stage": (2, 1, 1, 1, 1, 1, 1, 2), "model": "llama-tied-10-layers"},
    "dualpipe_v": {"model": "llama-tied-10-layers"},
}


@pytest.mark.parametrize("schedule", FOUR_RANKS)
def test_four_ranks_with_uneven_stages(pool: Pool, schedule: str) -> None:
    sizes = two_chunks(schedule, pipeline_parallel_size=4, micro_batch_size=1)
    assert_parity(pool, make_plan(**{"model": "llama-10-layers", **sizes, **FOUR_RANKS[schedule]}))


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "interleaved_zero_bubble"])
def test_four_chunks_are_gathered_again_within_the_step(pool: Pool, schedule: str) -> None:
    """torch keeps three stages of a rank gathered (`_add_unshard_reshard`); the gradients of a fourth must survive that."""
    sizes = pipeline(schedule, num_model_chunks=4)
    assert_parity(pool, make_plan("llama-10-layers", **{**sizes, **zero(2)}))


THREE_DIMENSIONS: dict[str, dict[str, Any]] = {
    "tp2-pp2-zero1": {**pipeline("1f1b"), **TP, **zero(1)},
    "tp2-pp2-zero2-gpt2": {**pipeline("1f1b"), **TP, **zero(2), "model": "gpt2"},
    "tp2-pp2-zero3-tied-interleaved": {**interleaved(), **TP, **zero(3), "model": "qwen3-tied"},
    "tp2-pp2-zero2-uneven-recompute": {**interleaved(), **TP, **zero(2), "model": "gpt2-63", "recompute": "full"},
    "tp2-pp2-replicate2": {**pipeline("1f1b"), **TP, "data_parallel_replicate_size": 2},
    "pp2-hybrid-zero2": {**pipeline("1f1b"), **zero(2), "data_parallel_replicate_size": 2},
    "pp2-hpz": {**pipeline("1f1b"), **zero(3, 4), "hierarchical_partition_size": 2},
    "interleaved-hpz": {**interleaved(), **zero(3, 4), "hierarchical_partition_size": 2, "model": "llama-63"},
    "hybrid-hpz": {
        **zero(3, 4),
        "hierarchical_partition_size": 2,
        "data_parallel_replicate_size": 2,
        "model": "gpt2-63",
    },
    "tp2-hybrid-zero3": {**TP, **zero(3), "data_parallel_replicate_size": 2, "model": "gpt2-63"},
    "zero3-8-shards": zero(3, 8),
}


def test_three_dimensions(large_pool: Pool) -> None:
    assert_parity(large_pool, make_plan(**THREE_DIMENSIONS["tp2-pp2-zero1"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(THREE_DIMENSIONS)[1:])
def test_three_dimensions_slow(large_pool: Pool, name: str) -> None:
    assert_parity(large_pool, make_plan(**THREE_DIMENSIONS[name]))

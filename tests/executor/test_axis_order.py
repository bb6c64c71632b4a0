"""Plans with data outermost train like one process: neighbours are a pipeline, and the batch goes to the same replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from executor_harness import TOLERANCE, Pool, assert_parity
from executor_plans import make_plan

from executor.mesh import axis_sizes, first_rank

pytestmark = pytest.mark.distributed

DATA_FIRST: dict[str, Any] = {
    "axis_order": "data_outermost",
    "pipeline_parallel_size": 2,
    "pipeline_schedule": "1f1b",
    "micro_batch_size": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "replicas, tied": {"data_parallel_replicate_size": 2, "model": "llama-tied"},
    "zero1": {"zero_stage": 1, "data_parallel_shard_size": 2, "model": "gpt2"},
}
EIGHT: dict[str, dict[str, Any]] = {
    "tp2 zero3 interleaved": {
        "zero_stage": 3, "data_parallel_shard_size": 2, "tensor_parallel_size": 2, "sequence_parallel": True,
        "loss_parallel": True, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2, "model": "qwen3-tied",
    },
    "hpz": {"zero_stage": 3, "data_parallel_shard_size": 4, "hierarchical_partition_size": 2},
    "hybrid": {"zero_stage": 2, "data_parallel_shard_size": 2, "data_parallel_replicate_size": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_of_neighbours_trains_like_one_process(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**{**DATA_FIRST, **CASES[name]}))


@pytest.mark.slow
@pytest.mark.parametrize("name", EIGHT)
def test_eight_processes_with_data_outermost(large_pool: Pool, name: str) -> None:
    assert_parity(large_pool, make_plan(**{**DATA_FIRST, **EIGHT[name]}))


def test_a_checkpoint_goes_on_in_the_other_order(pool: Pool, tmp_path: Path) -> None:
    sizes = {**DATA_FIRST, **CASES["zero1"]}
    saving, going_on = make_plan(**{**sizes, "axis_order": "pipeline_outermost"}), make_plan(**sizes)
    place = {"folder": str(tmp_path)}
    pool.run(4, {"kind": "checkpoint_save", "plan": saving.model_dump_json(), "stop": 3, **place})
    job = {"kind": "checkpoint_resume", "plan": going_on.model_dump_json(), "start": 3, "stop": 6, **place}
    compared, parameters, loss, weights = pool.run(4, job)
    assert compared == parameters > 30
    assert loss <= TOLERANCE
    assert weights <= TOLERANCE


def test_axes_and_first_ranks_follow_the_order() -> None:
    """8 devices: stage 1 begins at rank 4 behind the other stage's, or at rank 2 inside a replica."""
    sizes = {"data_parallel_replicate_size": 2, "tensor_parallel_size": 2, "micro_batch_size": 1}
    default = make_plan(**{**DATA_FIRST, **sizes, "axis_order": "pipeline_outermost"})
    second = make_plan(**{**DATA_FIRST, **sizes})
    assert list(axis_sizes(default).items()) == [("pp", 2), ("dp_replicate", 2), ("dp_shard", 1), ("tp", 2)]
    assert list(axis_sizes(second).items()) == [("dp_replicate", 2), ("dp_shard", 1), ("pp", 2), ("tp", 2)]
    assert [first_rank(default, 1), first_rank(second, 1)] == [4, 2]

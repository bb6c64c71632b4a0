"""How often data parallelism communicates in one step, counted on a running plan (docs/architecture.md).

The model has 4 layers, so 5 groups of parameters (4 layers and the root); a pipeline stage of 2 layers has 3.
"""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool
from executor_plans import make_plan

from costmodel.unshards import repeated_gathers

pytestmark = pytest.mark.distributed

GROUPS = 5
STAGE_GROUPS = 3


def zero(stage: int, shards: int = 2, **sizes: Any) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "micro_batch_size": 1, **sizes}


def count(pool: Pool, **sizes: Any) -> tuple[int, dict[tuple[str, int], int]]:
    plan = make_plan(**sizes)
    calls = pool.run(plan.num_devices_used, {"kind": "traffic", "plan": plan.model_dump_json()})
    return plan.parallel.num_micro_batches, calls


def test_replicate_reduces_once_per_step(pool: Pool) -> None:
    micro_batches, calls = count(pool, data_parallel_replicate_size=2, micro_batch_size=1)
    assert micro_batches == 4
    assert calls == {("allreduce", 0): GROUPS}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_stages_differ_in_when_they_communicate(pool: Pool, stage: int) -> None:
    micro_batches, calls = count(pool, **zero(stage))
    gathers = {1: 1, 2: 1, 3: 2 * micro_batches}[stage]
    reductions = {1: 1, 2: micro_batches, 3: micro_batches}[stage]
    assert micro_batches == 4
    assert calls == {("allgather_base", 2): gathers * GROUPS, ("reduce_scatter_base", 2): reductions * GROUPS}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_hybrid_shard_reduces_over_replicas_once_per_step(pool: Pool, stage: int) -> None:
    micro_batches, calls = count(pool, **zero(stage, data_parallel_replicate_size=2))
    assert micro_batches == 2
    assert calls["reduce_scatter_base", 2] == (GROUPS if stage == 1 else micro_batches * GROUPS)
    assert calls["allreduce", 0] == GROUPS


def test_hpz_gathers_backward_inside_its_groups(pool: Pool) -> None:
    micro_batches, calls = count(pool, **zero(3, 4, hierarchical_partition_size=2))
    per_pass = micro_batches * GROUPS
    assert calls == {
        ("allgather_base", 4): per_pass,
        ("allgather_base", 2): per_pass,
        ("reduce_scatter_base", 4): per_pass,
    }


@pytest.mark.parametrize(
    ("schedule", "chunks", "stage"),
    [
        *((schedule, chunks, stage) for schedule, chunks in [("1f1b", 1), ("interleaved_1f1b", 2)] for stage in (2, 3)),
        *(("looped_bfs", 2, stage) for stage in (1, 2, 3)),
        *((schedule, 2, 2) for schedule in ("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v")),
    ],
)
def test_pipelines_reduce_once_and_gather_forward(pool: Pool, schedule: str, chunks: int, stage: int) -> None:
    """Rank 0's groups: 2 layers and the embedding's; the head's too where it is on rank 0."""
    sizes = {"pipeline_parallel_size": 2, "pipeline_schedule": schedule, "num_model_chunks": chunks}
    micro_batches, calls = count(pool, **sizes, **zero(stage))
    gathers = 1 if stage < 3 else micro_batches + 1
    groups = STAGE_GROUPS + (schedule in ("zbv_zero_bubble", "dualpipe_v"))
    assert micro_batches == 4
    assert calls == {("allgather_base", 2): gathers * groups, ("reduce_scatter_base", 2): groups}


@pytest.mark.parametrize(
    ("schedule", "stage", "gathers"),
    [
        ("interleaved_1f1b", 2, [6, 3, 5, 1]),
        ("interleaved_1f1b", 3, [10, 10, 9, 9]),
        ("interleaved_zero_bubble", 1, [3, 5, 1, 4]),
        ("looped_bfs", 2, [2, 1, 1, 1]),
        ("looped_bfs", 3, [9, 9, 9, 9]),
    ],
)
def test_of_four_chunks_torch_keeps_three_gathered(pool: Pool, schedule: str, stage: int, gathers: list[int]) -> None:
    """Gathers of rank 0's chunks, a layer each; the embedding is a group of the first."""
    sizes = {"pipeline_parallel_size": 2, "pipeline_schedule": schedule, "num_model_chunks": 4}
    micro_batches, calls = count(pool, **sizes, **zero(stage), batch=16, changes={"num_hidden_layers": 8})
    assert micro_batches == 8
    repeated, after_backward = repeated_gathers(schedule, 2, 4, micro_batches)
    predicted = repeated[0] + 1 if stage < 3 else after_backward[0] + micro_batches + 1
    assert predicted.tolist() == gathers
    assert calls == {("allgather_base", 2): gathers[0] + sum(gathers), ("reduce_scatter_base", 2): 5}


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_full_recomputation_runs_every_layer_twice(pool: Pool, schedule: str, recompute: str) -> None:
    """Also where the backward is split: torch alone would run it again for every parameter of the layer."""
    sizes = {"pipeline_parallel_size": 2, "pipeline_schedule": schedule, "num_model_chunks": 2}
    plan = make_plan(**sizes, recompute=recompute)
    calls = pool.run(2, {"kind": "forwards", "plan": plan.model_dump_json()})
    assert calls == 4 * plan.parallel.num_micro_batches * (2 if recompute == "full" else 1)


def test_sequence_parallel_sums_all_norms_in_one_message(pool: Pool) -> None:
    sizes: dict[str, Any] = {"tensor_parallel_size": 2, "micro_batch_size": 1}
    assert count(pool, **sizes, sequence_parallel=True, loss_parallel=True)[1] == {("allreduce", 0): 1}
    assert count(pool, **sizes)[1] == {}

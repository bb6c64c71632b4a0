"""How often chunks are gathered, and which are at once, against torch's own lowered schedules."""

from typing import Any

import numpy as np
import pytest
from memory_worlds import llama as small_llama
from memory_worlds import make_plan
from test_time_communication import setting, traffic
from test_time_schedules import torch_schedule
from time_worlds import cluster, device, llama, world
from torch.distributed.pipelining.schedules import _ComputationType

from costmodel.bounds import step_time_column, step_time_lower_bound
from costmodel.estimate import estimate
from costmodel.memory import grid_peak_bytes, peak_memory, plan_memory
from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.placement import LOOPED_SCHEDULES
from costmodel.specs import Plan, RuntimeProfile
from costmodel.step import stage_parameters, step_times
from costmodel.tables import GATHER
from costmodel.unshards import _counted, gathered_at_peak, gathered_chunks, repeated_gathers

BACKWARDS = (_ComputationType.FULL_BACKWARD, _ComputationType.BACKWARD_INPUT)
PIPELINE: dict[str, Any] = {
    "pipeline_parallel_size": 2,
    "num_model_chunks": 4,
    "num_micro_batches": 8,
    "data_parallel_shard_size": 4,
}


def torch_gathers(schedule, rank, ranks, chunks) -> tuple[list[int], set[int]]:
    """Times torch unshards every chunk of a rank, and the chunks it has unsharded in the first backward."""
    counts, active, first = [0] * chunks, set[int](), None
    for action in schedule.pipeline_order_with_comms[rank]:
        chunk = action.stage_index // ranks
        if action.computation_type == _ComputationType.UNSHARD:
            counts[chunk] += 1
            active.add(chunk)
        elif action.computation_type == _ComputationType.RESHARD:
            active.remove(chunk)
        elif action.computation_type in BACKWARDS and first is None:
            first = set(active)
    assert first is not None
    return counts, first


@pytest.mark.parametrize(
    ("ranks", "chunks", "micro_batches"),
    [(2, 4, 1), (4, 4, 2), (3, 4, 3), (2, 5, 4), (4, 6, 6), (4, 4, 10), (4, 4, 16), (3, 7, 27), (2, 8, 32)],
)
@pytest.mark.parametrize("name", LOOPED_SCHEDULES)
def test_chunks_are_gathered_as_often_as_torch_unshards_them(name, ranks, chunks, micro_batches):
    ours, _ = repeated_gathers(name, ranks, chunks, micro_batches)
    grid = Grid.from_plan(make_plan(small_llama(), pipeline_parallel_size=ranks)).take(np.zeros(ranks, dtype=np.int64))
    grid.pipeline_schedule[:], grid.num_model_chunks[:] = SCHEDULES.index(name), chunks
    grid.num_micro_batches[:] = micro_batches
    held, schedule = gathered_chunks(grid, np.arange(ranks)), torch_schedule(name, ranks, chunks, micro_batches)
    for rank in range(ranks):
        counts, first = torch_gathers(schedule, rank, ranks, chunks)
        assert (ours[rank] + 1).tolist() == counts
        assert set(np.flatnonzero(held[rank])) == first


def torch_whole_at_peak(schedule, rank, ranks, whole, begun) -> int:
    """The most that a rank of ZeRO 3 has gathered at a backward's begin with most in flight, along torch's lowered schedule."""
    gathered, flying, seen = set[int](), 0, list[tuple[int, int]]()
    for action in schedule.pipeline_order_with_comms[rank]:
        chunk, kind = action.stage_index // ranks, action.computation_type
        if kind == _ComputationType.UNSHARD:
            gathered.add(chunk)
        elif kind == _ComputationType.RESHARD:
            gathered.discard(chunk)
        elif kind == _ComputationType.FORWARD:
            gathered.discard(chunk)
            flying += 1
        elif kind in BACKWARDS:
            others = sum(whole[each] for each in gathered)
            seen.append((flying, others + (0 if chunk in gathered else begun[chunk])))
            gathered.add(chunk)
            flying -= 1
    most = max(count for count, _ in seen)
    fullest = [size for count, size in seen if count == most]
    return max(fullest[1:] or fullest)


@pytest.mark.parametrize(
    ("ranks", "chunks", "micro_batches"),
    [(2, 2, 2), (2, 2, 8), (2, 3, 4), (4, 2, 16), (2, 4, 8), (3, 5, 9), (4, 3, 28)],
)
@pytest.mark.parametrize("name", ["interleaved_1f1b", "looped_bfs"])
def test_chunks_that_zero_3_left_whole_are_those_that_torch_did_not_free(name, ranks, chunks, micro_batches):
    grid = Grid.from_plan(make_plan(small_llama(), pipeline_parallel_size=ranks)).take(np.zeros(ranks, dtype=np.int64))
    grid.pipeline_schedule[:], grid.num_model_chunks[:] = SCHEDULES.index(name), chunks
    grid.num_micro_batches[:] = micro_batches
    whole, begun = [100 + 7 * chunk for chunk in range(chunks)], [10 + chunk for chunk in range(chunks)]
    full, started = (np.repeat(np.array(sizes)[:, None], ranks, axis=1) for sizes in (whole, begun))
    found = gathered_at_peak(grid, np.arange(ranks), whole=full, begun=(started,), ended=full)[0]
    schedule = torch_schedule(name, ranks, chunks, micro_batches)
    for rank in range(ranks):
        assert found[rank] == torch_whole_at_peak(schedule, rank, ranks, whole, begun)


@pytest.mark.parametrize(("schedule", "chunks"), [(name, chunks) for name in LOOPED_SCHEDULES for chunks in (2, 3)])
def test_up_to_three_chunks_stay_gathered(schedule, chunks):
    plan = torch_schedule(schedule, 4, chunks, 16)
    assert all(torch_gathers(plan, rank, 4, chunks)[0] == [1] * chunks for rank in range(4))


@pytest.mark.parametrize("rounds", [6, 7, 11])
@pytest.mark.parametrize(("ranks", "chunks"), [(2, 4), (3, 5), (6, 7), (8, 4)])
@pytest.mark.parametrize("name", LOOPED_SCHEDULES)
def test_rounds_that_are_not_walked_add_what_the_last_one_added(name, ranks, chunks, rounds):
    assert (
        np.array(repeated_gathers(name, ranks, chunks, rounds * ranks)) == _counted(name, ranks, chunks, rounds * ranks)
    ).all()


def looped(zero: int, schedule: str = "interleaved_1f1b", **changes: Any) -> tuple[Plan, RuntimeProfile]:
    sizes = {**PIPELINE, "pipeline_schedule": schedule, "zero_stage": zero, **changes}
    return world(runtime="torch", precision="fp32", model=llama(), **sizes)


@pytest.mark.parametrize(("zero", "gathers"), [(1, [6, 3, 5, 1]), (2, [6, 3, 5, 1]), (3, [10, 10, 9, 9])])
def test_traffic_counts_the_gathers_of_every_chunk(zero, gathers):
    """Chunks of rank 0, as counted on the executor (tests/executor/test_traffic.py): a layer each, and the embedding."""
    plan, runtime = looped(zero)
    entry = traffic(plan, runtime)["dp_shard", "all_gather"]
    parameters = stage_parameters(setting(plan, runtime))[0, [0, 2, 4, 6]]
    assert entry.count == 2 * gathers[0] + sum(gathers[1:])
    assert entry.bytes_per_rank == pytest.approx(3 / 4 * 4 * float(parameters @ gathers))


def test_other_frameworks_gather_once():
    plan, runtime = world(zero_stage=1, pipeline_schedule="interleaved_1f1b", **PIPELINE)
    assert runtime.sharding == "flat"
    assert not setting(plan, runtime).regathers.any()


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("schedule", LOOPED_SCHEDULES)
def test_every_row_of_a_grid_has_its_own_gathers_and_bounds_stay_bounds(schedule, zero):
    sizes = [{"num_micro_batches": 32 // size, "micro_batch_size": size} for size in (8, 4, 1)]
    plans = [looped(zero, schedule, **size)[0] for size in sizes]
    runtime, rows = load_runtime("torch"), [Grid.from_plan(plan) for plan in plans]
    grid = Grid.joined(rows)
    arguments = (plans[0].model, plans[0].cluster, plans[0].training, runtime, grid)
    seconds = [estimate(plan, runtime).step_time_seconds.value for plan in plans]
    assert step_time_column(*arguments) == pytest.approx(seconds, rel=1e-12)
    assert (step_time_lower_bound(*arguments) <= seconds).all()


@pytest.mark.parametrize(
    ("schedule", "repeated"), [("interleaved_1f1b", [5, 2, 4, 0]), ("interleaved_zero_bubble", [2, 4, 0, 3])]
)
def test_repeated_gathers_take_as_long_as_the_first(schedule, repeated):
    """Nothing is hidden on a CPU, so the step starts with a gather of every chunk; chunks 1 to 3 are a layer each."""
    machine = cluster(of=device(kind="cpu"))
    plan, runtime = world(
        runtime="torch", model=llama(), machine=machine, zero_stage=2, pipeline_schedule=schedule, **PIPELINE
    )
    times = step_times(setting(plan, runtime))
    seconds = 8 * times.backward[0, [0, 2, 4, 6], GATHER]
    first = seconds[0] / repeated[0]
    layer = seconds[1] / repeated[1]
    assert seconds == pytest.approx([repeated[0] * first, *(count * layer for count in repeated[1:])])
    assert first + 3 * layer == pytest.approx(times.start[0, 0])


@pytest.mark.parametrize(("schedule", "embeddings"), [("interleaved_1f1b", 1), ("looped_bfs", 0)])
def test_three_chunks_are_gathered_at_the_peak(schedule, embeddings):
    """Rank 0 of 2 with 4 chunks of one layer: in the first backward chunk 3 and the next two, 0 and 1 or 2 and 1."""
    model = small_llama(layers=8, vocab=128)
    plan = make_plan(model, precision="fp32", sequence=2048, zero_stage=2, pipeline_schedule=schedule, **PIPELINE)
    memory = plan_memory(plan, load_runtime("torch"))
    (gathered,) = [term.bytes for term in memory[0].terms if term.name == "gathered_parameters"]
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64
    assert gathered == 4 * (3 * layer + embeddings * 128 * 64)
    peak = grid_peak_bytes(plan.model, plan.cluster, plan.training, load_runtime("torch"), Grid.from_plan(plan))
    assert peak[0] == peak_memory(memory, load_runtime("torch"), plan.cluster.device).device

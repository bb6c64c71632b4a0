"""The bounds that a search begins with, against exact step times and memory of the same candidates."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from planner_worlds import GIB, make_cluster, make_model, plan_space

from costmodel.bounds import step_time_column
from costmodel.completions import StageColumns, completion_bytes, completion_seconds
from costmodel.memory import grid_peak_bytes
from costmodel.memory_bound import LeastMemory
from costmodel.relaxed import average_seconds
from costmodel.runtimes.grid import FULL_RECOMPUTE
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.rules import obeys_rules
from costmodel.work_bound import compute_seconds, work_bound
from planner.completion import is_free, problem_of
from planner.space import Space

WORLDS: dict[str, dict[str, Any]] = {
    "torch, every schedule": {
        "model": make_model(layers=8, vocab=32_000),
        "cluster": make_cluster(nodes=2, per_node=4, between=2e9),
        "batch": 24,
        "allow": {"pipeline_schedule": "all", "micro_batch_size": "1,3"},
    },
    "torch, both orders of axes": {
        "cluster": make_cluster(nodes=2, per_node=4, between=1e9),
        "batch": 16,
        "allow": {"axis_order": "pipeline_outermost,data_outermost", "micro_batch_size": "1,2"},
    },
    "megatron": {"runtime": "megatron", "cluster": make_cluster(nodes=2, per_node=8), "batch": 32},
    "deepspeed": {"runtime": "deepspeed", "cluster": make_cluster(nodes=2, per_node=4), "batch": 32},
    "uneven stages": {"model": make_model(layers=7), "cluster": make_cluster(per_node=6), "batch": 12},
}


def space_of(name: str) -> tuple[Space, Any]:
    space = plan_space(**WORLDS[name])
    return space, space.grid.take(obeys_rules(space.context, space.grid))


@pytest.mark.parametrize("name", WORLDS)
def test_no_even_split_is_faster_than_its_work_or_its_average(name: str) -> None:
    space, grid = space_of(name)
    context = space.context
    exact = step_time_column(context.model, context.cluster, context.training, context.runtime, grid)
    problem = problem_of(context)
    bounds = [work_bound(problem, grid), average_seconds(problem, grid, np.zeros(len(grid)))]
    for bound in bounds:
        assert (bound <= exact).all(), name
    known = grid.axis_order == 0  # the average says nothing where data is outermost
    plain = grid.recompute == 0
    assert (bounds[1][~known] == 0).all()
    assert (exact / np.maximum(*bounds))[plain & known].min() < 1.06  # some row is nearly nothing but that


def test_work_is_what_a_device_computes_and_sends_for_its_tensor_parallel_group() -> None:
    """Of one stage on one data-parallel device without replicas the bound is the step less the optimizer's."""
    space = plan_space(cluster=make_cluster(per_node=4), batch=8, allow={"tensor_parallel_size": "4"})
    problem, grid = problem_of(space.context), space.grid.take(obeys_rules(space.context, space.grid))
    alone = (grid.pipeline_parallel_size == 1) & (grid.data_parallel_size == 1) & (grid.recompute == 0)
    one = grid.take(alone)
    assert len(one) > 3
    exact = step_time_column(problem.model, problem.cluster, problem.training, problem.runtime, one)
    assert (work_bound(problem, one) > 0.8 * exact).all()
    assert (compute_seconds(problem, one) * one.num_micro_batches <= work_bound(problem, one)).all()


@pytest.mark.parametrize("name", WORLDS)
def test_an_even_split_needs_more_than_whole_layers_do(name: str) -> None:
    space, grid = space_of(name)
    inputs = (space.context.model, space.context.cluster, space.context.training, space.context.runtime, grid)
    needed, least = grid_peak_bytes(*inputs), LeastMemory.of(*inputs).even()
    assert (least <= needed).all()
    assert (least > 0.5 * needed).any()


@pytest.mark.parametrize("name", ["torch, both orders of axes", "megatron", "uneven stages"])
def test_there_is_room_wherever_some_split_fits(name: str) -> None:
    """Every split of the layers, priced one by one, on a device that holds some of them."""
    space, grid = space_of(name)
    context, depth = space.context, space.context.model.num_hidden_layers
    grid = grid.take(is_free(grid, free=True))
    inputs = (context.model, context.cluster, context.training, context.runtime, grid)
    capacity = float(np.quantile(grid_peak_bytes(*inputs), 0.3))
    room, fitting = LeastMemory.of(*inputs).has_room(capacity), 0
    for row in range(0, len(grid), max(1, len(grid) // 60)):
        ranks = int(grid.pipeline_parallel_size[row])
        cuts = itertools.combinations(range(1, depth), ranks - 1)
        layers = np.array([np.diff([0, *cut, depth]) for cut in cuts], dtype=np.int64)
        again = layers if grid.recompute[row] else np.zeros_like(layers)
        part = grid.take(np.full(len(layers), row))
        fits = (
            completion_bytes(problem_of(context), part, StageColumns.contiguous(layers, again)).max(axis=1) <= capacity
        )
        assert room[row] or not fits.any()
        fitting += bool(fits.any())
    assert fitting > 0


@pytest.mark.parametrize("open_stages", [False, True])
@pytest.mark.parametrize("name", ["torch, every schedule", "megatron"])
def test_no_counts_that_fit_take_less_than_the_recomputation_that_memory_asks_for(name: str, open_stages: bool) -> None:
    """Random counts of recomputed layers on devices that hold a fifth of them, evenly split or anyhow."""
    space = plan_space(**{**WORLDS[name], "model": make_model(layers=8, vocab=512), "sequence": 8192})
    grid = space.grid.take(obeys_rules(space.context, space.grid))
    problem, depth = problem_of(space.context), space.context.model.num_hidden_layers
    grid = grid.take((is_free(grid, free=True) == open_stages) & (grid.recompute == FULL_RECOMPUTE))
    random, asked = np.random.default_rng(7), 0
    for row in range(0, len(grid), max(1, len(grid) // 150)):
        ranks, chunks = int(grid.pipeline_parallel_size[row]), int(grid.num_model_chunks[row])
        layers = np.tile(np.array(even_split(depth, ranks * chunks)), (60, 1))
        if open_stages:
            cuts = [np.sort(random.choice(depth - 1, ranks - 1, replace=False)) + 1 for _ in layers]
            layers = np.array([np.diff([0, *cut, depth]) for cut in cuts])
        stages = StageColumns.contiguous(layers, random.integers(0, layers + 1))
        part, one = grid.take(np.full(len(layers), row)), grid.take(np.array([row]))
        needed = completion_bytes(problem, part, stages).max(axis=1)
        capacity = float(np.quantile(needed, 0.2))
        least = LeastMemory.of(problem.model, problem.cluster, problem.training, problem.runtime, one)
        recomputed = least.recomputed(capacity)
        if open_stages:
            recomputed = (least.recomputed_somewhere(capacity), np.zeros(1))
        fits = needed <= capacity
        assert (stages.recomputed[fits].sum(axis=1) >= recomputed[0] - 1e-6).all()
        seconds = completion_seconds(problem, part, stages)[fits].min()
        assert work_bound(problem, one, recomputed=recomputed) <= seconds
        assert average_seconds(problem, one, recomputed[0]) <= seconds
        asked += bool(recomputed[0][0] > 0)
    assert asked > 10


def test_a_device_for_nothing_has_no_room() -> None:
    space, grid = space_of("uneven stages")
    context, grid = space.context, grid.take(is_free(grid, free=True))
    least = LeastMemory.of(context.model, context.cluster, context.training, context.runtime, grid)
    assert not least.has_room(1.0).any()
    assert least.has_room(1000.0 * GIB).all()

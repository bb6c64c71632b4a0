"""Stage boundaries and recomputed layers: the search against every completion of random small instances, and what bounds say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from planner_worlds import make_cluster, make_model, plan_space

from benchmarks.brute_force import Outcome, run_instance, summary
from benchmarks.brute_force_instances import make_space
from costmodel.completions import StageColumns, completion_bytes, completion_seconds
from costmodel.relaxed import average_seconds, pipeline_factor, relaxed_seconds
from costmodel.runtimes.grid import FULL_RECOMPUTE
from costmodel.runtimes.rules import obeys_rules
from costmodel.work_bound import work_bound
from planner.candidates import sift
from planner.completion import Completer, is_free, problem_of
from planner.evaluation import Search
from planner.partition import best_partitions
from planner.space import completer_of
from planner.stage_table import find_runs, find_window, tabulate

SEEDS = range(24)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [run_instance(seed) for seed in SEEDS]


def test_the_optimum_over_all_completions_lies_between_the_bounds(outcomes: list[Outcome]) -> None:
    assert [outcome for outcome in outcomes if not outcome.right] == []
    assert sum(outcome.optimum is not None for outcome in outcomes) > len(SEEDS) // 2
    assert sum(outcome.gap == 0 for outcome in outcomes) > len(SEEDS) // 4


def test_the_optimum_lies_between_the_bounds_where_sequences_are_cut() -> None:
    found = [run_instance(seed, cut=True) for seed in range(10)]
    assert [outcome for outcome in found if not outcome.right] == []
    assert sum(outcome.optimum is not None for outcome in found) > 5
    grids = [make_space(seed, cut=True).grid for seed in range(10)]
    assert {int(method) for grid in grids for method in np.unique(grid.context_parallel_method)} == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_hundred_instances_where_sequences_are_cut() -> None:
    found = [run_instance(seed, cut=True) for seed in range(1000, 1100)]
    assert [outcome for outcome in found if not outcome.right] == [], summary(found)


@pytest.mark.slow
def test_two_hundred_instances() -> None:
    found = [run_instance(seed) for seed in range(1000, 1200)]
    assert [outcome for outcome in found if not outcome.right] == [], summary(found)


def test_a_wrong_bound_would_be_noticed(outcomes: list[Outcome]) -> None:
    some = next(outcome for outcome in outcomes if outcome.optimum is not None and outcome.lower is not None)
    assert not Outcome(**{**_fields(some), "lower": 1.01 * some.optimum, "upper": 1.02 * some.optimum}).right
    assert not Outcome(**{**_fields(some), "upper": 0.99 * some.optimum, "gap": 0.0}).right


def _fields(outcome: Outcome) -> dict[str, object]:
    return {name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}


def test_relaxed_bounds_hold_for_every_split() -> None:
    """Whatever the boundaries of seven layers on two to six ranks are."""
    space = plan_space(
        model=make_model(layers=7, vocab=64_000), cluster=make_cluster(nodes=3, per_node=4, between=2e9), batch=24,
        allow={"pipeline_schedule": "none,naive,gpipe,1f1b", "recompute": "none", "num_devices_used": "8,12"},
    )  # fmt: skip
    candidates = sift(space)
    problem, grid = problem_of(space.context), candidates.grid
    rows = np.flatnonzero(is_free(grid, free=True))
    bounds = relaxed_seconds(problem, grid)
    rough = np.maximum(work_bound(problem, grid), average_seconds(problem, grid, np.zeros(len(grid))))
    closest: dict[int, float] = {}
    for row in rows[:: max(1, len(rows) // 120)]:
        ranks = int(grid.pipeline_parallel_size[row])
        cuts = itertools.combinations(range(1, 7), ranks - 1)
        layers = np.array([np.diff([0, *cut, 7]) for cut in cuts], dtype=np.int64)
        stages = StageColumns.contiguous(layers, np.zeros_like(layers))
        seconds = completion_seconds(problem, grid.take(np.full(len(layers), row)), stages)
        assert seconds.min() >= max(bounds[row], rough[row]), candidates.summary(int(row))
        closest[ranks] = min(closest.get(ranks, np.inf), seconds.min() / bounds[row])
    assert set(closest) == {2, 3, 4, 6}
    assert max(closest.values()) < 1.2


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 3), (4, 5), (4, 32), (8, 9), (16, 64)])
def test_no_boundaries_beat_an_even_split_of_all_work(ranks: int, micro_batches: int) -> None:
    """Equation (1) of relaxed.py: for more micro-batches than ranks the factor is that of equal stages, (m + p - 1) / p."""
    factor, weight = pipeline_factor("1f1b", ranks, micro_batches)
    assert factor == pytest.approx((micro_batches + ranks - 1) / ranks)
    assert 0 <= weight <= 1 / ranks + 1e-12
    assert pipeline_factor("1f1b", ranks, 1)[0] == 1


def test_runs_of_alternating_layers_are_told_apart() -> None:
    model = make_model(layers=3)
    window = model.layers[0].model_copy(
        update={"count": 1, "attention": model.layers[0].attention.model_copy(update={"window": 128})}
    )
    plain = model.layers[0].model_copy(update={"count": 1})
    runs = find_runs(model.model_copy(update={"layers": (window, plain, window, plain)}), 3)
    assert runs.of.tolist() == [[0, 1, 0, 1], [2, 3, 2, -1], [4, 5, -1, -1]]
    assert find_runs(model, 2).of.tolist() == [[0, 0, 0], [1, 1, -1]]


def test_the_bound_of_a_partition_is_the_least_over_all_of_them() -> None:
    """The dynamic program against every split that the table allows, costs taken from single splits' step times."""
    space = plan_space(
        model=make_model(layers=8, vocab=128_000), batch=32,
        fix={"pipeline_parallel_size": "4", "pipeline_schedule": "1f1b", "recompute": "none"},
    )  # fmt: skip
    candidates = sift(space)
    problem, context = problem_of(space.context), space.context
    for row in np.flatnonzero(candidates.fits)[::7]:
        one = candidates.grid.take(np.array([row]))
        table = tabulate(problem, one, find_window(problem, one), capacity_bytes=context.usable_bytes, counts="all")
        bound = best_partitions(table, one.num_micro_batches, "1f1b")
        cuts = itertools.combinations(range(1, 8), 3)
        layers = np.array([np.diff([0, *cut, 8]) for cut in cuts], dtype=np.int64)
        starts = np.cumsum(layers, axis=1) - layers
        inside = np.array(
            [
                all(
                    size <= len(table.runs.of) and table.allowed[0, table.runs.of[size - 1, start], rank]
                    for rank, (size, start) in enumerate(zip(sizes, first, strict=True))
                )
                for sizes, first in zip(layers, starts, strict=True)
            ]
        )
        stages = StageColumns.contiguous(layers[inside], np.zeros_like(layers[inside]))
        seconds = completion_seconds(problem, one.take(np.zeros(inside.sum(), dtype=np.int64)), stages)
        assert bound.lower[0] <= seconds.min() * (1 + 1e-9)
        assert bound.lower[0] > 0.9 * seconds.min()
        assert tuple(bound.lengths[0]) in {tuple(sizes) for sizes in layers[inside]}


def test_the_fewest_layers_that_fit_are_recomputed() -> None:
    """Of every shown plan one layer less on any rank does not fit, and all stages together are the model."""
    space = make_space(7)
    candidates = sift(space)
    found = Search(candidates, completer_of(space), 10**9)
    problem = problem_of(space.context)
    checked = 0
    for row in np.flatnonzero(candidates.fits):
        if not np.isfinite(found.seconds(int(row))):
            continue
        layers, recomputed = found.stages[int(row)]
        assert layers.sum() == space.context.model.num_hidden_layers
        one = candidates.grid.take(np.array([row]))
        assert completion_bytes(problem, one, StageColumns.contiguous(layers[None], recomputed[None])).max() <= (
            space.context.usable_bytes
        )
        if one.num_model_chunks[0] > 1 or space.recompute_layers != "per_stage":
            continue
        for stage in np.flatnonzero(recomputed):
            fewer = recomputed.copy()
            fewer[stage] -= 1
            needed = completion_bytes(problem, one, StageColumns.contiguous(layers[None], fewer[None]))
            assert needed.max() > space.context.usable_bytes
            checked += 1
    assert checked


@pytest.mark.parametrize("memory", [0.05, 0.2, 0.5, 0.8])
def test_one_number_for_all_stages_is_the_fastest_of_all_numbers(memory: float) -> None:
    """Every number of layers with every split of the window, several candidates together; memory between that of all layers
    recomputed by the leanest (0) and of none by the largest (1).
    """
    space = plan_space(
        model=make_model(layers=9, vocab=32_000), batch=8, sequence=4096, runtime="megatron",
        fix={"pipeline_parallel_size": "2", "pipeline_schedule": "1f1b"},
    )  # fmt: skip
    problem, grid = problem_of(space.context), space.grid.take(np.flatnonzero(obeys_rules(space.context, space.grid)))
    grid = grid.take((grid.recompute == 0) | (grid.recompute == FULL_RECOMPUTE))
    grid = grid.take(np.flatnonzero(grid.num_micro_batches == grid.num_micro_batches[0])[:6])
    assert set(grid.recompute.tolist()) == {0, FULL_RECOMPUTE}
    splits = np.array([[first, 9 - first] for first in range(1, 9)], dtype=np.int64)
    window = find_window(problem, grid)
    inside = window.inside[
        :, window.runs.of[splits - 1, np.stack([0 * splits[:, 0], splits[:, 0]], axis=1)], [0, 1]
    ].all(axis=2)
    ways = [(split, np.minimum(split, number)) for number in range(9) for split in splits]
    stages = StageColumns.contiguous(*(np.array(each) for each in zip(*ways, strict=True)))
    needed, seconds = [], []
    for row in range(len(grid)):
        one = grid.take(np.full(len(ways), row))
        legal = np.tile(inside[row], 9) & ((grid.recompute[row] > 0) | (stages.recomputed == 0).all(axis=1))
        needed.append(np.where(legal, completion_bytes(problem, one, stages).max(axis=1), np.inf))
        seconds.append(completion_seconds(problem, one, stages))
    least, most = np.min(needed), np.max(np.array(needed)[np.isfinite(needed)])
    capacity = float(least + memory * (most - least))
    found = Completer(space.context, capacity, free=True, counts="uniform").best(grid)
    truth = [np.where(fits <= capacity, times, np.inf).min() for fits, times in zip(needed, seconds, strict=True)]
    assert np.isfinite(truth).any()
    assert (np.isfinite(truth) == np.isfinite(found.seconds)).all()
    assert (found.lower <= np.array(truth) * (1 + 1e-9)).all()
    # The bound's boundaries are tried and the even ones, so the fastest may be missed, but never by much.
    assert found.seconds == pytest.approx(np.array(truth), rel=0.02)
    assert (found.seconds >= np.array(truth) * (1 - 1e-9)).all()

"""What trying out the ways to recompute a rank's layers says, against all counts of small instances."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.chunk_counts import Durations
from planner.count_least import tried_out, ways_to_place
from planner.count_relaxation import relaxed_counts
from planner.count_solving import count_problem
from tests.planner.test_chunk_counts import brute_force, worlds

SHARES = [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95]


@pytest.mark.parametrize(
    ("number", "sizes"), [(0, (2, 1)), (3, (2, 0, 2)), (5, (3, 1, 4)), (4, (1, 1, 1, 1)), (5, (2, 2))]
)
def test_all_ways_are_there_once(number: int, sizes: tuple[int, ...]) -> None:
    expected = [way for way in itertools.product(*(range(size + 1) for size in sizes)) if sum(way) == number]
    found = ways_to_place(number, sizes)
    assert found is not None
    assert sorted(map(tuple, found.tolist())) == sorted(expected)


def test_too_many_ways_are_not_listed() -> None:
    assert ways_to_place(40, (10,) * 8) is None


@pytest.mark.parametrize("share", SHARES)
def test_all_counts_that_fit_obey_what_was_tried_out(share: float) -> None:
    completer, one = worlds(share)
    stages = completer._given(one)
    before = count_problem(stages)
    problem = tried_out(stages, before)
    assert (problem.least >= before.least).all()
    counts = np.array(list(itertools.product(range(3), repeat=len(problem.most))), dtype=np.int64)
    fits = stages.bytes_of(counts) <= stages.capacity_bytes
    for rank, held in enumerate(problem.held):
        layers = counts[fits[:, rank]][:, held].sum(axis=1)
        assert layers.min(initial=99) == problem.least[rank] or not len(layers)
    alone = counts[fits.all(axis=1)]
    for held, factors, least in problem.placed():
        assert (alone[:, held] @ factors >= least).all()


@pytest.mark.parametrize("share", SHARES)
def test_the_bound_of_the_graph_only_gets_better_and_still_holds(share: float) -> None:
    completer, one = worlds(share)
    stages, truth = completer._given(one), brute_force(completer, one)
    before = count_problem(stages)
    problem, known = tried_out(stages, before), float(completer.best(one).seconds[0])
    bounds = [relaxed_counts(each, Durations(each), known=known) for each in (before, problem)]
    assert bounds[0] is not None
    assert bounds[1] is not None
    assert bounds[0][0] * (1 - 1e-9) <= bounds[1][0] <= truth * (1 + 1e-9)


def test_some_of_these_instances_are_told_apart() -> None:
    """The rows are not empty: some rank takes more layers than equation (2) says, and some way is excluded."""
    more, placed = 0, 0
    for share in SHARES:
        stages = worlds(share)[0]._given(worlds(share)[1])
        before = count_problem(stages)
        problem = tried_out(stages, before)
        more += int((problem.least > before.least).sum())
        placed += len(list(problem.placed()))
    assert more > 0
    assert placed > 0

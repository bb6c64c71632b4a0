"""The whole graph as a linear program, and small moves of counts: bounds that hold, counts that fit and are no slower."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.completions import StageColumns, completion_seconds
from costmodel.runtimes.grid import Grid
from planner import count_relaxation
from planner.chunk_counts import CountProblem, Durations
from planner.completion import Completer
from planner.count_moves import moved_counts
from planner.count_program import best_counts
from planner.count_relaxation import Means, relaxed_counts, whole_counts
from planner.count_solving import count_problem
from planner.solver import LinearProgram, minimise_linear, minimise_whole
from tests.planner.test_chunk_counts import brute_force, worlds


def problem_of(completer: Completer, one: Grid) -> tuple[CountProblem, Durations]:
    problem = count_problem(completer._given(one))
    return problem, Durations(problem)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_no_counts_beat_the_relaxation_and_no_cuts_do(share: float) -> None:
    """Cuts are rows that follow from the graph's, so with real numbers no number of them is above it, and many come close."""
    completer, one = worlds(share)
    truth = brute_force(completer, one)
    problem, durations = problem_of(completer, one)
    known = completer.best(one)
    relaxed = relaxed_counts(problem, durations, known=float(known.seconds[0]))
    assert relaxed is not None
    lower, counts, _ = relaxed
    assert lower <= truth * (1 + 1e-9)
    assert (counts >= -1e-9).all()
    assert (counts <= problem.most + 1e-9).all()
    # At the real counts that it names the longest path is as long as it says.
    assert float(durations.seconds(durations.of(counts)[None])[0]) == pytest.approx(lower, rel=1e-6)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_lanes_of_short_messages_change_nothing(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    completer, one = worlds(share)
    problem, durations = problem_of(completer, one)
    known = float(completer.best(one).seconds[0])
    assert not count_relaxation._lanes_matter(durations)  # messages are shorter than passes here
    without = relaxed_counts(problem, durations, known=known)
    monkeypatch.setattr(count_relaxation, "_lanes_matter", lambda _: True)
    assert without is not None
    assert without[0] == pytest.approx(relaxed_counts(problem, durations, known=known)[0], rel=1e-9)  # type: ignore[index]


def test_without_a_lack_of_memory_the_relaxation_is_the_step_without_recomputation() -> None:
    completer, one = worlds(1.5)
    problem, durations = problem_of(completer, one)
    nothing = np.zeros((1, 4), dtype=np.int64)
    step = completion_seconds(completer._problem, one, StageColumns.contiguous(np.full((1, 4), 2), nothing))[0]
    relaxed = relaxed_counts(problem, durations, known=2.0 * float(step))
    assert relaxed is not None
    assert relaxed[0] == pytest.approx(float(step), rel=1e-9)
    assert relaxed[1] == pytest.approx(np.zeros(4), abs=1e-9)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_whole_counts_are_the_fastest_that_obey_the_rows(share: float) -> None:
    """Of all counts that obey the rows of memory, written out; they may not fit, so none that fit are faster."""
    completer, one = worlds(share)
    problem, durations = problem_of(completer, one)
    counts = np.array(list(itertools.product(range(3), repeat=4)), dtype=np.int64)
    enough = [
        (counts[:, held] @ problem.saved[held] >= problem.short[rank] * (1 - 1e-12))
        & (counts[:, held].sum(axis=1) >= problem.least[rank])
        for rank, held in enumerate(problem.held)
    ]
    fastest = durations.seconds(durations.of(counts[np.logical_and.reduce(enough)])).min()
    lower, found = whole_counts(problem, durations, known=2.0 * float(fastest), seconds=60.0, nodes=1000)
    assert lower == pytest.approx(fastest, rel=1e-8)
    assert lower <= brute_force(completer, one)
    assert found is not None
    assert float(durations.seconds(durations.of(found[None]))[0]) == pytest.approx(fastest, rel=1e-8)
    beaten = whole_counts(problem, durations, known=0.999 * float(fastest), seconds=60.0, nodes=1000)
    assert beaten == (0.999 * float(fastest), None)


def test_real_cuts_stay_below_the_relaxation() -> None:
    completer, one = worlds(0.5)
    problem, durations = problem_of(completer, one)
    known = completer.best(one)
    relaxed = relaxed_counts(problem, durations, known=float(known.seconds[0]))
    assert relaxed is not None
    start = known.recomputed[0]
    for cuts in (1, 2):
        answer = best_counts(problem, durations, start, upper=np.inf, seconds=60.0, most_cuts=cuts)
        assert answer.lower <= relaxed[0] * (1 + 1e-9)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_a_mean_of_paths_bounds_its_own_candidate_as_its_program_does_and_others_from_below(share: float) -> None:
    """Equation (5) of the candidate itself is tight where its program is; with other durations and memory it still holds."""
    completer, one = worlds(share)
    problem, durations = problem_of(completer, one)
    known = float(completer.best(one).seconds[0])
    relaxed = relaxed_counts(problem, durations, known=known)
    assert relaxed is not None
    means = Means()
    assert means.cuts(problem, durations, known=known) == []
    means.add(problem, durations, relaxed)
    (own,) = means.cuts(problem, durations, known=known)
    assert own.constant + own.slope @ relaxed.counts == pytest.approx(relaxed.lower, rel=1e-8)
    counts = np.array(list(itertools.product(range(3), repeat=4)), dtype=np.float64)
    for slower in (1.0, 0.7, 1.6):
        other = Durations(problem)
        other.plain, other.per_layer = durations.plain * np.array([slower, 1.0, 1.0, 1.0]), durations.per_layer * slower
        steps = other.seconds(other.of(counts))
        (cut,) = means.cuts(problem, other, known=float(steps.max()))
        assert (cut.constant + counts @ cut.slope <= steps * (1 + 1e-9)).all()
        assert cut.constant + relaxed.counts @ cut.slope > 0.5 * steps.min()


def test_means_of_paths_let_paths_bound_as_the_program_does() -> None:
    completer, one = worlds(0.5)
    problem, durations = problem_of(completer, one)
    known = completer.best(one)
    relaxed = relaxed_counts(problem, durations, known=float(known.seconds[0]))
    assert relaxed is not None
    means = Means()
    means.add(problem, durations, relaxed)
    cuts = means.cuts(problem, durations, known=float(known.seconds[0]))
    answer = best_counts(problem, durations, known.recomputed[0], known=cuts, upper=np.inf, seconds=60.0, most_cuts=1)
    assert answer.lower == pytest.approx(relaxed.lower, rel=1e-7)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_moves_keep_what_fits_and_never_slow_it_down(share: float) -> None:
    completer, one = worlds(share)
    stages, (problem, durations) = completer._given(one), problem_of(completer, one)
    for start in itertools.product(range(3), repeat=4):
        counts = np.array(start, dtype=np.int64)
        if stages.fits(counts[None])[0]:
            moved = moved_counts(stages, durations, counts)
            assert stages.fits(moved[None])[0]
            before, after = durations.seconds(durations.of(np.array([counts, moved])))
            assert after <= before
            assert problem.most.shape == moved.shape


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_linear_bound_is_below_every_point_that_obeys_the_rows(seed: int) -> None:
    """Rows that a known point obeys with room to spare: the bound is below its cost, and is the minimum to eight digits."""
    draw = np.random.default_rng(seed)
    size, rows = int(draw.integers(1, 6)), int(draw.integers(1, 8))
    matrix = draw.normal(size=(rows, size))
    point = draw.random(size)
    program = LinearProgram(
        cost=draw.normal(size=size),
        low=np.zeros(size),
        high=np.full(size, 2.0),
        row=np.repeat(np.arange(rows), size),
        column=np.tile(np.arange(size), rows),
        value=matrix.ravel(),
        least=matrix @ point - draw.random(rows),
    )
    answer = minimise_linear(program)
    assert answer is not None
    bound, found, _ = answer
    assert bound <= float(program.cost @ point) + 1e-12
    assert bound == pytest.approx(float(program.cost @ found), rel=1e-6, abs=1e-6)


def test_rows_that_nothing_obeys_have_no_answer() -> None:
    one = np.ones(1)
    program = LinearProgram(
        cost=one, low=0.0 * one, high=one, row=np.zeros(1, dtype=np.int64), column=np.zeros(1, dtype=np.int64),
        value=one, least=2.0 * one,
    )  # fmt: skip
    assert minimise_linear(program) is None


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_whole_minima_are_those_of_all_points(seed: int) -> None:
    draw = np.random.default_rng(seed)
    size, rows = int(draw.integers(1, 5)), int(draw.integers(1, 6))
    matrix, least = draw.integers(-3, 4, size=(rows, size)), draw.integers(-4, 5, size=rows)
    cost = draw.normal(size=size)
    program = LinearProgram(
        cost=cost,
        low=np.zeros(size),
        high=np.full(size, 3.0),
        row=np.repeat(np.arange(rows), size),
        column=np.tile(np.arange(size), rows),
        value=matrix.ravel().astype(np.float64),
        least=least.astype(np.float64),
    )
    points = np.array(list(itertools.product(range(4), repeat=size)))
    inside = points[(points @ matrix.T >= least).all(axis=1)]
    bound, found = minimise_whole(program, whole=size, seconds=float("inf"), nodes=1000)
    if not len(inside):
        assert (bound, found) == (float("inf"), None)
    else:
        assert found is not None
        assert bound == pytest.approx((inside @ cost).min(), abs=1e-7)
        assert cost @ np.rint(found) == pytest.approx((inside @ cost).min(), abs=1e-7)

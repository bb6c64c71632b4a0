"""The counts of recomputed layers of one candidate with several chunks a rank, with as much work as its bound asks for.

A few paths first (chunk_counts.py), because they exclude most candidates; then better counts by small moves (count_moves.py),
which ways fit in a rank (count_least.py) and the bound of the whole graph (count_relaxation.py). Where more work is allowed, the
whole graph with whole numbers, or more paths where it is too large.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.chunk_counts import CountProblem, Durations, best_counts
from planner.count_least import tried_out
from planner.count_moves import moved_counts
from planner.count_relaxation import relaxed_counts, whole_counts
from planner.given_stages import GivenStages

IntArray = NDArray[np.int64]
_FIRST_CUTS = 4
_NEARLY = 0.97
"""Share of what a bound must reach that paths have to reach for the whole graph to do the rest before more is found out."""


def count_problem(given: GivenStages) -> CountProblem:
    """What is to be solved of one candidate."""
    short = given.short(working_set=True)
    return CountProblem(
        problem=given.problem, one=given.grid, layers=given.layers[0], most=given.most[0], held=given.held,
        saved=given.saved[0], short=short[0], least=given.least(short)[0],
        fewest=np.zeros_like(given.most[0]), largest=given.most[0],
    )  # fmt: skip


def solve_counts(
    given: GivenStages,
    counts: IntArray,
    evaluate: Callable[[IntArray], float],
    *,
    upper: float,
    seconds: float,
    most_cuts: int,
) -> float:
    """Seconds that no counts of the candidate beat.

    Args:
        given: the candidate.
        counts: recomputed layers [V] of a completion that fits.
        evaluate: takes counts that may be better and gives the least step time of all that it took.
        upper: step time of the best plan known; a bound beyond it is good enough.
        seconds: time limit.
        most_cuts: programs of paths at most; as many nodes of branch and bound where it is more than a few.
    """
    started, problem = time.perf_counter(), count_problem(given)
    durations = Durations(problem)
    best, known = counts, evaluate(counts)
    first = [counts.astype(np.float64)]
    cuts = min(_FIRST_CUTS, most_cuts)
    answer = best_counts(problem, durations, first, upper=min(upper, known), seconds=seconds, most_cuts=cuts)
    for tried in _promising(answer.counts, durations, known):
        before, known = known, evaluate(tried)
        best = tried if known < before else best
    lower = answer.lower
    if _NEARLY * min(upper, known) <= lower < min(upper, known):
        lower = max(lower, _of_the_graph(problem, durations, known=known))
    if lower >= min(upper, known):
        return lower
    best = moved_counts(given, durations, best)
    known = evaluate(best)
    problem = tried_out(given, problem)
    of_graph = _of_the_graph(problem, durations, known=known)
    lower = max(lower, of_graph)
    left = seconds - (time.perf_counter() - started)
    if most_cuts <= cuts or left <= 0 or lower >= min(upper, known):
        return lower
    upper = min(upper, known)
    if np.isinf(of_graph):
        return max(lower, _by_paths(problem, durations, best, evaluate, upper=upper, seconds=left, cuts=most_cuts))
    bound, better = whole_counts(problem, durations, known=upper, seconds=left, nodes=most_cuts)
    if better is not None:
        evaluate(better)
    return max(lower, bound)


def _promising(counts: Sequence[IntArray], durations: Durations, known: float) -> list[IntArray]:
    """Of some counts those that may be faster than is known: durations are at most the real ones."""
    if not counts:
        return []
    seconds = durations.seconds(durations.of(np.array(counts)))
    return [each for each, least in zip(counts, seconds.tolist(), strict=True) if least < known]


def _of_the_graph(problem: CountProblem, durations: Durations, *, known: float) -> float:
    """The bound of the whole graph as a linear program; minus infinity where there is none."""
    relaxed = relaxed_counts(problem, durations, known=known)
    return -np.inf if relaxed is None else relaxed[0]


def _by_paths(
    problem: CountProblem,
    durations: Durations,
    best: IntArray,
    evaluate: Callable[[IntArray], float],
    *,
    upper: float,
    seconds: float,
    cuts: int,
) -> float:
    """The bound of more paths, from that of the best counts on; what is tried is evaluated."""
    start = [best.astype(np.float64)]
    answer = best_counts(problem, durations, start, upper=upper, seconds=seconds, most_cuts=cuts)
    for tried in _promising(answer.counts, durations, evaluate(best)):
        evaluate(tried)
    return answer.lower

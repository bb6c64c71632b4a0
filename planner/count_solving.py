"""The counts of recomputed layers of one candidate with several chunks a rank, with as much work as its bound asks for.

A few paths first (count_program.py), with the means of paths that other candidates' graphs came to (count_relaxation.py), as they
exclude most candidates; then better counts by small moves (count_moves.py), which ways fit in a rank (count_least.py) and the
bound of the whole graph. Where more work is allowed, the whole graph with whole numbers, or more paths where it is too large.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.chunk_counts import CountProblem, Cut, Durations
from planner.count_least import tried_out
from planner.count_moves import moved_counts
from planner.count_program import best_counts
from planner.count_relaxation import Means, is_solved_whole, relaxed_counts, whole_counts
from planner.given_stages import GivenStages

IntArray = NDArray[np.int64]
_FIRST_CUTS = 4


def count_problem(given: GivenStages) -> CountProblem:
    """What is to be solved of one candidate."""
    short = given.short(working_set=True)
    return CountProblem(
        problem=given.problem, one=given.grid, layers=given.layers[0], most=given.most[0], held=given.held,
        saved=given.saved[0], short=short[0], least=given.least(short)[0],
        fewest=np.zeros_like(given.most[0]), largest=given.most[0],
    )  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class CountSolving:
    """One candidate that is worked on.

    ``best`` [V]: recomputed layers of a completion that fits, ``known`` its step time; ``evaluate`` takes counts that may be
    better and gives the least step time of all that are known then. ``upper``: step time of the best plan known; a bound beyond
    it is good enough. ``seconds``: time limit; ``most_cuts``: programs of paths at most, as many nodes of branch and bound where
    it is more than a few. ``means``: of paths that other candidates' graphs came to; what this one's comes to is added.
    """

    given: GivenStages
    best: IntArray
    known: float
    evaluate: Callable[[IntArray], float]
    upper: float
    seconds: float
    most_cuts: int
    means: Means
    lower: float = -np.inf
    problem: CountProblem = field(init=False)
    durations: Durations = field(init=False)
    cuts: tuple[Cut, ...] = ()
    _started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.problem = count_problem(self.given)
        self.durations = Durations(self.problem)

    def solve(self) -> float:
        """Seconds that no counts of the candidate beat."""
        self.cuts = tuple(self.means.cuts(self.problem, self.durations, known=self.known))
        self._solve_paths(min(_FIRST_CUTS, self.most_cuts))
        if self._done:
            return self.lower
        self._move()
        self.problem = tried_out(self.given, self.problem)
        self._solve_paths(1)
        self._solve_graph()
        if self.most_cuts > _FIRST_CUTS and self._left > 0:
            self._solve_all()
        return self.lower

    @property
    def _goal(self) -> float:
        return min(self.upper, self.known)

    @property
    def _done(self) -> bool:
        return self.lower >= self._goal

    @property
    def _left(self) -> float:
        return self.seconds - (time.perf_counter() - self._started)

    def _solve_paths(self, most_cuts: int) -> None:
        """Raise the bound by paths, from that of the best counts on; what is tried is evaluated where it may be faster: durations
        are at most the real ones.
        """
        answer = best_counts(
            self.problem, self.durations, self.best,
            known=self.cuts, upper=self._goal, seconds=self._left, most_cuts=most_cuts,
        )  # fmt: skip
        self.cuts, self.lower = answer.cuts, max(self.lower, answer.lower)
        if answer.counts:
            seconds = self.durations.seconds(self.durations.of(np.array(answer.counts)))
            for tried, least in zip(answer.counts, seconds.tolist(), strict=True):
                if least < self.known:
                    self._try(tried)

    def _solve_graph(self) -> None:
        """Raise the bound by the whole graph as a linear program, if that is asked for and it is small enough."""
        if self._done:
            return
        relaxed = relaxed_counts(self.problem, self.durations, known=self.known)
        if relaxed is not None:
            self.lower = max(self.lower, relaxed.lower)
            self.means.add(self.problem, self.durations, relaxed)

    def _move(self) -> None:
        moved = moved_counts(self.given, self.durations, self.best)
        if (moved != self.best).any():
            self._try(moved)

    def _solve_all(self) -> None:
        """All counts, as far as time and nodes allow."""
        if self._done:
            return
        if not is_solved_whole(self.problem):
            self._solve_paths(self.most_cuts)
            return
        bound, better = whole_counts(
            self.problem, self.durations, known=self._goal, seconds=self._left, nodes=self.most_cuts
        )
        if better is not None:
            self._try(better)
        self.lower = max(self.lower, bound)

    def _try(self, counts: IntArray) -> None:
        before, self.known = self.known, self.evaluate(counts)
        if self.known < before:
            self.best = counts

"""Programs over the counts of recomputed layers of one candidate, and the least step time by a few of its paths.

The program is (3) of chunk_counts.py. With real numbers its answer is lower and quickly found, and goes to the solver as arrays;
with whole numbers, once those are proven, it is PuLP's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.chunk_counts import SLACK, CountProblem, Cut, Durations, longest_path_cut

if TYPE_CHECKING:
    from planner.solver import LinearProgram

IntArray = NDArray[np.int64]
Vector = NDArray[np.float64]
_CLOSE = 1e-5


@dataclass(slots=True, eq=False)
class Rows:
    """Rows sum of value x column >= least, gathered in blocks: ``columns`` and ``values`` [rows, terms]."""

    row: list[IntArray] = field(default_factory=list)
    column: list[IntArray] = field(default_factory=list)
    value: list[Vector] = field(default_factory=list)
    least: list[Vector] = field(default_factory=list)
    count: int = 0

    def add(self, columns: IntArray, values: Vector, least: Vector) -> None:
        """More of them; ``values`` and ``least`` may be the same for all."""
        number, terms = columns.shape
        self.row.append(np.repeat(np.arange(self.count, self.count + number), terms))
        self.column.append(columns.ravel())
        self.value.append(np.broadcast_to(values, columns.shape).ravel())
        self.least.append(np.broadcast_to(least, number))
        self.count += number

    def add_memory(self, counts: CountProblem) -> None:
        """(2) of chunk_counts.py and of count_least.py, bytes scaled to the largest saving; the counts are the first columns."""
        scale = max(1.0, float(counts.saved.max()))
        for rank, held in enumerate(counts.held):
            if counts.short[rank] > 0:
                self.add(held[None], counts.saved[held][None] / scale, counts.short[rank : rank + 1] / scale)
                self.add(held[None], np.ones((1, len(held))), counts.least[rank : rank + 1].astype(np.float64))
        for stages, factors, least in counts.placed():
            self.add(stages[None], factors[None], np.array([least]))

    def minimised(self, *, cost: Vector, low: Vector, high: Vector) -> LinearProgram:
        """Minimise ``cost`` x between ``low`` and ``high`` where x obeys the rows."""
        from planner.solver import LinearProgram

        row, column, value = np.concatenate(self.row), np.concatenate(self.column), np.concatenate(self.value)
        used, least = value != 0.0, np.concatenate(self.least)
        return LinearProgram(
            cost=cost, low=low, high=high, row=row[used], column=column[used], value=value[used], least=least
        )


@dataclass(frozen=True, slots=True, eq=False)
class CountAnswer:
    """``lower``: seconds that no counts beat; ``counts``: those tried, each the solution of a program; ``cuts``: its paths."""

    lower: float
    counts: tuple[IntArray, ...]
    cuts: tuple[Cut, ...]


def best_counts(
    counts: CountProblem,
    durations: Durations,
    start: IntArray,
    *,
    known: Sequence[Cut] = (),
    upper: float,
    seconds: float,
    most_cuts: int,
) -> CountAnswer:
    """Solve (3), adding a cut per solution, until no counts can be below ``upper``, or it is the optimum, or time is over.

    Args:
        counts: the candidate.
        durations: of its operations.
        start: counts [V] whose longest path is the first cut.
        known: more cuts.
        upper: step time of the best plan known.
        seconds: time limit.
        most_cuts: paths at most, a program each: with real numbers, and with whole ones when those are proven.
    """
    started, at = time.perf_counter(), start.astype(np.float64)
    cuts, tried = list(known), list[IntArray]()
    lower, whole = -np.inf, False
    for _ in range(most_cuts):
        cut, length = longest_path_cut(durations, at)
        if length <= lower * (1 + _CLOSE):
            if whole:
                break
            whole = True
        if cut is None:
            break
        cuts.append(cut)
        left = seconds - (time.perf_counter() - started)
        solved = _solve(counts, cuts, whole=whole, seconds=left) if left > 0 else None
        if solved is None:
            break
        lower = max(lower, solved[0])
        if solved[1] is None or lower >= upper:
            break
        at = solved[1]
        tried.append(np.rint(at).astype(np.int64))
    return CountAnswer(lower * (1 - SLACK) if np.isfinite(lower) else lower, tuple(tried), tuple(cuts))


def _solve(counts: CountProblem, cuts: list[Cut], *, whole: bool, seconds: float) -> tuple[float, Vector | None] | None:
    """A bound on (3) and the counts that reach it; None where there are none."""
    from planner.solver import minimise, minimise_linear

    unit = max(cut.constant for cut in cuts)
    if not whole and (answer := minimise_linear(_paths_and_memory(counts, cuts, unit))) is not None:
        return answer.bound * unit, answer.at[:-1]
    solved = minimise(_in_pulp(counts, cuts, whole=whole), seconds=seconds)
    if solved is None or solved.values is None:
        return None if solved is None else (solved.bound, None)
    return solved.bound, np.array([solved.values.get(f"n_{stage:04d}", 0.0) for stage in range(len(counts.layers))])


def _paths_and_memory(counts: CountProblem, cuts: list[Cut], unit: float) -> LinearProgram:
    """Program (3) with real numbers: the counts first, z last, in units of ``unit`` seconds."""
    stages, rows = len(counts.layers), Rows()
    columns = np.broadcast_to(np.arange(stages + 1), (len(cuts), stages + 1))
    slopes = np.array([cut.slope for cut in cuts]) / unit
    constants = np.array([cut.constant for cut in cuts]) / unit
    rows.add(columns, np.column_stack([-slopes, np.ones(len(cuts))]), constants)
    rows.add_memory(counts)
    cost = np.zeros(stages + 1)
    cost[-1] = 1.0
    high = np.append(counts.most, (constants + slopes @ counts.most).max())
    return rows.minimised(cost=cost, low=np.zeros(stages + 1), high=high)


def _in_pulp(counts: CountProblem, cuts: list[Cut], *, whole: bool) -> object:
    """Program (3) in PuLP."""
    import pulp

    rows = Rows()
    rows.add_memory(counts)
    program = pulp.LpProblem("counts", pulp.LpMinimize)
    z = program.add_variable("z")
    kind = pulp.LpInteger if whole else pulp.LpContinuous
    n = [program.add_variable(f"n_{stage:04d}", 0, int(most), cat=kind) for stage, most in enumerate(counts.most)]
    program += z
    for cut in cuts:
        program += z - pulp.lpDot(cut.slope.tolist(), n) >= cut.constant
    for columns, values, least in zip(rows.column, rows.value, rows.least, strict=True):
        program += pulp.lpDot(values.tolist(), [n[stage] for stage in columns]) >= float(least[0])
    return program

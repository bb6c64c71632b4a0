"""Stage boundaries of a pipeline of one chunk a rank: a bound on all of them, and boundaries that reach it.

With a table of stages (stage_table.py) for every rank s and run of layers from layer i on, m micro-batches, k = p - 1 - s and
c the messages:

    (1) P(s, i) = least sum of t + 2 c over all ways to give the layers before i to the s ranks before, P' of f + c alone;
        D(s, i) = least sum of t + 2 c over the ways to give the layers from i on to the ranks from s on
    (2) lane(s, i, run) of 1f1b = equation (3) of paths.py with this run on s and (1) for the ranks before and after it. Where
        the boundaries of a plan give s this run, its own sums are at least (1) and lane grows with them, so the step takes at
        least lane, whatever the other boundaries are. gpipe: all passes once and m - 1 more on s. naive: all passes m times
    (3) cost(s, i, run) = lane + what follows: the reduction and the optimizer of s after P', those of rank 0 after P. Of other
        ranks than s the least is taken; a step that clips waits for the slowest optimizer, at least the least slowest one
    (4) bound = min over boundaries of the max over s of cost: a shortest path through (s, i) in the (min, max) algebra
    (5) of the boundaries that reach (4), those with the least sum of costs: the other lanes stay short too
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import ROUNDING
from planner.stage_table import Allowed, Cube, IntArray, StageTable

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """Of n candidates ``lower`` [n], seconds that no boundaries beat, infinite where none fit, and ``lengths`` [n, p]: layers
    of the stages of boundaries that reach it, equation (5).
    """

    lower: Matrix
    lengths: IntArray


def best_partitions(table: StageTable, micro_batches: IntArray, schedule: str) -> Partitions:
    """Equations (4) and (5) for every candidate of a table, under 1f1b, gpipe or naive."""
    costs = Costs(table, micro_batches.astype(np.float64)[:, None], schedule).all()
    lower, _ = _shortest(table, costs, np.maximum)
    most = (lower * (1.0 + 1e-9))[:, None]
    _, choices = _shortest(table, [np.where(cost <= most, cost, np.inf) for cost in costs], np.add)
    return Partitions(lower * (1.0 - ROUNDING), _lengths(choices, np.isfinite(lower)))


def some_fit(table: StageTable) -> Allowed:
    """Candidates of which some boundaries fit [n]."""
    costs = [
        _at(table, np.zeros_like(table.forward), table.runs.places[2], rank) for rank in range(table.forward.shape[2])
    ]
    return np.isfinite(_shortest(table, costs, np.add)[0])


def least_with_room(table: StageTable, micro_batches: IntArray, schedule: str) -> Matrix:
    """Equation (4) of every candidate if all stages of its window fitted [n]."""
    roomy = replace(table, allowed=table.inside)
    costs = Costs(roomy, micro_batches.astype(np.float64)[:, None], schedule).all()
    return np.asarray(_shortest(roomy, costs, np.maximum)[0] * (1.0 - ROUNDING))


def least_slowest(table: StageTable, seconds: Cube) -> Matrix:
    """The least over all boundaries of the largest ``seconds`` [n, R, p] of a stage; [n]."""
    costs = [_at(table, seconds, table.runs.places[2], rank) for rank in range(seconds.shape[2])]
    return _shortest(table, costs, np.maximum)[0]


def least_behind(table: StageTable, costs: list[Matrix]) -> list[Matrix]:
    """The least that the largest cost of the ranks from each on can be, by their first layer [n, L + 1]; one more of no ranks."""
    worst = [_only(table, last=True, value=-np.inf)]
    for cost in reversed(costs):
        worst.insert(0, _before(table, np.maximum(worst[0][:, table.runs.places[1]], cost)))
    return worst


def _only(table: StageTable, *, last: bool, value: float) -> Matrix:
    """Infinite at all boundaries but before the first layer or behind the last one [n, L + 1]."""
    result = np.full((len(table.forward), table.runs.of.shape[1] + 1), np.inf)
    result[:, -1 if last else 0] = value
    return result


def _before(table: StageTable, reached: Matrix) -> Matrix:
    """The least of places [n, T] by their first layer [n, L + 1]."""
    least = table.runs.by_start(reached).min(axis=1)
    return np.concatenate([least, np.full((len(least), 1), np.inf)], axis=1)


def _at(table: StageTable, seconds: Cube, run: IntArray, rank: int) -> Matrix:
    """Seconds of runs on a rank [n, starts], infinite where they are not allowed."""
    return np.where(table.allowed[:, run, rank], seconds[:, run, rank], np.inf)


def _shortest(table: StageTable, costs: list[Matrix], join: np.ufunc) -> tuple[Matrix, list[IntArray]]:
    """Least joined costs of all stages [n], and for every rank the length of its stage by where it ends [n, L + 1]."""
    best, choices = _only(table, last=False, value=0.0 if join is np.add else -np.inf), []
    for cost in costs:
        reached = table.runs.by_end(join(best[:, table.runs.places[0]], cost))
        best = reached.min(axis=1)
        choices.append(reached.argmin(axis=1) + 1)
    return best[:, -1], choices


def _lengths(choices: list[IntArray], possible: NDArray[np.bool_]) -> IntArray:
    """Walk back from the last layer; 0 where nothing fits."""
    candidates, end = np.arange(len(possible)), np.full(len(possible), choices[0].shape[1] - 1)
    lengths = np.zeros((len(possible), len(choices)), dtype=np.int64)
    for rank in range(len(choices) - 1, -1, -1):
        lengths[:, rank] = choices[rank][candidates, end] * possible
        end = end - lengths[:, rank]
    return lengths


@dataclass(slots=True, eq=False)
class Costs:
    """Equations (1) to (3)."""

    table: StageTable
    micro_batches: Matrix  # [n, 1]
    schedule: str
    before: list[Matrix] = field(init=False)  # P by rank [n, L + 1]
    down: list[Matrix] = field(init=False)  # P'
    behind: list[Matrix] = field(init=False)  # D
    ends: tuple[Matrix, Matrix, Matrix] = field(init=False)  # least start and rest of rank 0, least slowest optimizer

    def __post_init__(self) -> None:
        table = self.table
        both = table.forward + table.backward
        self.before = self._sums(both, 2.0 * table.transfer)
        self.down = self._sums(table.forward, table.transfer)
        self.behind = self._sums_behind(both, 2.0 * table.transfer)
        first = np.where(table.allowed[:, :, 0], table.start[:, :, 0], np.inf).min(axis=1)[:, None]
        follows = table.after[:, :, 0] + (0.0 if table.clips else table.optimizer[:, :, 0])
        last = np.where(table.allowed[:, :, 0], follows, np.inf).min(axis=1)[:, None]
        self.ends = (first, last, least_slowest(table, table.optimizer)[:, None])

    def all(self) -> list[Matrix]:
        """Cost of every rank at all places, [n, T] each."""
        return [
            self._cost(rank, *self.table.runs.places, ends=self.ends) for rank in range(self.table.forward.shape[2])
        ]

    def one(self, rank: int, length: int, first: int, run: int, *, before: float, down: float) -> float:
        """Equation (3) of the first candidate, one rank and run, with the sums of the ranks before as they are."""
        cost = self._cost(
            rank,
            np.array([first]),
            np.array([first + length]),
            np.array([run]),
            ends=self.ends,
            real=(np.array([[before]]), np.array([[down]])),
        )
        return float(cost[0, 0])

    def _cost(
        self,
        rank: int,
        first: IntArray,
        end: IntArray,
        run: IntArray,
        *,
        ends: tuple[Matrix, Matrix, Matrix],
        real: tuple[Matrix, Matrix] | None = None,
    ) -> Matrix:
        """Equation (3) of one rank at some places; ``real``: P and P' as they are, where they are known."""
        table, (start, last, slowest) = self.table, ends
        forward, backward = table.forward[:, run, rank], table.backward[:, run, rank]
        after, optimizer = table.after[:, run, rank], table.optimizer[:, run, rank]
        behind = self.behind[rank + 1][:, end]
        before, down = real or (self.before[rank][:, first], self.down[rank][:, first])
        possible = table.allowed[:, run, rank] & np.isfinite(before) & np.isfinite(behind)
        behind, before = np.where(possible, behind, 0.0), np.where(possible, before, 0.0)
        if rank == 0:
            start, last = table.start[:, run, 0], after + (0.0 if table.clips else optimizer)
        at_end = np.maximum(optimizer, slowest) if table.clips else 0.0
        m = self.micro_batches
        if self.schedule == "1f1b":
            lane = m * (forward + backward) + self._gain(rank, forward, backward, behind)
            own = down + lane + after + (0.0 if table.clips else optimizer)
            return np.where(possible, start + np.maximum(before + lane + last, own) + at_end, np.inf)
        once = before + forward + backward + behind
        again = (m - 1.0) * (once if self.schedule == "naive" else forward + backward)
        return np.where(possible, start + once + again + last + at_end, np.inf)

    def _gain(self, rank: int, forward: Matrix, backward: Matrix, behind: Matrix) -> Matrix:
        """Trips of equation (3) of paths.py."""
        m, hops = self.micro_batches, self.table.forward.shape[2] - 1.0 - rank
        skipped = np.minimum(hops, m - 1.0)
        first = np.maximum(0.0, behind - skipped * forward)
        last = np.maximum(0.0, behind - skipped * backward)
        between = np.maximum(0.0, (m - 1.0) // (hops + 1.0) - 1.0) * np.maximum(
            0.0, behind - hops * (forward + backward)
        )
        return np.asarray(np.where(m >= hops + 2.0, first + last + between, np.maximum(first, last)))

    def _sums(self, seconds: Cube, messages: Matrix) -> list[Matrix]:
        """Least sums of the ranks before each and of the messages to it."""
        table, (first, _, run) = self.table, self.table.runs.places
        sums = [_only(table, last=False, value=0.0)]
        for rank in range(seconds.shape[2] - 1):
            reached = sums[-1][:, first] + _at(table, seconds, run, rank) + messages[:, rank : rank + 1]
            sums.append(table.runs.by_end(reached).min(axis=1))
        return sums

    def _sums_behind(self, seconds: Cube, messages: Matrix) -> list[Matrix]:
        """Least sums of the ranks from each on and of the messages to it; one more, of no ranks, at the end."""
        table, (_, end, run) = self.table, self.table.runs.places
        sums = [_only(table, last=True, value=0.0)]
        for rank in range(seconds.shape[2] - 1, 0, -1):
            reached = sums[0][:, end] + _at(table, seconds, run, rank) + messages[:, rank - 1 : rank]
            sums.insert(0, _before(table, reached))
        return [sums[0], *sums]

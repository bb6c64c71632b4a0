"""Boundaries of one candidate with one chunk a rank, branch by branch, until none can beat the best plan known.

Stages are given their runs from the first rank on. A branch is left as soon as the cost of equation (3) of partition.py, now with
the real sums of the ranks before instead of the least ones, or the least that the ranks behind can reach, is not below the best
time. What is left at the end are whole boundaries, whose step times are computed exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.partition import Costs, least_behind
from planner.stage_table import IntArray, StageTable

Matrix = NDArray[np.float64]
Evaluate = Callable[[IntArray], NDArray[np.float64]]
_TOGETHER = 256


@dataclass(slots=True)
class Branching:
    """``evaluate``: step times [c] of boundaries, lengths [c, p]. ``upper``: seconds to beat.

    ``budget``: branches that may be looked at.
    """

    table: StageTable
    costs: Costs
    evaluate: Evaluate
    upper: float
    budget: int
    best: IntArray | None = None
    waiting: list[list[int]] = field(default_factory=list)
    behind: list[NDArray[np.float64]] = field(init=False)

    def __post_init__(self) -> None:
        self.behind = [worst[0] for worst in least_behind(self.table, self.costs.all())]

    def run(self) -> bool:
        """Whether all branches were looked at: then nothing is faster than ``upper``, which ``best`` reaches if it changed."""
        done = True
        for lengths in self._complete([], 0.0, 0.0):
            self.waiting.append(lengths)
            if len(self.waiting) == _TOGETHER:
                self._flush()
        self._flush()
        if self.budget <= 0:
            done = False
        return done

    def _flush(self) -> None:
        if self.waiting:
            lengths = np.array(self.waiting, dtype=np.int64)
            seconds = self.evaluate(lengths)
            first = int(np.argmin(seconds))
            if seconds[first] < self.upper:
                self.upper, self.best = float(seconds[first]), lengths[first]
            self.waiting = []

    def _complete(self, lengths: list[int], before: float, down: float) -> Iterator[list[int]]:
        """All boundaries that begin with ``lengths`` and may be faster, likely ones first."""
        rank, first = len(lengths), sum(lengths)
        ranks, depth = self.table.forward.shape[2], self.table.runs.of.shape[1]
        if rank == ranks:
            if first == depth:
                yield lengths
            return
        options = self._options(rank, first, before, down)
        for _, length, run in options:
            self.budget -= 1
            if self.budget <= 0:
                return
            table = self.table
            passes = float(table.forward[0, run, rank] + table.backward[0, run, rank])
            message = float(table.transfer[0, rank]) if rank < ranks - 1 else 0.0
            after = before + passes + 2.0 * message
            yield from self._complete([*lengths, length], after, down + float(table.forward[0, run, rank]) + message)

    def _options(self, rank: int, first: int, before: float, down: float) -> list[tuple[float, int, int]]:
        """(bound, length, run) of the stages that a rank may have from layer ``first`` on, best first."""
        found = []
        for length, runs in enumerate(self.table.runs.of[:, first].tolist(), start=1):
            if runs < 0 or not self.table.allowed[0, runs, rank]:
                continue
            rest = self.behind[rank + 1][first + length]
            if rest >= self.upper:
                continue
            bound = max(rest, self.costs.one(rank, length, first, runs, before=before, down=down))
            if bound < self.upper * (1 - 1e-12):
                found.append((bound, length, runs))
        return sorted(found)

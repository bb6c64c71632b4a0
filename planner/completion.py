"""The best completion of a candidate: where its stages end and how many layers of each are recomputed.

A candidate of the grid leaves both open. Its declared completions are

    boundaries    one chunk a rank, where the runtime can and nothing is stated: all contiguous ones inside the window of
                  stage_table.py; otherwise the even split, or the stated layers
    counts        of recomputed layers, the first of each virtual stage: any (``per_stage``), one number for all stages
                  (``uniform``, of whole layers) or all layers (``all``), as the runtime can and the space says; all layers under
                  schedules that split the backward

Whether a rank fits depends on the rank alone, memory falls and time rises with every further recomputed layer. So for given
boundaries and one chunk a rank the fewest layers that fit are best, rank by rank, and the step time with them is exact. With
several chunks it is open which of them recompute: given_stages.py bounds and count_solving.py solves it. Boundaries are found and
bounded by partition.py and exhausted by branching.py.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.completions import (
    StageColumns,
    completion_bytes,
    completion_seconds,
    tables_of,
)
from costmodel.runtimes.grid import FULL_RECOMPUTE, SCHEDULES, Grid
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.rules import RuleContext
from costmodel.setting import Matrix, Problem
from costmodel.split_in_flight import splits_backward
from planner.branching import Branching
from planner.count_relaxation import Means
from planner.count_solving import CountSolving
from planner.given_stages import GivenStages
from planner.partition import Costs, best_partitions, least_with_room, some_fit
from planner.room import has_room
from planner.stage_table import StageTable, Window, find_window, stages_of_lengths, tabulate

_TOGETHER = 64
IntArray = NDArray[np.int64]
Column = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Refined:
    """Of n candidates that share schedule, ranks and chunks: step time [n] of the best completion found, a bound on all of them
    [n], both infinite where none fits, the bytes [n] of its fullest device, and its layers and recomputed layers [n, V].
    """

    seconds: Column
    lower: Column
    needed_bytes: Column
    layers: IntArray
    recomputed: IntArray

    @staticmethod
    def nothing(rows: int, stages: int) -> Refined:
        """No completion of any candidate."""
        infinite, none = np.full(rows, np.inf), np.zeros((rows, stages), dtype=np.int64)
        return Refined(infinite, infinite.copy(), infinite.copy(), none, none.copy())

    def keep(self, rows: IntArray, other: Refined) -> None:
        """Take ``other`` for some rows where it is faster, and the smaller bound: both are of parts of the completions."""
        better = other.seconds < self.seconds[rows]
        for name in ("seconds", "needed_bytes", "layers", "recomputed"):
            getattr(self, name)[rows[better]] = getattr(other, name)[better]
        self.lower[rows] = np.minimum(self.lower[rows], other.lower)


@dataclass(frozen=True, slots=True)
class Completer:
    """Completes candidates of a space for devices of ``capacity_bytes``.

    ``free``: whether boundaries may be uneven; ``counts``: as in the module's docstring; ``means``: what the graphs of some
    candidates say of others.
    """

    context: RuleContext
    capacity_bytes: float
    free: bool
    counts: str
    means: Means = field(default_factory=Means)

    def best(self, grid: Grid) -> Refined:
        """Complete candidates that share schedule, ranks and chunks."""
        found = Refined.nothing(len(grid), int(grid.pipeline_parallel_size[0] * grid.num_model_chunks[0]))
        for rows, completer in self._alike(grid):
            part = grid.take(rows)
            whole = completer._partitioned(part) if self._is_free(grid) else completer._as_given(part)
            found.keep(rows, whole)
        return found

    def bound(self, grid: Grid) -> Column:
        """What is quickly known of all completions of candidates that share schedule, ranks and chunks [n]: seconds that they
        take at least, infinite where none fits, minus infinity where nothing is known.
        """
        known = np.full(len(grid), -np.inf)
        for rows, completer in self._alike(grid):
            part = grid.take(rows)
            if self._is_free(grid):
                known[rows] = np.where(has_room(self._problem, part, self.capacity_bytes), -np.inf, np.inf)
            elif completer.counts == "per_stage" and part.recompute.any():
                given = self._given(part)
                known[rows] = given.lower(given.least(given.short(working_set=False)))
        return known

    def branched(self, one: Grid, *, upper: float, budget: int) -> Refined | None:
        """All boundaries of one candidate that may be faster than ``upper``, branching.py.

        Args:
            one: a candidate whose boundaries are open.
            upper: step time of the best plan known.
            budget: branches that may be looked at.

        Returns:
            None when the budget was too small.
        """
        ((_, completer),) = self._alike(one)
        if completer.counts == "uniform" and one.recompute[0]:
            return None
        table = completer._table(one, completer._window(one), completer.counts)
        costs = Costs(table, one.num_micro_batches.astype(np.float64)[:, None], _schedule(one))

        def evaluate(lengths: IntArray) -> Column:
            rows = np.zeros(len(lengths), dtype=np.int64)
            inside, columns = stages_of_lengths(table, rows, lengths)
            assert inside.all()
            return completion_seconds(self._problem, one.take(rows), columns)

        branching = Branching(table, costs, evaluate, upper, budget)
        if not branching.run():
            return None
        found = Refined.nothing(1, int(one.pipeline_parallel_size[0]))
        if branching.best is not None:
            self._try(one, table, branching.best[None], found)
        found.lower[:] = branching.upper
        return found

    def solved(
        self, one: Grid, counts: IntArray, *, known: float, upper: float, seconds: float, most_cuts: int
    ) -> Refined:
        """The counts of one candidate with several chunks a rank by count_solving.py.

        Args:
            one: the candidate.
            counts: recomputed layers [V] of a completion that fits.
            known: its step time; of counts that are not faster the answer has only the bound.
            upper: step time of the best plan known; a bound beyond it is good enough.
            seconds: time limit.
            most_cuts: programs at most.
        """
        given = self._given(one)
        found = Refined.nothing(1, given.layers.shape[1])

        def evaluate(tried: IntArray) -> float:
            found.keep(np.zeros(1, dtype=np.int64), self._evaluate(one, given.columns(tried[None])))
            return min(known, float(found.seconds[0]))

        solving = CountSolving(
            given=given, best=counts, known=known, evaluate=evaluate,
            upper=upper, seconds=seconds, most_cuts=most_cuts, means=self.means,
        )  # fmt: skip
        found.lower[:] = np.minimum(solving.solve(), found.seconds)
        return found

    @property
    def _problem(self) -> Problem:
        return problem_of(self.context)

    def _is_free(self, grid: Grid) -> bool:
        return bool(is_free(grid, free=self.free)[0])

    def _alike(self, grid: Grid) -> list[tuple[IntArray, Completer]]:
        """Rows that are completed together, at most `_TOGETHER`, and by whom."""
        whole = all_or_none(grid, self.counts)
        key = tables_of(self._problem, grid) * 2 + whole
        parts = []
        for value in np.unique(key):
            same = np.flatnonzero(key == value)
            completer = replace(self, counts="all") if value % 2 else self
            parts += [(rows, completer) for rows in np.array_split(same, -(-len(same) // _TOGETHER))]
        return parts

    def _window(self, grid: Grid) -> Window:
        return find_window(self._problem, grid)

    def _table(self, grid: Grid, window: Window, counts: str | int) -> StageTable:
        return tabulate(self._problem, grid, window, capacity_bytes=self.capacity_bytes, counts=counts)

    def _partitioned(self, grid: Grid) -> Refined:
        """All boundaries of the window; with one number of recomputed layers for all stages, number by number.

        Memory falls with every further layer, so numbers begin where some boundaries fit; a step takes longer, so they end where
        none are faster than what was found even if all fitted.
        """
        found, window = Refined.nothing(len(grid), int(grid.pipeline_parallel_size[0])), self._window(grid)
        if self.counts != "uniform":
            self._choose(grid, self._table(grid, window, self.counts), found)
            return found
        numbers = range(int(window.runs.length.max()) + 1 if (grid.recompute > 0).any() else 1)

        def fitting(number: int) -> Mask:
            return some_fit(self._table(grid, window, number))

        done = (grid.recompute == 0) | ~fitting(numbers[-1])
        first = bisect_left(numbers, True, key=lambda number: bool(fitting(number).any()))
        for number in numbers[first:]:
            table = self._table(grid, window, number)
            self._choose(grid, table, found)
            done |= np.isfinite(found.seconds) & (
                least_with_room(table, grid.num_micro_batches, _schedule(grid)) >= found.seconds
            )
            if done.all():
                break
        return found

    def _choose(self, grid: Grid, table: StageTable, found: Refined) -> None:
        """The fastest of boundaries that reach the bound and of the even split."""
        bound = best_partitions(table, grid.num_micro_batches, _schedule(grid))
        found.lower[:] = np.minimum(found.lower, bound.lower)
        if not (bound.lower < found.seconds).any():
            return
        ranks = int(grid.pipeline_parallel_size[0])
        even = np.array(even_split(self.context.model.num_hidden_layers, ranks))
        for lengths in (bound.lengths, np.broadcast_to(even, bound.lengths.shape)):
            self._try(grid, table, lengths, found)

    def _try(self, grid: Grid, table: StageTable, lengths: IntArray, found: Refined) -> None:
        """Evaluate boundaries [n, p] where the table allows them; lengths of 0 are none."""
        rows = np.flatnonzero(lengths.all(axis=1))
        inside, columns = stages_of_lengths(table, rows, lengths[rows])
        if inside.any():
            part = self._evaluate(grid.take(rows[inside]), columns)
            part.lower[:] = np.inf
            found.keep(rows[inside], part)

    def _given(self, grid: Grid) -> GivenStages:
        """The stages of candidates whose boundaries are not open."""
        virtual = int(grid.pipeline_parallel_size[0] * grid.num_model_chunks[0])
        counts = self.context.layers_per_stage or even_split(self.context.model.num_hidden_layers, virtual)
        layers = np.broadcast_to(np.array(counts, dtype=np.int64), (len(grid), virtual))
        most = np.where(grid.recompute[:, None] > 0, layers, 0)
        return GivenStages(self._problem, grid, layers=layers, most=most, capacity_bytes=self.capacity_bytes)

    def _as_given(self, grid: Grid) -> Refined:
        """One set of boundaries; only the counts are open."""
        given = self._given(grid)
        if self.counts == "all" or not given.most.any():
            return self._evaluate(grid, given.columns(given.most))
        if self.counts == "uniform":
            return self._evaluate(grid, given.columns(given.fill_uniformly()))
        several = int(grid.num_model_chunks[0]) > 1
        least = given.least(given.short(working_set=several))
        recomputed, needed = given.fill(least)
        found = self._evaluate(grid, given.columns(recomputed), needed)
        if several and least.any():
            found.lower[:] = np.minimum(found.lower, given.lower(least))
        return found

    def _evaluate(self, grid: Grid, stages: StageColumns, needed: Matrix | None = None) -> Refined:
        """Step time and bytes of complete candidates, ``needed`` [n, p] where they are known; the bound is the step time."""
        needed = (completion_bytes(self._problem, grid, stages) if needed is None else needed).max(axis=1)
        fits = needed <= self.capacity_bytes
        seconds = np.where(fits, completion_seconds(self._problem, grid, stages), np.inf)
        return Refined(
            seconds, seconds.copy(), np.where(fits, needed, np.inf), stages.layers.copy(), stages.recomputed.copy()
        )


def _schedule(grid: Grid) -> str:
    return SCHEDULES[int(grid.pipeline_schedule[0])]


def all_or_none(grid: Grid, counts: str) -> Mask:
    """Candidates whose stages recompute all of their layers or none whatever ``counts`` allows others [n].

    Numbers are of whole layers: where all stages must have the same one, parts of layers are recomputed in all. A stage that
    recomputes a layer is not split, so under schedules that split the backward one layer changes as much as all.
    """
    part = (counts == "uniform") & (grid.recompute > 0) & (grid.recompute != FULL_RECOMPUTE)
    return np.asarray(part | splits_backward(grid))


def problem_of(context: RuleContext) -> Problem:
    """What is trained on what with which framework."""
    return Problem(model=context.model, cluster=context.cluster, training=context.training, runtime=context.runtime)


def is_free(grid: Grid, *, free: bool) -> Mask:
    """Candidates whose boundaries are open, [n]."""
    return np.asarray(free & (grid.num_model_chunks == 1) & (grid.pipeline_parallel_size > 1))

"""Best completions of candidates, found where bounds leave the answer open, and complete plans for those shown.

Rows that share a shape (schedule, pipeline ranks, chunks) are refined together: tables are made for all of them at once, and
those with as many micro-batches share the graph of the longest path.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import ROUNDING, pipeline_shape, step_time_column
from costmodel.estimate import estimate
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import Estimate, Plan
from planner.candidates import Candidates, Column, Known, Mask, completed_plan
from planner.completion import Completer, Refined
from planner.layouts import complexity_columns

Index = NDArray[np.int64]
_TOGETHER = 32
_BOUNDED, _WEIGHED, _FIRST = 4096, 512, 16
_MANY, _COMPARED = 4096, 256
_LIKELY = 0.6
"""Share of the memory that a row's least need may take for it to be likely to fit."""
_LIKELY_AS_IT_STANDS = 0.9
"""The same for rows that recompute nothing, which need little more than is known."""


def estimate_of(plan: Plan) -> Estimate:
    """The estimate that every plan of a search carries."""
    if plan.estimate is None:
        raise ValueError("the plan carries no estimate")
    return plan.estimate


def step_seconds(plan: Plan) -> float:
    """The estimated step time of a plan that carries an estimate."""
    return estimate_of(plan).step_time_seconds.value


def exact_seconds(context: RuleContext, grid: Grid) -> Column:
    """The step time of every row's plan, [rows]."""
    inputs = (context.model, context.cluster, context.training, context.runtime)
    return step_time_column(*inputs, grid, layers_per_stage=context.layers_per_stage)


@dataclass(slots=True, eq=False)
class Search:
    """Refines the rows of a sifted space: finds their best completions (completion.py).

    ``time`` [n]: step time of the best completion found, infinite before and where none fits; ``lower`` [n]: a bound on all
    completions, infinite where none fits; ``refined`` [n]: where both are of completions; ``fits`` [n]: one fits, or may.
    ``budget``: graph nodes that may still be built; ``probed``: whether a good time was looked for. What is not known of the
    candidates yet is found where it may matter.
    """

    candidates: Candidates
    completer: Completer
    budget: int
    lower: Column = field(init=False)
    time: Column = field(init=False)
    refined: Mask = field(init=False)
    sharpened: Mask = field(init=False)
    fits: Mask = field(init=False)
    needed_bytes: Column = field(init=False)
    probed: bool = False
    stages: dict[int, tuple[Index, Index]] = field(default_factory=dict)
    plans: dict[int, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        candidates = self.candidates = self.candidates.copy()
        self.lower, self.fits, self.needed_bytes = candidates.bounds, candidates.fits, candidates.needed_bytes
        self.time = np.full(len(self.lower), np.inf)
        self.refined = np.zeros(len(self.lower), dtype=bool)
        self.sharpened = np.zeros(len(self.lower), dtype=bool)

    def fastest(
        self, rows: Mask | Index | None = None, *, budget: int | None = None, below: float = np.inf
    ) -> int | None:
        """The row with the smallest step time among some rows; None when no completion of them fits.

        Rows are refined in the order of their bounds, together with those of the same shape, until no bound of a row left is
        below the best time found, or the nodes are spent (then it is the best known).

        Args:
            rows: a mask or row numbers; None for all.
            budget: nodes this call may build; None for all that are left.
            below: seconds from which on rows are of no interest; the answer may still take longer.
        """
        index = np.arange(len(self.lower))[... if rows is None else rows]
        spare = self.budget if budget is None else min(budget, self.budget)
        upper, open_rows = float(self.time[index].min(initial=below)), index
        most, asked = 1, _FIRST
        while True:
            open_rows = open_rows[self.fits[open_rows] & ~self.refined[open_rows] & (self.lower[open_rows] < upper)]
            if not len(open_rows):
                return self.simplest(index)
            batch = self._next(open_rows, upper) if np.isfinite(upper) else self._likely(open_rows, most, asked)
            cost = self._nodes(batch)
            if cost > spare and np.isfinite(upper):
                return self.simplest(index)
            if len(batch):
                self.refine(batch)
                upper, most = min(upper, float(self.time[batch].min())), min(2 * most, _TOGETHER)
            else:
                asked = min(2 * asked, _WEIGHED)
            spare -= cost
            self.budget -= cost

    def _likely(self, rows: Index, most: int, asked: int) -> Index:
        """Before any time is known: rows with small bounds that probably fit, or none where more has become known of them.

        ``most``: of one shape, one at first and more as none turns out to fit; then what is quickly known of their memory
        comes first. ``asked``: of which more is found out, likewise.
        """
        needed = self.candidates.needed_bytes[rows]
        likely = rows[needed <= _LIKELY * self.completer.capacity_bytes]
        rows = likely if len(likely) else rows
        head = self._smallest(rows)
        alike = rows[self._same_shape(rows, head)]
        alike = alike[np.argsort(self.lower[alike], kind="stable")[: max(asked, 2 * most)]]
        self.candidates.learn(alike)
        if most > 1:
            alike = alike[self.fits[alike]]
            self._sharpen(alike[~self.sharpened[alike]])
        alike = alike[self.fits[alike]]
        return alike[np.argsort(self.lower[alike], kind="stable")[:most]]

    def _next(self, rows: Index, upper: float) -> Index:
        """Rows with the smallest bounds that are worth refining together, or none where more has become known of them."""
        rough = rows[self.candidates.known[rows] == Known.WORK]
        if len(rough) > _MANY and not self.probed:
            return self._probe(rough)
        if len(rough):
            self.candidates.average(rough, below=upper)
            return rows[:0]
        head = self._smallest(rows)
        alike = rows[self._same_shape(rows, head)]
        alike = alike[np.argsort(self.lower[alike], kind="stable")]
        known = self.candidates.known
        if known[head] == Known.AVERAGE:
            self.candidates.bound(np.sort(alike[known[alike] == Known.AVERAGE][:_BOUNDED]))
        elif known[head] == Known.BOUND:
            # Memory is priced together for all shapes with as many chunks.
            chunks = self.candidates.grid.num_model_chunks
            several = rows[(known[rows] == Known.BOUND) & (chunks[rows] == chunks[head])]
            self.candidates.weigh(np.sort(several[np.argsort(self.lower[several], kind="stable")[:_WEIGHED]]))
        elif not self.sharpened[head]:
            several = alike[: 2 * _TOGETHER]
            self._sharpen(several[~self.sharpened[several]])
        else:
            return alike[:_TOGETHER]
        return alike[:0]

    def _probe(self, rows: Index) -> Index:
        """A row that is likely to be fast, or none: with a good time most of many rows need not be looked at.

        Its shape is the most promising one of rows that recompute nothing and probably fit.
        """
        self.probed = True
        grid, needed = self.candidates.grid, self.candidates.needed_bytes
        fitting = needed[rows] <= _LIKELY_AS_IT_STANDS * self.completer.capacity_bytes
        rows = rows[fitting & (grid.recompute[rows] == 0)]
        some = rows[np.argsort(self._guess(rows), kind="stable")[:_COMPARED]]
        self.candidates.average(np.sort(some))
        some = some[self.fits[some]]
        if len(some):
            some = some[self._same_shape(some, int(some[np.argmin(self._guess(some))]))]
            self.candidates.learn(some)
            some = some[self.fits[some]]
        return some[np.argsort(self.lower[some], kind="stable")[:1]]

    def _guess(self, rows: Index) -> Column:
        """Bounds, and what they leave out: pipelines fill, and the largest stage is waited for."""
        grid, depth = self.candidates.grid, self.candidates.context.model.num_hidden_layers
        ranks, chunks = grid.pipeline_parallel_size[rows], grid.num_model_chunks[rows]
        fill = (ranks - 1) / (chunks * grid.num_micro_batches[rows])
        largest = -(-depth // (ranks * chunks)) * (ranks * chunks) / depth
        return np.asarray(self.lower[rows] * (1.0 + fill) * largest)

    def _smallest(self, rows: Index) -> int:
        return int(rows[np.argmin(self.lower[rows])])

    def holds_one(self) -> bool:
        """Whether a completion of some row fits, asked of those that need the least memory first."""
        while True:
            rows = np.flatnonzero(self.fits & ~self.refined)
            if not len(rows):
                return bool(np.isfinite(self.time).any())
            head = int(rows[np.argmin(self.needed_bytes[rows])])
            alike = rows[self._same_shape(rows, head)]
            alike = alike[np.argsort(self.needed_bytes[alike], kind="stable")[: 2 * _TOGETHER]]
            self.candidates.learn(alike)
            self._sharpen(alike[self.fits[alike]])
            self.refine(alike[self.fits[alike]][:_TOGETHER])
            if np.isfinite(self.time[alike]).any():
                return True

    def refine(self, rows: Index) -> None:
        """Replace the bounds of rows of one shape by step times of their best completions and bounds on all of them."""
        if not len(rows):
            return
        found = self.completer.best(self.candidates.grid.take(rows))
        self.time[rows], self.lower[rows] = found.seconds, np.maximum(self.lower[rows], found.lower)
        self.refined[rows], self.fits[rows] = True, np.isfinite(found.seconds)
        self.candidates.known[rows] = Known.MEMORY
        known = np.flatnonzero(self.fits[rows])
        self.needed_bytes[rows[known]] = found.needed_bytes[known]
        self.lower[rows[known]] = np.minimum(self.lower[rows[known]], self.time[rows[known]])
        self.stages.update({int(rows[row]): (found.layers[row], found.recomputed[row]) for row in known})

    def take(self, rows: Index, found: Refined) -> None:
        """Completions of some rows that are faster than what was known."""
        self.time[rows], self.needed_bytes[rows] = found.seconds[0], found.needed_bytes[0]
        for row in rows.tolist():
            self.stages[row] = (found.layers[0], found.recomputed[0])
            self.plans.pop(row, None)

    def _sharpen(self, rows: Index) -> None:
        """Raise bounds of rows of one shape by what is quickly known of their memory."""
        if not len(rows):
            return
        self.sharpened[rows] = True
        self.lower[rows] = np.maximum(self.lower[rows], self.completer.bound(self.candidates.grid.take(rows)))
        self.fits[rows] &= np.isfinite(self.lower[rows])

    def seconds(self, row: int) -> float:
        """The step time of one row's best completion, infinite where none fits."""
        if not self.refined[row]:
            self.refine(np.array([row]))
        return float(self.time[row])

    def best(self) -> int:
        """The fastest row known, the simplest of equals.

        Raises:
            ValueError: when no row with a completion is known.
        """
        row = self.simplest()
        if row is None:
            raise ValueError("no candidate is known to fit")
        return row

    def plan(self, row: int) -> Plan:
        """The best completion of one row as a complete plan with its estimate.

        Raises:
            ValueError: when no completion of the row fits.
        """
        if row not in self.plans:
            if not np.isfinite(self.seconds(row)):
                raise ValueError(f"no completion of candidate {row} fits")
            context = self.candidates.context
            plan = completed_plan(context, self.candidates.grid, row, *self.stages[row])
            self.plans[row] = plan.model_copy(
                update={"estimate": estimate(plan, context.runtime, memory_limit=context.memory_limit)}
            )
        return self.plans[row]

    def below(self, capacity_bytes: float, *, budget: int) -> Search:
        """The same candidates on devices with less memory: bounds hold there too, and so do completions that fit there; other
        candidates have new ones.
        """
        lean = Search(self.candidates, replace(self.completer, capacity_bytes=capacity_bytes), budget)
        kept = self.refined & self.fits & (self.needed_bytes <= capacity_bytes)
        lean.time[kept] = self.time[kept]
        lean.refined[:] = lean.sharpened[:] = kept
        lean.stages = {row: self.stages[row] for row in np.flatnonzero(kept).tolist()}
        return lean

    def open_rows(self) -> Index:
        """Rows that may fit, were not refined and whose bound does not exclude them."""
        return np.flatnonzero(self.fits & ~self.refined & (self.lower < self.time.min()))

    def complexity(self, rows: Index) -> list[Index]:
        """`complexity_columns` of some rows, the most important last as `np.lexsort` wants it."""
        return complexity_columns(self.candidates.grid.take(rows))[::-1]

    def simplest(self, rows: Index | None = None) -> int | None:
        """Of the fastest of some rows, or of all, the simplest; None when none of them is known to fit."""
        rows = np.arange(len(self.time)) if rows is None else rows
        smallest = self.time[rows].min(initial=np.inf)
        if not np.isfinite(smallest):
            return None
        equal = rows[self.time[rows] <= smallest * (1.0 + ROUNDING)]
        return int(equal[np.lexsort(self.complexity(equal))[0]])

    def _nodes(self, rows: Index) -> int:
        """Nodes of the graphs that are walked for rows of one shape."""
        grid = self.candidates.grid
        _, first = np.unique(grid.num_micro_batches[rows], return_index=True)
        shapes = [pipeline_shape(grid, int(rows[index])) for index in first]
        return sum(shape.first_nodes for shape in shapes if shape.ranks > 1)

    def _same_shape(self, rows: Index, head: int) -> Mask:
        """Which rows have the schedule, ranks and chunks of ``head``."""
        grid = self.candidates.grid
        shape = (grid.pipeline_schedule, grid.pipeline_parallel_size, grid.num_model_chunks)
        return np.asarray(np.logical_and.reduce([column[rows] == column[head] for column in shape]))

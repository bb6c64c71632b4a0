"""Exact step times of candidates, computed where bounds leave the answer open, and complete plans for those shown.

Rows that share a topology (schedule, pipeline ranks, chunks, micro-batches) share the graph of the longest path, which
is by far the larger part of the work; they are therefore refined together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import pipeline_shape, step_time_column
from costmodel.estimate import estimate
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import Estimate, Plan
from planner.candidates import Candidates, Column, Mask, row_plan

Index = NDArray[np.int64]


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


def complexity_columns(grid: Grid) -> list[Index]:
    """How much machinery a candidate needs, most important first: axes in use, then kinds of machinery, then sizes."""
    axes = (grid.tensor_parallel_size, grid.pipeline_parallel_size, grid.data_parallel_size)
    return [
        sum(((size > 1).astype(np.int64) for size in axes), np.zeros(len(grid), dtype=np.int64)),
        grid.zero_stage,
        (grid.hierarchical_partition_size > 0).astype(np.int64),
        grid.num_model_chunks,
        grid.pipeline_schedule,
        grid.sequence_parallel,
        (grid.recompute > 0).astype(np.int64),
        grid.pipeline_parallel_size,
        grid.num_micro_batches,
    ]


@dataclass(slots=True, eq=False)
class Search:
    """Refines the rows of a sifted space.

    ``lower`` [n]: the exact step time where it is known, else the bound (infinite where a row does not fit).
    ``exact`` [n]: where it is known. ``budget``: graph nodes that may still be built.
    """

    candidates: Candidates
    budget: int
    lower: Column = field(init=False)
    exact: Mask = field(init=False)
    plans: dict[int, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lower = self.candidates.bounds.copy()
        self.exact = np.zeros(len(self.lower), dtype=bool)

    def fastest(self, rows: Mask | Index | None = None, *, budget: int | None = None) -> int | None:
        """The row with the smallest exact step time among some rows; None when none of them fits.

        Topologies are refined in the order of their smallest open bound until no bound is below the best
        time found (the answer is then exact), or the nodes are spent (then it is the best known).

        Args:
            rows: a mask or row numbers; None for all.
            budget: nodes this call may build; None for all that are left.
        """
        index = np.arange(len(self.lower))[... if rows is None else rows]
        index = index[self.candidates.fits[index]]
        spare = self.budget if budget is None else min(budget, self.budget)
        while len(index):
            known = index[self.exact[index]]
            upper = float(self.lower[known].min(initial=np.inf))
            open_rows = index[~self.exact[index] & (self.lower[index] < upper)]
            if not len(open_rows):
                return self._simplest(known)
            head = open_rows[np.argmin(self.lower[open_rows])]
            cost = self._nodes(int(head))
            if cost > spare and len(known):
                return self._simplest(known)
            self.refine(open_rows[self._same_topology(open_rows, int(head))])
            spare -= cost
            self.budget -= cost
        return None

    def refine(self, rows: Index) -> None:
        """Replace the bounds of some rows by exact step times."""
        candidates = self.candidates
        self.lower[rows] = exact_seconds(candidates.context, candidates.grid.take(rows))
        self.exact[rows] = True

    def seconds(self, row: int) -> float:
        """The exact step time of one row."""
        if not self.exact[row]:
            self.refine(np.array([row]))
        return float(self.lower[row])

    def best(self) -> int:
        """The fastest row known exactly, the simplest of equals."""
        return self._simplest(np.flatnonzero(self.exact))

    def plan(self, row: int) -> Plan:
        """One row as a complete plan with its estimate."""
        if row not in self.plans:
            context = self.candidates.context
            plan = row_plan(context, self.candidates.grid, row)
            self.plans[row] = plan.model_copy(
                update={"estimate": estimate(plan, context.runtime, memory_limit=context.memory_limit)}
            )
        return self.plans[row]

    def open_rows(self) -> Index:
        """Rows that fit, are not known exactly and whose bound does not exclude them."""
        upper = self.lower[self.best()]
        return np.flatnonzero(self.candidates.fits & ~self.exact & (self.lower < upper))

    def complexity(self, rows: Index) -> list[Index]:
        """`complexity_columns` of some rows, the most important last as `np.lexsort` wants it."""
        return complexity_columns(self.candidates.grid.take(rows))[::-1]

    def _simplest(self, known: Index) -> int:
        smallest = self.lower[known].min()
        equal = known[self.lower[known] == smallest]
        return int(equal[np.lexsort(self.complexity(equal))[0]])

    def _nodes(self, row: int) -> int:
        """Nodes of the graph that is walked for one row's topology."""
        shape = pipeline_shape(self.candidates.grid, row)
        return shape.first_nodes if shape.ranks > 1 else 0

    def _same_topology(self, rows: Index, head: int) -> Mask:
        """Which rows share the graph of ``head``."""
        grid = self.candidates.grid
        shape = (grid.pipeline_schedule, grid.pipeline_parallel_size, grid.num_model_chunks, grid.num_micro_batches)
        return np.asarray(np.logical_and.reduce([column[rows] == column[head] for column in shape]))


def group_rows(columns: Sequence[Index]) -> Index:
    """Numbers such that two rows have the same one exactly when they agree in all columns; [n]."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        code = np.unique(code, return_inverse=True)[1].reshape(-1) * (int(column.max(initial=0)) + 1) + column
    return code


def layouts(grid: Grid) -> Index:
    """Equal for candidates that are the same answer: they differ in schedule, batch and recompute details only; [n].

    Under a pipeline gradients are reduced once per step, so ZeRO stages 1 and 2 are one answer.
    """
    same_stage = (grid.pipeline_parallel_size > 1) & (grid.zero_stage == 2)
    return group_rows(
        (
            grid.tensor_parallel_size,
            grid.pipeline_parallel_size,
            grid.data_parallel_replicate_size,
            grid.data_parallel_shard_size,
            np.where(same_stage, 1, grid.zero_stage),
        )
    )


def fastest_by_layout(found: Search) -> list[int]:
    """The fastest exactly known row of every layout, fastest layout first."""
    known = np.flatnonzero(found.exact)
    known = known[np.lexsort((*found.complexity(known), found.lower[known]))]
    _, first = np.unique(layouts(found.candidates.grid.take(known)), return_index=True)
    return [int(known[position]) for position in sorted(first)]

"""Exact estimates of single candidates, each made once, best bound first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from costmodel.estimate import estimate
from numpy.typing import NDArray

from costmodel.runtimes.grid import Grid, RecomputeKind
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import Estimate, ParallelConfig, Plan
from planner.candidates import Candidates, Mask, row_plan

Key = tuple[ParallelConfig, RecomputeKind]


def estimate_of(plan: Plan) -> Estimate:
    """The estimate that every plan of a search carries."""
    if plan.estimate is None:
        raise ValueError("the plan carries no estimate")
    return plan.estimate


def step_seconds(plan: Plan) -> float:
    """The estimated step time of a plan that carries an estimate."""
    return estimate_of(plan).step_time_seconds.value


def complexity(plan: Plan) -> tuple[int, ...]:
    """How much machinery a plan needs, for preferring the simplest of equals: axes in use, then kinds of machinery."""
    parallel = plan.parallel
    axes = (parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size)
    return (
        sum(size > 1 for size in axes),
        parallel.zero_stage,
        parallel.num_model_chunks,
        int(parallel.hierarchical_partition_size is not None),
        int(parallel.sequence_parallel) + int(parallel.loss_parallel),
        int(plan.stages[0].recompute.kind != "none"),
        parallel.pipeline_parallel_size,
        parallel.num_micro_batches,
    )


def preference(plan: Plan) -> tuple[float, tuple[int, ...]]:
    """Fastest first, then simplest."""
    return step_seconds(plan), complexity(plan)


@dataclass(slots=True, eq=False)
class Evaluator:
    """Estimates plans of one context and remembers them."""

    context: RuleContext
    plans: dict[Key, Plan] = field(default_factory=dict)

    def evaluate(self, parallel: ParallelConfig, recompute: RecomputeKind) -> Plan:
        """The complete plan of a configuration, with its estimate."""
        key = (parallel, recompute)
        if key not in self.plans:
            context = self.context
            plan = row_plan(context, Grid.from_parallel(parallel, recompute), 0)
            self.plans[key] = plan.model_copy(update={"estimate": estimate(plan, context.runtime)})
        return self.plans[key]


@dataclass(slots=True, eq=False)
class Search:
    """Best-first search over the rows of a sifted space; ``plans``: row -> its plan once evaluated."""

    candidates: Candidates
    evaluator: Evaluator
    plans: dict[int, Plan] = field(default_factory=dict)

    def evaluate(self, row: int) -> Plan:
        """The plan of one row."""
        if row not in self.plans:
            grid = self.candidates.grid
            self.plans[row] = self.evaluator.evaluate(grid.parallel(row), grid.recompute_kind(row))
        return self.plans[row]

    def fastest(self, rows: Mask | NDArray[np.int64] | None = None, *, limit: int) -> Plan | None:
        """The fastest plan among some rows that fit.

        Rows are evaluated in the order of their bounds until no bound is below the best step time found, or
        ``limit`` rows have been evaluated.

        Args:
            rows: a mask or row numbers; None for all.
            limit: evaluations at most, those already made not counted.
        """
        candidates = self.candidates
        index = np.arange(len(candidates.grid)) if rows is None else _as_index(rows)
        index = index[candidates.fits[index]]
        best: Plan | None = None
        for row in index[np.argsort(candidates.bounds[index], kind="stable")]:
            if best is not None and candidates.bounds[row] >= step_seconds(best):
                break
            if int(row) not in self.plans:
                if limit == 0:
                    break
                limit -= 1
            plan = self.evaluate(int(row))
            if best is None or preference(plan) < preference(best):
                best = plan
        return best

    def best(self) -> Plan:
        """The fastest plan evaluated so far, the simplest of equals."""
        return min(self.plans.values(), key=preference)

    def unevaluated_bound(self) -> float:
        """The smallest bound of a row that fits and was not evaluated; infinite when there is none."""
        return float(self._open_bounds().min(initial=np.inf))

    def num_unrefined(self) -> int:
        """Rows that fit, were not evaluated, and whose bound does not exclude them."""
        return int((self._open_bounds() < step_seconds(self.best())).sum())

    def _open_bounds(self) -> NDArray[np.float64]:
        open_rows = self.candidates.fits.copy()
        open_rows[list(self.plans)] = False
        return self.candidates.bounds[open_rows]


def distinct(plans: Iterable[Plan]) -> list[Plan]:
    """The best plan of each layout: plans that differ in more than schedule, micro-batch and overlap details."""
    best: dict[tuple[object, ...], Plan] = {}
    for plan in sorted(plans, key=preference):
        best.setdefault(layout(plan), plan)
    return list(best.values())


def layout(plan: Plan) -> tuple[object, ...]:
    """What two plans must differ in to be two different answers."""
    parallel = plan.parallel
    return (
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.data_parallel_replicate_size,
        parallel.data_parallel_shard_size,
        parallel.zero_stage,
        plan.stages[0].recompute.kind,
    )


def _as_index(rows: Mask | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, dtype=np.int64)

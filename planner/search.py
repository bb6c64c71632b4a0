"""Find the fastest plan of a declared space and say how good the answer is.

Rules, memory and a lower bound on the step time are evaluated for every candidate at once. The exact
estimate T is then made best bound first, until no bound left is below the best T:

    U = min T over evaluated candidates
    L = min(U, min bound over candidates that fit and were not evaluated)
    gap = (U - L) / U                                                              (1)
"""

from __future__ import annotations

import time

import numpy as np

from costmodel.runtimes.grid import Grid
from costmodel.specs import (
    Certificate,
    ClusterSpec,
    Infeasible,
    ModelSpec,
    Plan,
    Recommendation,
    RuntimeProfile,
    TrainingDuration,
    TrainingSpec,
)
from planner.candidates import Candidates, sift
from planner.cautions import find_cautions
from planner.duration import training_duration
from planner.evaluation import Evaluator, Search, complexity, distinct, step_seconds
from planner.guide import guide
from planner.infeasible import explain_infeasible
from planner.neighbours import find_neighbours
from planner.space import Space, describe_space
from planner.summary import summarize

MAX_EVALUATIONS = 48
_EVALUATIONS_PER_LAYOUT = 2
_MAX_TIES = 10
_MAX_STEPS = 4


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    space: Space,
    top: int = 5,
    *,
    total_tokens: int | None = None,
    max_evaluations: int = MAX_EVALUATIONS,
) -> Recommendation | Infeasible:
    """The fastest plan of a space that fits, or why there is none.

    Args:
        model: what is trained.
        cluster: where.
        training: batch, sequence, precision, optimizer.
        runtime: the framework.
        space: from `declare_space` with the same four inputs.
        top: plans to return, the best one included.
        total_tokens: for the training time; None leaves it out.
        max_evaluations: exact estimates for proving the optimum; a smaller number may leave a gap.

    Raises:
        ValueError: when the space was declared for other inputs.
    """
    context = space.context
    if (context.model, context.cluster, context.training, context.runtime) != (model, cluster, training, runtime):
        raise ValueError("the space was declared for another model, cluster, training or runtime")
    started = time.perf_counter()
    candidates = sift(space)
    if not candidates.fits.any():
        return explain_infeasible(space, candidates)
    found = Search(candidates, Evaluator(context))
    found.fastest(limit=max(1, max_evaluations))
    _evaluate_layouts(found, top)
    the_guide = guide(found)
    neighbours = find_neighbours(space, found)
    best = found.best()
    duration: TrainingDuration | None = None if total_tokens is None else training_duration(best, total_tokens)
    return Recommendation(
        best=best,
        alternatives=tuple(distinct(found.plans.values())[1 : max(1, top)]),
        ties=_ties(found, best),
        rejections=candidates.rejections,
        certificate=_certificate(space, found, seconds=time.perf_counter() - started),
        guide=the_guide,
        neighbours=neighbours,
        warnings=find_cautions(space, found),
        duration=duration,
    )


def _layout_columns(grid: Grid) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.stack(
        [
            grid.tensor_parallel_size,
            grid.pipeline_parallel_size,
            grid.data_parallel_replicate_size,
            grid.data_parallel_shard_size,
            grid.zero_stage,
            grid.recompute,
        ],
        axis=1,
    )


def _evaluate_layouts(found: Search, top: int) -> None:
    """Evaluate the most promising rows of the layouts with the smallest bounds: the alternatives and the ties."""
    rows = np.flatnonzero(found.candidates.fits)
    _, group = np.unique(_layout_columns(found.candidates.grid)[rows], axis=0, return_inverse=True)
    bounds = found.candidates.bounds[rows]
    smallest = np.full(group.max() + 1, np.inf)
    np.minimum.at(smallest, group, bounds)
    for layout in np.argsort(smallest, kind="stable")[: 2 * top]:
        found.fastest(rows[group == layout], limit=_EVALUATIONS_PER_LAYOUT)


def _ties(found: Search, best: Plan) -> tuple[str, ...]:
    """Plans that the model's own error cannot tell from the best, simplest first."""
    limit = step_seconds(best) * (1 + found.candidates.context.runtime.error_band)
    close = [plan for plan in distinct(found.plans.values()) if step_seconds(plan) <= limit and plan is not best]
    return tuple(
        f"{summarize(plan)}: {step_seconds(plan) / step_seconds(best) - 1:+.1%}"
        for plan in sorted(close, key=complexity)[:_MAX_TIES]
    )


def _certificate(space: Space, found: Search, *, seconds: float) -> Certificate:
    """Equation (1) and the counts, which add up to the candidates when nothing is left unrefined."""
    candidates: Candidates = found.candidates
    upper, unrefined, evaluated = step_seconds(found.best()), found.num_unrefined(), len(found.plans)
    lower = min(upper, found.unevaluated_bound())
    gap = (upper - lower) / upper
    pruned = int(candidates.fits.sum()) - evaluated - unrefined
    statement = f"optimal over the declared space under this cost model, gap {gap:.2%}"
    if unrefined:
        statement += f" ({unrefined:,} candidates not evaluated have a bound below the best step time)"
    return Certificate(
        space=describe_space(space),
        candidates=candidates.total,
        rejected_by_rule=candidates.rejected_by_rule,
        rejected_by_memory=candidates.rejected_by_memory,
        pruned_by_bound=pruned,
        evaluated=evaluated,
        upper_seconds=upper,
        lower_seconds=lower,
        gap=gap,
        search_seconds=seconds,
        statement=statement,
    )

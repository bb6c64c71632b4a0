"""Find the fastest plan of a declared space and say how good the answer is.

Rules, memory and a lower bound on the step time are evaluated for every candidate at once. The exact step time
replaces bounds, smallest first, until no bound left is below the best time found (certificate.py says what is proven).
"""

from __future__ import annotations

import time

import numpy as np

from costmodel.specs import (
    ClusterSpec,
    Infeasible,
    ModelSpec,
    Recommendation,
    RuntimeProfile,
    TrainingSpec,
)
from costmodel.uncertainty import error_band
from planner.candidates import survey
from planner.cautions import find_cautions
from planner.certificate import make_certificate
from planner.closing import tighten
from planner.duration import training_duration
from planner.effort import Effort, quick
from planner.evaluation import Search
from planner.guide import guide
from planner.infeasible import explain_infeasible
from planner.layouts import layouts
from planner.neighbours import find_neighbours
from planner.space import Space, completer_of

NODE_BUDGET = 400_000
_NODES_PER_LAYOUT = 12_000
_MAX_TIES = 10


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    space: Space,
    top: int = 5,
    *,
    total_tokens: int | None = None,
    node_budget: int = NODE_BUDGET,
    effort: Effort | None = None,
    found: Search | None = None,
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
        node_budget: nodes of pipeline graphs that may be walked to prove the optimum (about 1.5 us each); when
            they are spent the certificate keeps a gap.
        effort: work on candidates that bounds leave open after that; None for a little.
        found: what is known of the space's candidates already.

    Raises:
        ValueError: when the space was declared for other inputs.
    """
    context = space.context
    if (context.model, context.cluster, context.training, context.runtime) != (model, cluster, training, runtime):
        raise ValueError("the space was declared for another model, cluster, training or runtime")
    started = time.perf_counter()
    found = found or Search(survey(space), completer_of(space), node_budget)
    if found.fastest() is None:
        return explain_infeasible(space, found.candidates.told())
    work = effort or quick()
    begun = work.first()
    tighten(found, begun)
    if effort is None or begun.interrupted:
        work = begun
    else:
        tighten(found, work)
    return _recommend(space, found, work, top=top, total_tokens=total_tokens, started=started)


def _recommend(
    space: Space, found: Search, work: Effort, *, top: int, total_tokens: int | None, started: float
) -> Recommendation:
    """Gather everything shown beside the optimum."""
    _refine_layouts(found, top)
    row = -1
    while row != found.best():  # what looks around evaluates more candidates, and may find a faster one
        row = found.best()
        neighbours, advice, cautions = find_neighbours(space, found), guide(found), find_cautions(space, found)
    best = found.plan(row)
    ranking = _fastest_by_layout(found)
    return Recommendation(
        best=best,
        alternatives=tuple(found.plan(other) for other in ranking[1 : max(1, top)]),
        ties=_ties(found, ranking),
        rejections=found.candidates.told().rejections,
        certificate=make_certificate(space, found, seconds=time.perf_counter() - started, ended=work.ended),
        guide=advice,
        neighbours=neighbours,
        safer=cautions.safer,
        stated=cautions.stated,
        warnings=cautions.warnings,
        duration=None if total_tokens is None else training_duration(best, total_tokens),
    )


def _refine_layouts(found: Search, top: int) -> None:
    """Find the fastest rows of other layouts than the best, as many as are shown beside it."""
    group = layouts(found.candidates.grid)
    spare = min(_NODES_PER_LAYOUT * (top + 1), found.budget)
    row: int | None = found.best()
    rest = np.ones(len(group), dtype=bool)
    for _ in range(top - 1):
        if row is None or spare <= 0:
            break
        rest &= group != group[row]
        before = found.budget
        row = found.fastest(rest, budget=spare)
        spare -= before - found.budget


def _ties(found: Search, ranking: list[int]) -> tuple[str, ...]:
    """Layouts that the model's own error cannot tell from the best, simplest first."""
    fastest = found.time[ranking[0]]
    limit = fastest * (1 + error_band(found.candidates.context.runtime, found.candidates.context.cluster.device))
    close = np.array([row for row in ranking[1:] if found.time[row] <= limit], dtype=np.int64)
    close = close[np.lexsort(found.complexity(close))]
    return tuple(f"{found.candidates.summary(row)}: {found.time[row] / fastest - 1:+.1%}" for row in close[:_MAX_TIES])


def _fastest_by_layout(found: Search) -> list[int]:
    """The fastest exactly known row of every layout, fastest layout first."""
    known = np.flatnonzero(np.isfinite(found.time))
    known = known[np.lexsort((*found.complexity(known), found.time[known]))]
    _, first = np.unique(layouts(found.candidates.grid.take(known)), return_index=True)
    return [int(known[position]) for position in sorted(first)]

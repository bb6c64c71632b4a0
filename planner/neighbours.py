"""The plans one step away from the best on every axis: what each would cost, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.runtimes.grid import RECOMPUTE_KINDS, Grid, RecomputeKind
from costmodel.runtimes.rules import RuleContext, evaluate
from costmodel.specs import AXIS_ORDERS, DEFAULT_AXIS_ORDER, Neighbour, ParallelConfig
from costmodel.specs import Axis as MeshAxis
from planner.axis_orders import orders_differ
from planner.candidates import device_bytes, gib_apart
from planner.evaluation import Search, exact_seconds
from planner.moves import beside, devices_of_a_stage, moves
from planner.space import Space


@dataclass(frozen=True, slots=True)
class Step:
    """One axis moved to one value, everything else following."""

    axis: str
    value: str
    parallel: ParallelConfig
    recompute: RecomputeKind
    axis_order: tuple[MeshAxis, ...]


def find_neighbours(space: Space, found: Search) -> tuple[Neighbour, ...]:
    """Price every step away from the best plan.

    Where a budget ended the search early, a neighbour inside the space may be faster: it then becomes the best.
    """
    row = found.best()
    return tuple(_price(step, found.seconds(row), space, found) for step in steps_from(row, space, found))


def steps_from(row: int, space: Space, found: Search) -> list[Step]:
    """All steps from a candidate to the next value of one axis, among the values the space declares.

    An axis that the user fixed steps through its default values: what it costs to fix it is worth knowing.
    """
    context, kind = space.context, found.candidates.grid.recompute_kind(row)
    declared = {axis: values for axis, values in space.declared.items() if axis not in space.fixed}
    parallel = found.candidates.grid.parallel(row)
    order = found.candidates.grid.order(row)
    steps = [
        Step(axis, value, changed, kind, _settled(order, changed, context))
        for axis, value, changed in moves(parallel, context, declared)
    ]
    allowed = declared.get("recompute", tuple(map(RECOMPUTE_KINDS.index, context.runtime.recompute_kinds)))
    kinds = [RECOMPUTE_KINDS[code] for code in sorted(allowed)]
    steps += [Step("recompute", other, parallel, other, order) for other in beside(kinds, kind)]
    steps += [
        Step("axis_order", word, parallel, kind, AXIS_ORDERS[word])
        for word in context.runtime.axis_orders
        if AXIS_ORDERS[word] != order and _differ(parallel, context)
    ]
    return steps


def _differ(parallel: ParallelConfig, context: RuleContext) -> bool:
    sizes = (parallel.pipeline_parallel_size, parallel.data_parallel_size)
    return orders_differ(context.cluster, devices_of_a_stage(parallel), *sizes)


def _settled(order: tuple[MeshAxis, ...], parallel: ParallelConfig, context: RuleContext) -> tuple[MeshAxis, ...]:
    """The order, or the default where it makes no difference: the one that candidates have there."""
    return order if _differ(parallel, context) else DEFAULT_AXIS_ORDER


def _price(step: Step, best_seconds: float, space: Space, found: Search) -> Neighbour:
    """Evaluate one step, or say which rule or how much memory stands against it."""
    context = space.context
    grid = Grid.from_parallel(step.parallel, step.recompute, step.axis_order)
    broken = [outcome for outcome in evaluate(context, grid) if not outcome.mask_ok[0]]
    if broken:
        return Neighbour(axis=step.axis, value=step.value, rejection=broken[0].rejection(0).message)
    row = _row_of(found.candidates.grid, grid)
    if row is not None and found.fits[row] and np.isfinite(found.seconds(row)):
        return _priced(step, found.seconds(row), best_seconds)
    needed, capacity = float(device_bytes(context, grid)[0]), context.usable_bytes
    if needed > capacity:
        wanted, held = gib_apart(needed, capacity)
        text = f"needs {wanted} GiB a device of {held} GiB"
        return Neighbour(axis=step.axis, value=step.value, needed_bytes=int(needed), rejection=text)
    return _priced(step, float(exact_seconds(context, grid)[0]), best_seconds)


def _priced(step: Step, seconds: float, best_seconds: float) -> Neighbour:
    return Neighbour(axis=step.axis, value=step.value, step_time_seconds=seconds, slowdown=seconds / best_seconds - 1)


def _row_of(grid: Grid, one: Grid) -> int | None:
    """The row of ``grid`` that equals the single row ``one``."""
    rows = np.arange(len(grid))
    for column in fields(Grid):
        rows = rows[getattr(grid, column.name)[rows] == getattr(one, column.name)[0]]
    return int(rows[0]) if len(rows) else None

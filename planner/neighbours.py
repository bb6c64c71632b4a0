"""The plans one step away from the best on every axis: what each would cost, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.runtimes.grid import RECOMPUTE_KINDS, Grid, RecomputeKind, group_rows
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
    steps = steps_from(row, space, found)
    return _price(steps, found.seconds(row), space, found) if steps else ()


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


Told = dict[int, Neighbour]
"""What is known of steps, by their number."""


def _price(steps: list[Step], best_seconds: float, space: Space, found: Search) -> tuple[Neighbour, ...]:
    """Evaluate all steps together, or say which rule or how much memory stands against each."""
    grid = Grid.joined([Grid.from_parallel(step.parallel, step.recompute, step.axis_order) for step in steps])
    told = _broken(steps, grid, space.context)
    told |= _searched(steps, grid, _left(steps, told), best_seconds, found)
    told |= _computed(steps, grid, _left(steps, told), best_seconds, space.context)
    return tuple(told[number] for number in range(len(steps)))


def _left(steps: list[Step], told: Told) -> list[int]:
    return [number for number in range(len(steps)) if number not in told]


def _broken(steps: list[Step], grid: Grid, context: RuleContext) -> Told:
    """Steps that break a rule, with the first one."""
    told: Told = {}
    for outcome in evaluate(context, grid):
        for number in np.flatnonzero(~outcome.mask_ok).tolist():
            if number not in told:
                told[number] = _rejected(steps[number], outcome.rejection(number).message)
    return told


def _searched(steps: list[Step], grid: Grid, left: list[int], best_seconds: float, found: Search) -> Told:
    """Steps to candidates of the space of which a completion fits; those of one shape are completed together."""
    fitting = np.flatnonzero(found.fits)
    inside = found.candidates.grid.take(fitting)
    rows = {number: _row_of(inside, grid, number) for number in left}
    known = {number: int(fitting[row]) for number, row in rows.items() if row is not None}
    index = np.array([row for row in known.values() if not found.refined[row]], dtype=np.int64)
    part = found.candidates.grid.take(index)
    shape = group_rows((part.pipeline_schedule, part.pipeline_parallel_size, part.num_model_chunks))
    for value in np.unique(shape):
        found.refine(index[shape == value])
    seconds = {number: found.seconds(row) for number, row in known.items()}
    return {number: _priced(steps[number], own, best_seconds) for number, own in seconds.items() if np.isfinite(own)}


def _computed(steps: list[Step], grid: Grid, left: list[int], best_seconds: float, context: RuleContext) -> Told:
    """Other steps: as they stand, with the memory that they lack or their step time."""
    told: Told = {}
    part = grid.take(np.array(left, dtype=np.int64))
    needed, capacity = device_bytes(context, part), context.usable_bytes
    for number, size in zip(left, needed.tolist(), strict=True):
        if size > capacity:
            wanted, held = gib_apart(size, capacity)
            told[number] = _rejected(
                steps[number], f"needs {wanted} GiB a device of {held} GiB", needed_bytes=int(size)
            )
    fitting = np.flatnonzero(needed <= capacity)
    if len(fitting):
        for number, own in zip(fitting.tolist(), exact_seconds(context, part.take(fitting)).tolist(), strict=True):
            told[left[number]] = _priced(steps[left[number]], own, best_seconds)
    return told


def _priced(step: Step, seconds: float, best_seconds: float) -> Neighbour:
    return Neighbour(axis=step.axis, value=step.value, step_time_seconds=seconds, slowdown=seconds / best_seconds - 1)


def _rejected(step: Step, rejection: str, needed_bytes: int | None = None) -> Neighbour:
    return Neighbour(axis=step.axis, value=step.value, needed_bytes=needed_bytes, rejection=rejection)


def _row_of(grid: Grid, others: Grid, number: int) -> int | None:
    """The row of ``grid`` that equals row ``number`` of others."""
    rows = np.arange(len(grid))
    for column in fields(Grid):
        rows = rows[getattr(grid, column.name)[rows] == getattr(others, column.name)[number]]
    return int(rows[0]) if len(rows) else None

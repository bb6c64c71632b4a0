"""Sift a declared space: rules, then memory, then a lower bound on the step time of what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from costmodel.build import build_plan
from costmodel.memory import grid_peak_bytes, peak_memory, plan_memory
from costmodel.relaxed import relaxed_seconds
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules import RuleContext, RuleOutcome, evaluate
from costmodel.specs import Plan, RecomputeSpec, RejectionCount
from planner.completion import is_free, problem_of
from planner.space import Space
from planner.summary import summarize_parallel

GIB = 2**30
BLOCK_ROWS = 1 << 13
Column = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What a space holds.

    ``grid``: the n rows that obey every rule, ``needed_bytes`` [n] of the fullest device with allocator waste and contexts when
    stages are even and all layers recomputed, if any. ``fits`` [n]: they fit then, or other stage boundaries may.
    ``bounds`` [n] seconds for all completions of a row, infinite where none fits. Where ``needed_bytes`` is too much, it is exact
    where it is smallest; elsewhere it may be that of the first pipeline rank.
    """

    context: RuleContext
    total: int
    grid: Grid
    needed_bytes: Column
    fits: Mask
    bounds: Column
    rejections: tuple[RejectionCount, ...]

    @property
    def rejected_by_rule(self) -> int:
        """Rows that break a rule."""
        return self.total - len(self.grid)

    @property
    def rejected_by_memory(self) -> int:
        """Rows that obey every rule and do not fit."""
        return int((~self.fits).sum())

    def summary(self, row: int) -> str:
        """One row in short form."""
        return summarize_parallel(self.grid.parallel(row), self.grid.recompute_kind(row), self.grid.order(row))


def device_bytes(context: RuleContext, grid: Grid, *, first_rank_only: bool = False) -> Column:
    """Bytes that the fullest device of every row needs: tensors, allocator waste, contexts and communicators.

    Stated stages are priced plan by plan, since a grid splits its layers evenly. Otherwise rows with equally many
    chunks are priced together, because every row of a grid costs as much as the one with the most chunks, and those
    without a pipeline apart, because they have one rank.
    ``first_rank_only`` leaves out all other pipeline ranks, for a lower bound; stated stages are priced in full.
    """
    if context.layers_per_stage is None:
        needed = np.zeros(len(grid))
        inputs = (context.model, context.cluster, context.training, context.runtime)
        for rows in _blocks(grid.num_model_chunks * 2 + (grid.pipeline_parallel_size > 1)):
            needed[rows] = grid_peak_bytes(*inputs, grid.take(rows), first_rank_only=first_rank_only)
        return needed
    plans = [row_plan(context, grid, row) for row in range(len(grid))]
    device = context.cluster.device
    peaks = [peak_memory(plan_memory(plan, context.runtime), context.runtime, device).device for plan in plans]
    return np.array(peaks, dtype=np.float64)


def sifted_bytes(context: RuleContext, grid: Grid) -> Column:
    """`device_bytes` of the rows that fit and of those that need least; for the others a bound that does not fit either.

    In wide spaces most rows do not fit, and most of them not even the first pipeline rank, which holds the embedding and
    most activations: what it needs is a lower bound at a fraction of the cost.
    """
    if context.layers_per_stage is not None:
        return device_bytes(context, grid)
    capacity = context.usable_bytes
    needed = device_bytes(context, grid, first_rank_only=True)
    possible = needed <= capacity
    known = np.append(np.flatnonzero(possible), np.argmin(np.where(possible, np.inf, needed)))
    needed[known] = device_bytes(context, grid.take(known))
    # No row needs less than its bound, so the smallest need is among the bounds up to the smallest one known.
    least = needed[known][needed[known] > capacity].min(initial=np.inf)
    close = np.flatnonzero((needed > capacity) & (needed <= least))
    needed[close] = device_bytes(context, grid.take(close))
    return needed


def _blocks(kind: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Row numbers by kind, at most `BLOCK_ROWS` at a time: what is computed from a block stays in the processor's cache."""
    for value in np.unique(kind):
        rows = np.flatnonzero(kind == value)
        yield from np.array_split(rows, -(-len(rows) // BLOCK_ROWS))


def row_plan(context: RuleContext, grid: Grid, row: int) -> Plan:
    """One row as a complete plan without an estimate."""
    return build_plan(
        context.model,
        context.cluster,
        context.training,
        context.runtime,
        grid.parallel(row),
        recompute=grid.recompute_kind(row),
        layers_per_stage=context.layers_per_stage,
        axis_order=grid.order(row),
    )


def completed_plan(
    context: RuleContext, grid: Grid, row: int, layers: NDArray[np.int64], recomputed: NDArray[np.int64]
) -> Plan:
    """One row with the layers [V] and recomputed layers [V] of its virtual stages as a plan without an estimate."""
    kind = grid.recompute_kind(row)
    whole = bool((recomputed == layers).all())
    modes = [RecomputeSpec(kind=kind, num_layers=int(count)) if count else RecomputeSpec() for count in recomputed]
    return build_plan(
        context.model,
        context.cluster,
        context.training,
        context.runtime,
        grid.parallel(row),
        recompute=kind if whole else modes,
        layers_per_stage=tuple(int(count) for count in layers),
        axis_order=grid.order(row),
    )


def sift(space: Space) -> Candidates:
    """Rules, memory and bounds of every candidate of a space."""
    context, everything = space.context, space.grid
    outcomes = evaluate(context, everything)
    rejections = _count_rejections(everything, outcomes)
    grid = everything.take(np.flatnonzero(np.logical_and.reduce([outcome.mask_ok for outcome in outcomes])))
    needed = sifted_bytes(context, grid) if len(grid) else np.zeros(0)
    fits = (needed <= context.usable_bytes) | is_free(grid, free=space.free_stages)
    bounds = np.full(len(grid), np.inf)
    if fits.any():
        bounds[fits] = _bounds(context, grid.take(fits))
    candidates = Candidates(context, len(everything), grid, needed, fits, bounds, ())
    if not fits.all():
        rejections.append(memory_rejection(candidates, fits))
    return Candidates(context, len(everything), grid, needed, fits, bounds, tuple(rejections))


def _bounds(context: RuleContext, grid: Grid) -> Column:
    """`relaxed_seconds`, once for neighbouring rows that differ in nothing but what they recompute."""
    columns = [getattr(grid, column.name) for column in fields(grid) if column.name != "recompute"]
    first = np.ones(len(grid), dtype=bool)
    first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    bounds = relaxed_seconds(problem_of(context), grid.take(first), layers_per_stage=context.layers_per_stage)
    return np.asarray(bounds[np.cumsum(first) - 1])


def _count_rejections(grid: Grid, outcomes: Sequence[RuleOutcome]) -> list[RejectionCount]:
    """Every row counts under the first rule it breaks, so that the counts add up."""
    alive = np.ones(len(grid), dtype=bool)
    counts = []
    for outcome in outcomes:
        fallen = np.flatnonzero(alive & ~outcome.mask_ok)
        alive &= outcome.mask_ok
        if len(fallen):
            example = outcome.rejection(int(fallen[0]))
            counts.append(
                RejectionCount(rule=outcome.rule.name, count=len(fallen), example=example.message, fix=example.fix)
            )
    return counts


def gib_apart(needed_bytes: float, capacity_bytes: float) -> tuple[str, str]:
    """Two sizes in GiB without the unit, with as many decimals, from one to three, as tell them apart."""
    for digits in (1, 2, 3):
        needed, capacity = (f"{value / GIB:.{digits}f}" for value in (needed_bytes, capacity_bytes))
        if needed != capacity:
            break
    return needed, capacity


def memory_rejection(candidates: Candidates, fits: Mask) -> RejectionCount:
    """All rows that do not fit, with the one that misses by least when its stages are even."""
    needed = np.where(fits, np.inf, candidates.needed_bytes)
    row = int(np.argmin(needed))
    context = candidates.context
    wanted, held = gib_apart(float(needed[row]), context.usable_bytes)
    limit = "" if context.memory_limit is None else f" to use ({context.memory_limit.words})"
    return RejectionCount(
        rule="memory",
        count=int((~fits).sum()),
        example=f"{candidates.summary(row)} needs {wanted} GiB a device; {context.cluster.device.name} has {held} GiB{limit}",
        fix="more sharding, more recomputation, a smaller micro-batch or a device with more memory",
    )

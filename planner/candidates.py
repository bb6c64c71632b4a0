"""The candidates of a declared space: what rules, memory and bounds say of them, as much as is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import step_time_lower_bound
from costmodel.build import build_plan
from costmodel.memory import grid_peak_bytes, peak_memory, plan_memory
from costmodel.memory_bound import LeastMemory
from costmodel.relaxed import average_seconds, relaxed_seconds
from costmodel.runtimes.grid import Grid, first_of_alike
from costmodel.runtimes.rules import RuleContext, RuleOutcome, obeyed
from costmodel.specs import Plan, RecomputeSpec, RejectionCount
from costmodel.work_bound import work_bound
from planner.completion import is_free, problem_of
from planner.space import Space
from planner.summary import summarize_parallel

GIB = 2**30
BLOCK_ROWS = 1 << 13
_LEAST, _WEIGHED, _COMPARED = 64, 512, 128
Column = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]
Levels = NDArray[np.int8]


class Known(IntEnum):
    """What is known of a row: the work that it is; a bound with data parallelism, and the memory of the first pipeline rank; a
    bound that knows the shape of its pipeline; the memory of all ranks (where boundaries are open that decides nothing, and is
    left out).
    """

    WORK = 0
    AVERAGE = 1
    BOUND = 2
    MEMORY = 3


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What a space holds.

    ``grid``: the n rows that obey every rule, ``rejections`` of the others by rule. ``bounds`` [n] seconds that all completions
    of a row take at least, infinite where none fits. ``fits`` [n]: a completion fits, or may. ``needed_bytes`` [n] that the
    fullest device of a row needs at least, with allocator waste and contexts, when stages are even and all layers recomputed,
    if any. How well the three are known, `Known` says for every row [n]. ``complete``: rows have one completion each, since
    neither boundaries nor numbers of recomputed layers are open.
    """

    context: RuleContext
    free_stages: bool
    complete: bool
    total: int
    grid: Grid
    needed_bytes: Column
    fits: Mask
    bounds: Column
    recomputed: Column
    known: Levels
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

    def average(self, rows: Index, *, below: float = np.inf) -> None:
        """Bound rows with data parallelism, and those left ``below`` some seconds with the memory of their first pipeline rank,
        which holds the embedding and most activations: in wide spaces most rows do not fit, and most of them not even there, at
        a fraction of the cost.
        """
        if self.context.layers_per_stage is None and len(rows):
            grid = self.grid.take(rows)
            self._raise(rows, average_seconds(problem_of(self.context), grid, self.recomputed[rows]))
        self.known[rows] = Known.AVERAGE
        rows = rows[self.bounds[rows] < below]
        grid = self.grid.take(rows)
        self.needed_bytes[rows] = needed = device_bytes(self.context, grid, first_rank_only=True)
        self.fits[rows] = fits = (needed <= self.context.usable_bytes) | is_free(grid, free=self.free_stages)
        self.bounds[rows[~fits]] = np.inf

    def bound(self, rows: Index) -> None:
        """Bound rows with the shape of their pipelines."""
        context, grid, layers = self.context, self.grid.take(rows), self.context.layers_per_stage
        if self.complete:
            inputs = (context.model, context.cluster, context.training, context.runtime)
            bounds = step_time_lower_bound(*inputs, grid, layers_per_stage=layers)
        else:
            relaxed = partial(relaxed_seconds, problem_of(context), layers_per_stage=layers)
            bounds = _once_for_all_kinds(grid, relaxed)
        self._raise(rows, bounds)
        self.known[rows] = Known.BOUND

    def _raise(self, rows: Index, bounds: Column) -> None:
        self.bounds[rows] = np.maximum(self.bounds[rows], bounds)

    def weigh(self, rows: Index) -> None:
        """Find the memory of rows."""
        rows = rows[self.known[rows] < Known.MEMORY]
        self.known[rows] = Known.MEMORY
        rows = rows[~is_free(self.grid.take(rows), free=self.free_stages)]
        self.needed_bytes[rows] = device_bytes(self.context, self.grid.take(rows))
        self.fits[rows] = self.needed_bytes[rows] <= self.context.usable_bytes
        self.bounds[rows[~self.fits[rows]]] = np.inf

    def copy(self) -> Candidates:
        """The same, of which more can become known apart from this one."""
        names = ("needed_bytes", "fits", "bounds", "known")
        return replace(self, **{name: getattr(self, name).copy() for name in names})

    def leanest(self, rows: Index) -> tuple[int, float]:
        """The row that needs the fewest bytes of some rows, with an even split where its boundaries are open, and the bytes.

        No row needs less than is known of it, so those with the smallest bounds are weighed, kind by kind and more each time,
        until no bound left is smaller.
        """
        rows = rows[np.argsort(self.needed_bytes[rows], kind="stable")]
        row, needed, many = -1, np.inf, _LEAST
        while len(rows):
            kind = _kinds(self.grid)[rows]
            chosen = np.flatnonzero(kind == kind[0])[:many]
            some, many = np.sort(rows[chosen]), min(2 * many, _WEIGHED)
            exact = device_bytes(self.context, self.grid.take(some))
            least = int(np.argmin(exact))
            row, needed = min(
                (row, needed), (int(some[least]), float(exact[least])), key=lambda found: (found[1], found[0])
            )
            rows = np.delete(rows, chosen)
            rows = rows[self.needed_bytes[rows] <= needed]
        return row, needed

    def learn(self, rows: Index) -> None:
        """All that is known of rows before they are completed."""
        rows = np.sort(rows)
        self.average(rows[self.known[rows] < Known.AVERAGE])
        rows = rows[self.fits[rows]]
        self.bound(rows[self.known[rows] < Known.BOUND])
        self.weigh(rows)

    def told(self) -> Candidates:
        """The same with the rows that do not fit among the rejections."""
        return self if self.fits.all() else replace(self, rejections=(*self.rejections, memory_rejection(self)))


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
        for rows in _blocks(_kinds(grid)):
            needed[rows] = grid_peak_bytes(*inputs, grid.take(rows), first_rank_only=first_rank_only)
        return needed
    plans = [row_plan(context, grid, row) for row in range(len(grid))]
    device = context.cluster.device
    peaks = [peak_memory(plan_memory(plan, context.runtime), context.runtime, device).device for plan in plans]
    return np.array(peaks, dtype=np.float64)


def _kinds(grid: Grid) -> NDArray[np.int64]:
    """Equal for rows whose memory is priced together, [n]."""
    return np.asarray(grid.num_model_chunks * 2 + (grid.pipeline_parallel_size > 1))


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


def survey(space: Space) -> Candidates:
    """Every candidate of a space that obeys the rules, with the least that is known of it: the work that it is."""
    context, everything = space.context, space.grid
    rejections = _count_rejections(everything, space.outcomes)
    grid = everything.take(np.flatnonzero(obeyed(space.outcomes)))
    needed, fits = np.zeros(len(grid)), np.ones(len(grid), dtype=bool)
    recomputed = np.zeros((2, len(grid)))
    if context.layers_per_stage is None and len(grid):
        needed, fits, recomputed = _least_memory(context, grid, is_free(grid, free=space.free_stages))
    bounds, rows = np.full(len(grid), np.inf), np.flatnonzero(fits)
    if len(rows):
        bounds[rows] = work_bound(
            problem_of(context),
            grid.take(rows),
            layers_per_stage=context.layers_per_stage,
            recomputed=(recomputed[0, rows], recomputed[1, rows]),
        )
    return Candidates(
        context=context,
        free_stages=space.free_stages,
        complete=space.recompute_layers == "all" and not space.free_stages,
        total=len(everything),
        grid=grid,
        needed_bytes=needed,
        fits=fits,
        bounds=bounds,
        recomputed=recomputed[0],
        known=np.full(len(grid), Known.WORK, dtype=np.int8),
        rejections=tuple(rejections),
    )


def _least_memory(context: RuleContext, grid: Grid, is_open: Mask) -> tuple[Column, Mask, Column]:
    """Bytes that rows need at least when their stages are even [n], whether some completion may fit [n], and the layers that all
    ranks and rank 0 recompute at least where one may [2, n].
    """
    capacity = context.usable_bytes
    least = LeastMemory.of(context.model, context.cluster, context.training, context.runtime, grid)
    needed, recomputed = least.even(), np.zeros((2, len(grid)))
    fits, open_rows = needed <= capacity, np.flatnonzero(is_open)
    fits[open_rows] = least.take(open_rows).has_room(capacity)
    given, open_rows = np.flatnonzero(fits & ~is_open), np.flatnonzero(fits & is_open)
    recomputed[:, given] = least.take(given).recomputed(capacity)
    recomputed[0, open_rows] = least.take(open_rows).recomputed_somewhere(capacity)
    return needed, fits, recomputed


def sift(space: Space) -> Candidates:
    """Every candidate of a space that obeys the rules, with all that is known before it is completed.

    ``needed_bytes`` is exact where a row fits as it stands; elsewhere it may be that of the first pipeline rank.
    """
    candidates = survey(space)
    candidates.learn(np.flatnonzero(candidates.fits))
    return candidates.told()


def _once_for_all_kinds(grid: Grid, seconds: Callable[[Grid], Column]) -> Column:
    """``seconds`` of every row, computed once for neighbouring rows that differ in nothing but what they recompute."""
    if not len(grid):
        return np.zeros(0)
    first, which = first_of_alike(grid, "recompute")
    return np.asarray(seconds(grid.take(first))[which])


def _count_rejections(grid: Grid, outcomes: Sequence[RuleOutcome]) -> list[RejectionCount]:
    """Every row counts under the first rule it breaks, so that the counts add up."""
    alive = np.ones(len(grid), dtype=bool)
    counts = []
    for outcome in outcomes:
        if outcome.mask_ok.all():
            continue
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


def memory_rejection(candidates: Candidates) -> RejectionCount:
    """All rows that do not fit, with one that misses by little when its stages are even: where others fit, the one that needs
    least of those of which it is known, or of those with the smallest bounds.
    """
    context, bytes_of = candidates.context, candidates.needed_bytes
    rows = np.flatnonzero(~candidates.fits)
    weighed = rows[(candidates.known[rows] == Known.MEMORY) & (bytes_of[rows] > context.usable_bytes)]
    if candidates.fits.any() and len(weighed):
        row = int(weighed[np.argmin(bytes_of[weighed])])
        needed = float(bytes_of[row])
    else:
        few = _COMPARED if candidates.fits.any() else len(rows)
        row, needed = candidates.leanest(rows[np.argsort(bytes_of[rows], kind="stable")[:few]])
    wanted, held = gib_apart(needed, context.usable_bytes)
    limit = "" if context.memory_limit is None else f" to use ({context.memory_limit.words})"
    return RejectionCount(
        rule="memory",
        count=candidates.rejected_by_memory,
        example=f"{candidates.summary(row)} needs {wanted} GiB a device; {context.cluster.device.name} has {held} GiB{limit}",
        fix="more sharding, more recomputation, a smaller micro-batch or a device with more memory",
    )

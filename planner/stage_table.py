"""Every stage that a pipeline of one chunk a rank may have, for n candidates: its times and the least recomputation it fits with.

A stage of pipeline rank s is a run of consecutive layers. What its rank takes and holds depends on the kinds of these layers
alone, so equal runs are computed once: with one kind of layer there is one run per number of layers. One row of
costmodel.completions prices one run on all ranks at once.

    (1) n(s, run) = the fewest recomputed layers with which the rank fits; memory falls with every further one, time rises, so no
        other number is in a fastest plan
    (2) window: f + b of a run without recomputation <= (1 + WINDOW) x that of the slowest stage of the min-max split
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.completions import CompletionBytes, StageColumns, completion_times
from costmodel.layer_kinds import kind_of_layer
from costmodel.runtimes.grid import Grid
from costmodel.setting import Problem
from costmodel.specs import ModelSpec
from costmodel.step import StepTimes

WINDOW = 0.25
IntArray = NDArray[np.int64]
Cube = NDArray[np.float64]
Allowed = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Runs:
    """The different runs of layers of a model, shortest first.

    ``start`` and ``length`` [R]: where a run first occurs. ``of`` [longest, L]: which run ``length - 1`` and the first layer
    make; -1 beyond the last layer. A place is where a run may lie; there are T of them.
    """

    start: IntArray
    length: IntArray
    of: IntArray

    @cached_property
    def places(self) -> tuple[IntArray, IntArray, IntArray]:
        """First layer, first layer behind and run of every place [T], shortest runs first."""
        row, first = np.nonzero(self.of >= 0)
        return first, first + row + 1, self.of[row, first]

    def by_start(self, values: Cube) -> Cube:
        """Values of places [n, T] by length and first layer [n, longest, L], infinite where there is no place."""
        return self._spread(values, self._of_start)

    def by_end(self, values: Cube) -> Cube:
        """The same by length and first layer behind [n, longest, L + 1]."""
        return self._spread(values, self._of_end)

    def _spread(self, values: Cube, place: IntArray) -> Cube:
        return np.concatenate([values, np.full((len(values), 1), np.inf)], axis=1)[:, place]

    @cached_property
    def _of_start(self) -> IntArray:
        place = np.full(self.of.shape, -1)
        place[self.of >= 0] = np.arange(len(self.places[0]))
        return place

    @cached_property
    def _of_end(self) -> IntArray:
        longest, depth = self.of.shape
        place = np.full((longest, depth + 1), -1)
        first, end, _ = self.places
        place[end - first - 1, end] = np.arange(len(end))
        return place


def find_runs(model: ModelSpec, longest: int, shortest: int = 1) -> Runs:
    """All runs of ``shortest`` to ``longest`` layers."""
    sequence = kind_of_layer(model, np.arange(model.num_hidden_layers)).tolist()
    depth, of = len(sequence), np.full((longest, len(sequence)), -1, dtype=np.int64)
    known: dict[tuple[int, ...], int] = {}
    starts, lengths = [], []
    for length in range(shortest, longest + 1):
        for start in range(depth - length + 1):
            run = tuple(sequence[start : start + length])
            if run not in known:
                known[run] = len(known)
                starts.append(start)
                lengths.append(length)
            of[length - 1, start] = known[run]
    return Runs(np.array(starts), np.array(lengths), of)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTable:
    """n candidates, R runs, p ranks. Seconds [n, R, p] with ``recomputed`` layers; ``inside`` the window, ``allowed``: fits too.

    ``transfer`` [n, p]: messages; ``clips``: as in `StepTimes`.
    """

    runs: Runs
    forward: Cube
    backward: Cube
    start: Cube
    after: Cube
    optimizer: Cube
    inside: Allowed
    allowed: Allowed
    recomputed: IntArray
    transfer: NDArray[np.float64]
    clips: bool


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Runs of which some are ``inside`` [n, R, p] equation (2), and their times without recomputation."""

    runs: Runs
    times: StepTimes
    inside: Allowed


def tabulate(problem: Problem, grid: Grid, window: Window, *, capacity_bytes: float, counts: str | int) -> StageTable:
    """The table of candidates that share schedule, ranks and embedding table, with one chunk a rank.

    Args:
        problem: what is trained where.
        grid: n candidates.
        window: of these candidates.
        capacity_bytes: of a device.
        counts: of recomputed layers, where the candidate recomputes: ``per_stage`` by (1), ``all`` layers, or a number of them
            in every stage.
    """
    runs = window.runs
    recomputed, fits = _fewest(problem, grid, window, capacity_bytes=capacity_bytes, counts=counts)
    times = window.times if not recomputed.any() else _times(problem, grid, runs, recomputed)
    shape = (len(grid), len(runs.length), -1)
    return StageTable(
        runs=runs,
        forward=times.forward.sum(axis=2).reshape(shape),
        backward=times.backward.sum(axis=2).reshape(shape),
        start=times.start.reshape(shape),
        after=times.reduction.reshape(shape),
        optimizer=times.optimizer.reshape(shape),
        inside=window.inside,
        allowed=window.inside & fits,
        recomputed=recomputed,
        transfer=times.transfer.reshape(shape)[:, 0],
        clips=times.clips,
    )


def _columns(runs: Runs, recomputed: IntArray, ranks: int) -> StageColumns:
    """One row per candidate and run; ``recomputed`` [n, R, p]."""
    candidates = len(recomputed)
    layers = np.repeat(np.tile(runs.length, candidates)[:, None], ranks, axis=1)
    starts = np.repeat(np.tile(runs.start, candidates)[:, None], ranks, axis=1)
    return StageColumns(starts=starts, layers=layers, recomputed=recomputed.reshape(-1, ranks))


def _times(problem: Problem, grid: Grid, runs: Runs, recomputed: IntArray | None) -> StepTimes:
    ranks, count = int(grid.pipeline_parallel_size[0]), len(runs.length)
    held = np.zeros((len(grid), count, ranks), dtype=np.int64) if recomputed is None else recomputed
    return completion_times(problem, grid.take(np.repeat(np.arange(len(grid)), count)), _columns(runs, held, ranks))


def _passes(times: StepTimes, candidates: int) -> Cube:
    """F + b [n, R, p]."""
    both = times.forward.sum(axis=2) + times.backward.sum(axis=2)
    return np.asarray(both.reshape(candidates, -1, both.shape[1]))


def find_window(problem: Problem, grid: Grid, window: float = WINDOW) -> Window:
    """Every run that is inside the window on a rank of a candidate."""
    depth, ranks = problem.model.num_hidden_layers, int(grid.pipeline_parallel_size[0])
    most = depth - ranks + 1
    longest = min(most, int(np.ceil((1 + window) * -(-depth // ranks))) + 1)
    while True:
        # A stage has at least what is left when all others are as long as they may be.
        runs = find_runs(problem.model, longest, max(1, depth - (ranks - 1) * longest))
        times = _times(problem, grid, runs, None)
        inside = _window(runs, _passes(times, len(grid)), window)
        if longest == most or not inside[:, runs.length == longest].any():
            return Window(runs, times, inside)
        longest = min(most, 2 * longest)


def _window(runs: Runs, passes: Cube, window: float) -> Allowed:
    """Equation (2) [n, R, p]."""
    first, _, run = runs.places
    slowest = np.full((len(passes), runs.of.shape[1] + 1), np.inf)
    slowest[:, 0] = 0.0
    for rank in range(passes.shape[2]):
        slowest = runs.by_end(np.maximum(slowest[:, first], passes[:, run, rank])).min(axis=1)
    return np.asarray(passes <= (1.0 + window) * (1.0 + 1e-12) * slowest[:, -1][:, None, None])


def _fewest(
    problem: Problem, grid: Grid, window: Window, *, capacity_bytes: float, counts: str | int
) -> tuple[IntArray, Allowed]:
    """Equation (1) [n, R, p] by bisection, and whether a rank fits with it."""
    runs, ranks = window.runs, int(grid.pipeline_parallel_size[0])
    repeated = grid.take(np.repeat(np.arange(len(grid)), len(runs.length)))
    length = np.broadcast_to(runs.length[None, :, None], (len(grid), len(runs.length), ranks))

    price = CompletionBytes(problem, repeated)

    def fits(recomputed: IntArray) -> Allowed:
        needed = price.of(_columns(runs, recomputed, ranks))
        return np.asarray(needed.reshape(recomputed.shape) <= capacity_bytes)

    most = length if isinstance(counts, str) else np.minimum(length, counts)
    high = np.where(grid.recompute[:, None, None] > 0, most, 0)
    if counts != "per_stage":
        return high, fits(high)
    low = np.full_like(high, -1)
    plain = fits(np.zeros_like(high))
    high = np.where(plain, 0, high)
    possible = plain | (fits(high) if (high > 0).any() else False)
    while (wide := (high - low > 1) & possible & window.inside).any():
        middle = np.where(wide, (low + high) // 2, high)
        enough = fits(middle)
        high, low = np.where(wide & enough, middle, high), np.where(wide & ~enough, middle, low)
    return high, possible


def stages_of_lengths(table: StageTable, rows: IntArray, lengths: IntArray) -> tuple[Allowed, StageColumns]:
    """Boundaries with the counts of a table: which of them it allows [c], and these as columns.

    Args:
        table: of n candidates.
        rows: candidates [c].
        lengths: layers of their stages [c, p].
    """
    starts = np.cumsum(lengths, axis=1) - lengths
    longest = len(table.runs.of)
    run = table.runs.of[np.minimum(lengths, longest) - 1, starts]
    rank = np.arange(lengths.shape[1])[None, :]
    allowed = table.allowed[rows[:, None], run, rank] & (lengths <= longest)
    inside = np.asarray(allowed.all(axis=1))
    recomputed = table.recomputed[rows[:, None], run, rank][inside]
    return inside, StageColumns.contiguous(lengths[inside], recomputed)

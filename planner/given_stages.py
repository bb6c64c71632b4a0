"""How many layers of given stages are recomputed: enough for every rank to fit, and bounds on what that costs at least.

Stages of n candidates that share schedule, ranks, chunks and embedding table; per rank the bytes M of equation (4) of
costmodel/memory.py depend on its recomputed layers n_k alone. M is the largest of sums of what is kept at some instant, plus
what one recomputed layer makes again, so

    (1) M(n) >= M(0) + W - sum of save_k n_k for any n but 0,   save_k of `CompletionBytes.saved`,
        W = sum of the negative w_k, or, where none is, the least of w_k = M(one layer of k) - M(0) + save_k: a first layer may
        save more than others do, stage by stage, and what it makes again is there once
    (2) least(rank) = ceil((M(0) + W - capacity) / largest save_k) recomputed layers where M(0) is too much: no fewer fit
    (3) a stage recomputes at least what is left of (2) when all others of its rank do so wholly

Layers are taken from (2) on where a layer saves most, until the rank fits; with one chunk a rank these are the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import bound_ends
from costmodel.completions import CompletionBytes, StageColumns, completion_setting, other_stages
from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.placement import stages_of_ranks
from costmodel.setting import Matrix, Problem
from costmodel.step import step_times

IntArray = NDArray[np.int64]
Column = NDArray[np.float64]


class GivenStages:
    """n candidates with ``layers`` and at most ``most`` recomputed ones of every virtual stage [n, V].

    ``held`` [p, v]: stages of every rank.
    """

    def __init__(
        self, problem: Problem, grid: Grid, *, layers: IntArray, most: IntArray, capacity_bytes: float
    ) -> None:
        self.problem, self.grid, self.layers, self.most = problem, grid, layers, most
        self.capacity_bytes = capacity_bytes
        schedule = SCHEDULES[int(grid.pipeline_schedule[0])]
        self.held = stages_of_ranks(schedule, int(grid.pipeline_parallel_size[0]), int(grid.num_model_chunks[0]))

    @cached_property
    def _needed(self) -> CompletionBytes:
        return CompletionBytes(self.problem, self.grid)

    @cached_property
    def _savings(self) -> tuple[Matrix, Matrix]:
        return self._needed.saved()

    @property
    def saved(self) -> Matrix:
        """Save_k [n, V]."""
        return self._savings[0]

    @cached_property
    def plain(self) -> Matrix:
        """M(0) [n, p]."""
        return self.bytes(np.zeros_like(self.layers))

    def columns(self, recomputed: IntArray) -> StageColumns:
        """The stages with some recomputed layers [n, V]."""
        return StageColumns.contiguous(self.layers, recomputed)

    def bytes(self, recomputed: IntArray) -> Matrix:
        """M [n, p]."""
        return self._needed.of(self.columns(recomputed))

    def bytes_of(self, recomputed: IntArray, ranks: Sequence[int] | None = None) -> Matrix:
        """M [c, p] of counts [c, V] of the one candidate, on some ranks or on all."""
        return self._bytes_of(np.zeros(len(recomputed), dtype=np.int64), recomputed, ranks)

    def fits(self, recomputed: IntArray) -> NDArray[np.bool_]:
        """Whether counts [c, V] of the one candidate fit on all ranks [c]."""
        return np.asarray((self.bytes_of(recomputed) <= self.capacity_bytes).all(axis=1))

    def short(self, *, working_set: bool) -> Matrix:
        """M(0) + W - capacity where M(0) is too much, else 0 [n, p]; without ``working_set``, which takes a while, W is only what
        first layers save at most.
        """
        over = np.maximum(0.0, self.plain - self.capacity_bytes)
        if not over.any():
            return over
        if not working_set:
            return np.where(over > 0, np.maximum(1.0, over - self._savings[1][:, self.held].sum(axis=2)), 0.0)
        more = self._first_layers()
        negative, least = np.minimum(0.0, more).sum(axis=2), more.min(axis=2)
        again = np.where(np.isfinite(least), np.where(negative < 0, negative, least), 0.0)
        return np.where(over > 0, np.maximum(1.0, over + again), 0.0)

    def _first_layers(self) -> Matrix:
        """w_k of equation (1) [n, p, v], infinite where nothing can be recomputed; all chunks priced at once."""
        rows, (ranks, chunks) = len(self.grid), self.held.shape
        one = np.zeros((rows, chunks, self.held.size), dtype=np.int64)
        for chunk, stages in enumerate(self.held.T):
            one[:, chunk, stages] = np.minimum(1, self.most[:, stages])
        needed = self._bytes_of(np.repeat(np.arange(rows), chunks), one.reshape(rows * chunks, -1))
        by_chunk = needed.reshape(rows, chunks, ranks).transpose(0, 2, 1)
        more = by_chunk - self.plain[:, :, None] + self.saved[:, self.held]
        return np.asarray(np.where(self.most[:, self.held] > 0, more, np.inf))

    def _bytes_of(self, rows: IntArray, recomputed: IntArray, ranks: Sequence[int] | None = None) -> Matrix:
        """M [c, p] of counts [c, V] of candidates [c]."""
        needed = CompletionBytes(self.problem, self.grid.take(rows), ranks)
        return needed.of(StageColumns.contiguous(self.layers[rows], recomputed))

    def least(self, short: Matrix) -> IntArray:
        """Equation (2) [n, p]."""
        save = np.where(self.most > 0, self.saved, 0.0)[:, self.held].max(axis=2)
        layers = np.divide(short, save, out=np.zeros_like(short), where=save > 0)
        return np.asarray(np.ceil(layers - 1e-9), dtype=np.int64)

    def fill(self, least: IntArray) -> tuple[IntArray, Matrix]:
        """Recomputed layers [n, V] with which the ranks fit, or all of those that do not fit at all, and M [n, p] with them.

        Args:
            least: layers to begin with [n, p].
        """
        saved = self.saved[:, self.held]
        # Of chunks that save alike the last ones: the first chunk's backwards are those that all ranks wait for at the end.
        order = saved.shape[2] - 1 - np.argsort(-saved[:, :, ::-1], axis=2, kind="stable")
        size = np.take_along_axis(self.most[:, self.held], order, axis=2)
        ends = np.cumsum(size, axis=2)
        number = np.minimum(least, ends[:, :, -1])
        while True:
            recomputed = _filled(number, ends, size, order, self.held)
            needed = self.bytes(recomputed)
            lacking = (needed > self.capacity_bytes) & (number < ends[:, :, -1])
            if not lacking.any():
                return recomputed, needed
            number = number + lacking

    def fill_uniformly(self) -> IntArray:
        """The smallest number of layers, the same in all stages, with which all ranks fit; all layers where none does."""
        low, high = np.full(len(self.grid), -1), self.most.max(axis=1)
        while (wide := high - low > 1).any():
            middle = np.where(wide, (low + high) // 2, high)
            enough = (self.bytes(np.minimum(self.most, middle[:, None])) <= self.capacity_bytes).all(axis=1)
            high, low = np.where(wide & enough, middle, high), np.where(wide & ~enough, middle, low)
        return np.asarray(np.minimum(self.most, high[:, None]))

    def lower(self, least: IntArray) -> Column:
        """Seconds that no counts of at least ``least`` layers a rank [n, p] beat [n].

        The larger of the bound of paths.py with (3) recomputed, and of the lanes with the rest of ``least`` wherever it is.
        """
        own = np.where(self.most > 0, self.layers, 0)[:, self.held]
        least = np.minimum(least, own.sum(axis=2))
        forced = np.empty_like(self.layers)
        forced[:, self.held] = np.clip(least[:, :, None] - (own.sum(axis=2, keepdims=True) - own), 0, own)
        setting = completion_setting(self.problem, self.grid, self.columns(forced))
        times, further = step_times(setting), np.minimum(self.most, forced + 1)
        after = step_times(other_stages(setting, self.columns(further)))
        longer = np.where(further > forced, (after.backward - times.backward).sum(axis=2), np.inf)[:, self.held]
        rest = least - forced[:, self.held].sum(axis=2)
        more = np.where(rest > 0, rest * np.where(rest > 0, longer.min(axis=2), 0.0), 0.0)
        lanes = bound_ends(self.grid, times, more=more * self.grid.num_micro_batches[:, None])
        return times.finish(np.maximum(lanes, bound_ends(self.grid, times)))


def _filled(number: IntArray, ends: IntArray, size: IntArray, order: IntArray, held: IntArray) -> IntArray:
    """Recomputed layers of every virtual stage [n, V] where rank r recomputes ``number`` [n, p] in ``order``."""
    taken = np.clip(number[:, :, None] - (ends - size), 0, size)
    by_chunk = np.empty_like(taken)
    np.put_along_axis(by_chunk, order, taken, axis=2)
    result = np.empty((len(number), held.size), dtype=np.int64)
    result[:, held] = by_chunk
    return result

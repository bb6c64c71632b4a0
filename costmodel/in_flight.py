"""Micro-batches whose activations a pipeline rank keeps at once, as columns over candidates.

    (1) none: 1; naive and GPipe: m; 1F1B: min(m, p - s)                                    at rank s of p, m micro-batches
    (2) interleaved, chunk micro-batches: K = min(m v, 2 (p - s - 1) + (v - 1) r + 1)       r = m // max(1, m // p)
    (3) of them of chunk c: K_c = r (K // (r v)) + clip(K mod (r v) - c r, 0, r)            forwards run in rounds of r
    (4) looped breadth-first: K_c = m of every chunk, before the first backward

Where the backward is split: split_in_flight.py.

Sources: arXiv 2104.04473 section 2.2; Megatron-LM schedules.py and torch 2.13.0 ScheduleInterleaved1F1B (warm-up operations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.schedules import micro_batches_per_round
from costmodel.shard_sizes import Column
from costmodel.specs import PipelineSchedule


def in_flight(grid: Grid, rank: Column) -> Column:
    """Equations (1), (2) and (4): micro-batches of a chunk, all chunks together; no meaning where the backward is split."""
    found = grid.num_micro_batches + np.zeros_like(rank)
    for name, column in _OTHER_COUNTS.items():
        rows = grid.pipeline_schedule == SCHEDULES.index(name)
        if rows.any():
            found = np.where(rows, column(grid, rank), found)
    return found


def _interleaved(grid: Grid, rank: Column) -> Column:
    """Equation (2)."""
    chunks, ranks_behind = grid.num_model_chunks, grid.pipeline_parallel_size - rank - 1
    warmup = 2 * ranks_behind + (chunks - 1) * grid_micro_batches_per_round(grid)
    return np.asarray(np.minimum(grid.num_micro_batches * chunks, warmup + 1))


_OTHER_COUNTS: dict[PipelineSchedule, Callable[[Grid, Column], Column]] = {
    "none": lambda grid, rank: np.ones_like(grid.num_micro_batches),
    "1f1b": lambda grid, rank: np.minimum(grid.num_micro_batches, grid.pipeline_parallel_size - rank),
    "interleaved_1f1b": _interleaved,
    "looped_bfs": lambda grid, rank: grid.num_micro_batches * grid.num_model_chunks,
}
"""Equations (1), (2) and (4) of the schedules that do not keep all m micro-batches of one chunk."""


def in_flight_of_chunk(grid: Grid, total: Column, chunk: int | Column) -> Column:
    """Equation (3) for interleaved rows, (4) for breadth-first ones; a rank with one chunk keeps ``total``. ``chunk`` as a column
    [v, 1] gives all chunks [v, n]; 0 of those that a row does not have.
    """
    per_round = grid_micro_batches_per_round(grid)
    cycle = per_round * grid.num_model_chunks
    turns, begun = np.divmod(total, cycle)
    part = per_round * turns + np.minimum(np.maximum(begun - chunk * per_round, 0), per_round)
    at_once = runs_breadth_first(grid)
    if at_once.any():
        part = np.where(at_once, grid.num_micro_batches, part)
    part = np.where(grid.num_model_chunks > 1, part, total)
    return np.asarray(part * (chunk < grid.num_model_chunks))


def runs_breadth_first(grid: Grid) -> NDArray[np.bool_]:
    """Rows whose chunks take turns only once in each direction, [n]."""
    return np.asarray(grid.pipeline_schedule == SCHEDULES.index("looped_bfs"))


def grid_micro_batches_per_round(grid: Grid) -> Column:
    """Micro-batches per round of equation (2)."""
    return np.asarray(micro_batches_per_round(grid.pipeline_parallel_size, grid.num_micro_batches))


def rows_by_value(columns: Sequence[Column]) -> Iterator[tuple[tuple[int, ...], Column]]:
    """Every combination of values in the columns [n], and the rows that have it."""
    if not len(columns[0]):
        return
    order = np.lexsort(columns)
    ordered = np.stack(columns, axis=1)[order]
    first = [0, *(1 + np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1))).tolist()]
    for key, start, stop in zip(ordered[first].tolist(), first, [*first[1:], len(order)], strict=True):
        yield tuple(key), order[start:stop]

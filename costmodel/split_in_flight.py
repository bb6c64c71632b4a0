"""What a pipeline rank keeps where the backward is split, counted along the order of its operations.

    (1) a micro-batch keeps a chunk's activations from F to the end of B or W: every product's node, which W needs, holds on to
        those before it, hence nearly to the whole graph
    (2) from I to W it keeps the gradients of the outputs of all products and norms besides; the loss's own tensors end with I
    (3) stage 0 does nothing in I, so (2) does not apply to it; a chunk that recomputes whole layers does everything in I

An operation's own micro-batch counts in (1) throughout and in (2) at its end. The peaks before and at the end of operations are
at instants at which no other instant holds more of everything; which of them, the bytes decide.

Source: torch 2.13.0, torch/distributed/pipelining/_backward.py (`stage_backward_input`, `stage_backward_weight`), stage.py.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.in_flight import rows_by_value
from costmodel.runtimes.grid import FULL_RECOMPUTE, SCHEDULES, Grid
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES
from costmodel.runtimes.rules_core import schedule_is
from costmodel.schedules import Kind, operation_table
from costmodel.shard_sizes import Column
from costmodel.specs import PipelineSchedule
from costmodel.stage_contents import Chunks, Part, RankContents

_ROUNDS = 6
"""Micro-batches per rank after which an order has repeated itself."""


def splits_backward(grid: Grid) -> NDArray[np.bool_]:
    """Rows whose schedule splits the backward, [n]."""
    return schedule_is(grid, *SPLIT_BACKWARD_SCHEDULES)


def fill_split_counts(
    grid: Grid,
    contents: RankContents,
    *,
    kept: Column,
    output_gradients: Column,
    counts: Column,
    waiting: Column,
) -> Column:
    """Overwrite the rows whose backward is split with the counts at their peak before an operation's end, in place.

    Args:
        grid: n candidates.
        contents: a rank and its chunks.
        kept: activations of one micro-batch of every chunk [v, n].
        output_gradients: what a micro-batch keeps besides between I and W [v, n].
        counts: micro-batches of every chunk that keep activations [v, n].
        waiting: those of them between I and W [v, n].

    Returns:
        Bytes by which the peak at the end of an operation is larger, n.
    """
    more = np.zeros_like(grid.num_micro_batches)
    rows = np.flatnonzero(splits_backward(grid))
    whole = recomputes_whole(contents.chunks)
    sizes = (grid.pipeline_schedule, contents.rank, grid.pipeline_parallel_size, grid.num_model_chunks)
    columns = [column[rows] for column in (*sizes, _enough(grid), *whole)]
    for key, alike in rows_by_value(columns):
        chosen = rows[alike]
        schedule, rank, ranks, chunks, micro_batches, *flags = key
        before, after = _instants(SCHEDULES[schedule], rank, ranks, chunks, micro_batches, tuple(flags[:chunks]))
        bytes_of = np.concatenate([kept[:chunks, chosen], output_gradients[:chunks, chosen]])
        held = before @ bytes_of
        peak, more[chosen] = before[np.argmax(held, axis=0)], (after @ bytes_of).max(axis=0) - held.max(axis=0)
        counts[:chunks, chosen], waiting[:chunks, chosen] = peak[:, :chunks].T, peak[:, chunks:].T
        counts[chunks:, chosen] = 0
    return more


def recomputes_whole(chunks: Chunks) -> Column:
    """1 where a chunk has layers that are recomputed as a whole: its backward is not split."""
    return np.asarray(sum(_recomputes_whole(part) for part in chunks.parts) * chunks.exists)


def runs_first_whole(chunks: Chunks) -> Column:
    """1 where a chunk's first layer, which receives its input, is recomputed as a whole."""
    return np.asarray(_recomputes_whole(chunks.parts[0]) * chunks.exists)


def _recomputes_whole(part: Part) -> NDArray[np.bool_]:
    return np.asarray((part.recompute == FULL_RECOMPUTE) & (sum(part.layers) > 0))


def _enough(grid: Grid) -> Column:
    """Micro-batches with the same peak; orders of rounds of another size than p differ with every number."""
    most, count = _ROUNDS * grid.pipeline_parallel_size, grid.num_micro_batches
    looped = grid.pipeline_schedule == SCHEDULES.index("interleaved_zero_bubble")
    return np.where(looped & (count % grid.pipeline_parallel_size > 0), count, np.minimum(count, most))


@lru_cache(maxsize=8192)
def _instants(
    schedule: PipelineSchedule,
    rank: int,
    num_ranks: int,
    num_chunks: int,
    num_micro_batches: int,
    whole: tuple[int, ...],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counts by chunk, those with activations and those between I and W, before and at the ends of operations, at instants
    that none exceeds [q, 2 v].
    """
    kind, chunk = _order(schedule, rank, num_ranks, num_chunks, num_micro_batches)
    unsplit = np.array(whole) > 0
    waits = ~unsplit & ~((rank == 0) & (np.arange(num_chunks) == 0))
    last = np.where(unsplit, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)[chunk]
    own = chunk[:, None] == np.arange(num_chunks)

    def passed(which: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many such operations every chunk has had, this one included [operations, v]."""
        return np.cumsum(own & which[:, None], axis=0)

    def before_it(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([np.zeros_like(counts[:1]), counts[:-1]])

    kept = passed(kind == Kind.FORWARD) - before_it(passed((kind == Kind.BACKWARD) | (kind == last)))
    inputs, weights = (passed((kind == part) & waits[chunk]) for part in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT))
    weights = before_it(weights)
    before = np.concatenate([kept, before_it(inputs) - weights], axis=1)
    return _largest(before), _largest(np.concatenate([kept, inputs - weights], axis=1))


@lru_cache(maxsize=1024)
def _order(
    schedule: PipelineSchedule, rank: int, num_ranks: int, num_chunks: int, num_micro_batches: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Kind and chunk of a rank's operations."""
    sizes = {"num_ranks": num_ranks, "num_chunks": num_chunks, "num_micro_batches": num_micro_batches}
    table = operation_table(schedule, **sizes, only=(rank,))
    runs = table.kind[0] < Kind.SEND
    return table.kind[0, runs], table.chunk[0, runs]


def _largest(vectors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those that no other exceeds: the one with the largest sum is one of them, and what it exceeds is not."""
    found = []
    while len(vectors):
        largest = vectors[np.argmax(vectors.sum(axis=1))]
        found.append(largest)
        vectors = vectors[(vectors > largest).any(axis=1)]
    return np.array(found, dtype=np.int64)

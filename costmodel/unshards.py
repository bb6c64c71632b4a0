"""How often a pipeline rank gathers its model chunks under torch's schedules, which keep at most three of them gathered.

Before every operation the schedule gathers the chunks of the next operations, three of them, and frees all others. So a chunk

    (1) is gathered before its first operation, and again before one if three or more other chunks ran since its last
    (2) is gathered in the first backward if it is one of the first three chunks that run from there on

    (3) with resharding after forward (ZeRO 3) is whole from such a gather, and from its first backward, to its next forward;
        else the chunk whose backward begins is gathered layer by layer

Without resharding after forward (ZeRO 1 and 2) every time of (1) is an all-gather. With it (ZeRO 3) a chunk is freed after every
forward anyway; only those of (1) that follow a backward add to the m + 1 gathers of frequency.py.

Source: torch 2.13.0, torch/distributed/pipelining/schedules.py (`_add_unshard_reshard`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.in_flight import rows_by_value
from costmodel.memo import Content
from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES
from costmodel.schedules import Kind, operation_table
from costmodel.specs import PipelineSchedule

Counts = NDArray[np.int64]

MOST_GATHERED = 3
"""Model chunks that a rank has gathered at once."""
_ROUNDS = 5
"""Rounds of p micro-batches after which another round adds the same gathers as the one before."""
_ROUNDS_OF_PEAKS = 3
"""Rounds in which a rank has held every set of chunks that it ever holds with most micro-batches in flight."""


def regathers(grid: Grid, held: NDArray[np.int64], schedule: PipelineSchedule) -> Counts:
    """All-gathers of every virtual stage in one step beyond those of frequency.py, [n, V].

    Args:
        grid: n candidates.
        held: virtual stages of every rank [p, v], which all of them have.
        schedule: which all of them have.
    """
    result = np.zeros((len(grid), held.size), dtype=np.int64)
    ranks, chunks = held.shape
    if chunks <= MOST_GATHERED:
        return result
    for micro_batches in set(grid.num_micro_batches[grid.zero_stage > 0].tolist()):
        rows = np.flatnonzero(grid.num_micro_batches == micro_batches)
        by_stage = _regathers(schedule, ranks, chunks, micro_batches)
        result[rows[:, None], held.ravel()] = by_stage[grid.zero_stage[rows]]
    return result


@lru_cache(maxsize=1024)
def _regathers(schedule: PipelineSchedule, num_ranks: int, num_chunks: int, num_micro_batches: int) -> Counts:
    """`regathers` by stage of ZeRO and chunk, one rank after the other [4, p v]."""
    counts, after_backward = repeated_gathers(schedule, num_ranks, num_chunks, num_micro_batches)
    return np.stack([np.zeros_like(counts), counts, counts, after_backward]).reshape(4, -1)


def gathered_chunks(grid: Grid, rank: Counts) -> NDArray[np.bool_]:
    """Equation (2): which chunks a rank has gathered in its first backward, [n, largest v].

    Args:
        grid: n candidates.
        rank: pipeline rank of every row, n.

    Returns:
        An array for reading.
    """
    sizes = (grid.pipeline_schedule, grid.pipeline_parallel_size, grid.num_model_chunks, grid.num_micro_batches, rank)
    return _gathered_chunks(Content(*sizes))


@lru_cache(maxsize=64)
def _gathered_chunks(sizes: Content) -> NDArray[np.bool_]:
    """`gathered_chunks` of schedule, ranks, chunks, micro-batches and rank, which many calls have in common."""
    count = sizes.columns[2]
    result = np.arange(count.max()) < count[:, None]
    rows = np.flatnonzero(count > MOST_GATHERED)
    for key, alike in rows_by_value([size[rows] for size in sizes.columns]):
        schedule, ranks, chunks, micro_batches, one = key
        few = _enough(SCHEDULES[schedule], ranks, micro_batches)
        result[rows[alike], :chunks] = _first_chunks(SCHEDULES[schedule], ranks, chunks, few, one)
    return result


def gathered_at_peak(grid: Grid, rank: Counts, *, whole: Counts, begun: Sequence[Counts], ended: Counts) -> Counts:
    """Equation (3): the most that a rank has gathered when a backward begins with most micro-batches in flight, for every kind of
    beginning, and when a forward ends; [kinds + 1, n].

    Args:
        grid: n candidates of ZeRO 3.
        rank: pipeline rank of every row, n.
        whole: size of every chunk [v, n].
        begun: for every kind, size of the part of every chunk with which its backward begins [v, n].
        ended: size of what a forward holds of its chunk at its end [v, n].
    """
    result = np.zeros((len(begun) + 1, len(grid)), dtype=np.int64)
    sizes = (grid.pipeline_parallel_size, grid.num_model_chunks, grid.num_micro_batches)
    parts = (whole, *begun, ended)
    for key, rows in rows_by_value([grid.pipeline_schedule, *sizes]):
        schedule, ranks, chunks, micro_batches = key
        few = _enough(SCHEDULES[schedule], ranks, micro_batches, rounds=_ROUNDS_OF_PEAKS)
        full, *others = (part[:chunks, rows].T for part in parts)
        some, place = np.unique(rank[rows], return_inverse=True)
        held = _held_by_ranks(SCHEDULES[schedule], ranks, chunks, few, tuple(some.tolist()))
        backward, forward = (instants[place] for instants in held)
        before = _sums(backward[:, :, :chunks], full)
        for kind, part in enumerate(others[:-1]):
            result[kind, rows] = (before + _sums(backward[:, :, chunks:], part)).max(axis=1)
        after = _sums(forward[:, :, :chunks], full) + _sums(forward[:, :, chunks:], others[-1])
        result[-1, rows] = after.max(axis=1)
    return result


def _sums(flags: Counts, sizes: Counts) -> Counts:
    """What the flagged chunks of every instant [n, q, v] take together [n, q]; ``sizes`` [n, v]."""
    return np.asarray(np.einsum("nqv,nv->nq", flags, sizes))


def repeated_gathers(
    schedule: PipelineSchedule, num_ranks: int, num_chunks: int, num_micro_batches: int
) -> tuple[Counts, Counts]:
    """Equation (1) without the first: of every rank and chunk, and of them those that follow a backward; [p, v] each."""
    few = _enough(schedule, num_ranks, num_micro_batches)
    counts = _counted(schedule, num_ranks, num_chunks, few)
    if few < num_micro_batches and schedule != "looped_bfs":
        before = _counted(schedule, num_ranks, num_chunks, few - num_ranks)
        counts = counts + (num_micro_batches - few) // num_ranks * (counts - before)
    return counts[0], counts[1]


def _enough(schedule: PipelineSchedule, num_ranks: int, num_micro_batches: int, rounds: int = _ROUNDS) -> int:
    """Micro-batches from which on a schedule repeats itself; rounds of another size than p differ with every number."""
    if schedule == "looped_bfs":
        return 1
    if num_micro_batches % num_ranks:
        return num_micro_batches
    return min(num_micro_batches, rounds * num_ranks)


@lru_cache(maxsize=1024)
def _counted(schedule: PipelineSchedule, num_ranks: int, num_chunks: int, num_micro_batches: int) -> Counts:
    """`repeated_gathers` along the whole order of every rank [2, p, v]."""
    counts = np.zeros((2, num_ranks, num_chunks), dtype=np.int64)
    for rank, (kind, chunk) in enumerate(_orders(schedule, num_ranks, num_chunks, num_micro_batches)):
        before = np.arange(len(chunk) - 1, dtype=np.int32)
        # Of every chunk the last operation before each one but the first [v, operations - 1].
        last = np.maximum.accumulate(np.where(chunk[:-1] == np.arange(num_chunks)[:, None], before, -1), axis=1)
        own = last[chunk[1:], before]
        again = (own >= 0) & (np.count_nonzero(last > own, axis=0) >= MOST_GATHERED)
        after_backward = again & (kind[own] != Kind.FORWARD)
        counts[:, rank] = [np.bincount(chunk[1:][each], minlength=num_chunks) for each in (again, after_backward)]
    return counts


@lru_cache(maxsize=4096)
def _first_chunks(
    schedule: PipelineSchedule, num_ranks: int, num_chunks: int, num_micro_batches: int, rank: int
) -> NDArray[np.bool_]:
    """Equation (2) of one rank [v]."""
    ((kind, chunk),) = _orders(schedule, num_ranks, num_chunks, num_micro_batches, only=(rank,))
    later = chunk[int(np.argmax(kind != Kind.FORWARD)) :]
    gathered = np.zeros(num_chunks, dtype=bool)
    gathered[list(dict.fromkeys(later.tolist()))[:MOST_GATHERED]] = True
    return gathered


@lru_cache(maxsize=256)
def _held_by_ranks(
    schedule: PipelineSchedule, num_ranks: int, num_chunks: int, num_micro_batches: int, ranks: tuple[int, ...]
) -> list[Counts]:
    """`_held_at_peak` of some ranks [ranks, q, 2 v]; ranks with fewer instants end with ones at which nothing is held."""
    held = [_held_at_peak(schedule, num_ranks, num_chunks, num_micro_batches, rank) for rank in ranks]
    result = []
    for instants in zip(*held, strict=True):
        padded = np.zeros((len(ranks), max(map(len, instants)), 2 * num_chunks), dtype=np.int64)
        for place, flags in enumerate(instants):
            padded[place, : len(flags)] = flags
        result.append(padded)
    return result


@lru_cache(maxsize=4096)
def _held_at_peak(
    schedule: PipelineSchedule, num_ranks: int, num_chunks: int, num_micro_batches: int, rank: int
) -> tuple[Counts, Counts]:
    """Equation (3) of one rank: chunks that are whole, and the one that is begun, at every such instant [q, 2 v], of backwards
    and of forwards.

    Where a backward has ended at another instant, the first one is left out.
    """
    ((kind, chunk),) = _orders(schedule, num_ranks, num_chunks, num_micro_batches, only=(rank,))
    runs_forward = kind == Kind.FORWARD
    flying = np.cumsum(np.where(runs_forward, 1, -1))
    most = flying.max()
    backwards = np.flatnonzero((kind == Kind.BACKWARD) & (flying == most - 1))
    forwards = np.flatnonzero(runs_forward & (flying == most))
    backwards, forwards = (some[min(1, len(some) - 1) :] for some in (backwards, forwards))
    at_backwards, at_forwards = _gathered_before(runs_forward, chunk, num_chunks, (backwards, forwards))
    each, own = np.arange(len(forwards)), chunk[forwards]
    at_forwards[each, own], at_forwards[each, num_chunks + own] = 0, 1  # freed layer by layer
    return _distinct(at_backwards), _distinct(at_forwards)


def _gathered_before(
    runs_forward: NDArray[np.bool_], chunk: Counts, num_chunks: int, some: Sequence[Counts]
) -> list[Counts]:
    """Chunks that are whole before ``some`` operations of a rank, and the one that is gathered by each [operations, 2 v].

    A chunk is among the next ones (active) without a break from some operation to its own next one, and is whole all that while,
    but for the time after a forward of its own.
    """
    count, chunks = len(chunk), np.arange(num_chunks)
    at = np.where(chunk[:, None] == chunks, np.arange(count)[:, None], 2 * count)
    following = np.minimum.accumulate(at[::-1], axis=0)[::-1]  # of every chunk, from an operation on
    active = following < count
    if num_chunks > MOST_GATHERED:
        active &= following <= np.partition(following, MOST_GATHERED - 1, axis=1)[:, MOST_GATHERED - 1 : MOST_GATHERED]
    used = np.maximum.accumulate(np.where(at < count, at, -1), axis=0)
    found = []
    for each in some:
        last = np.where(each[:, None] > 0, used[each - 1], -1)
        without_break = (last >= 0) & active[np.minimum(last + 1, count - 1), chunks]
        whole = active[each] & ~(without_break & runs_forward[last])
        found.append(np.concatenate([whole, (chunk[each, None] == chunks) & ~whole], axis=1).astype(np.int64))
    return found


def _distinct(flags: Counts) -> Counts:
    """Rows of 0 and 1 that differ."""
    first = {row.tobytes(): index for index, row in enumerate(np.packbits(flags, axis=1))}
    return flags[list(first.values())]


def _orders(
    schedule: PipelineSchedule,
    num_ranks: int,
    num_chunks: int,
    num_micro_batches: int,
    only: tuple[int, ...] | None = None,
) -> list[tuple[Counts, Counts]]:
    """Kind and chunk of the operations of every rank, or of ``only`` some, in order."""
    sizes = {"num_ranks": num_ranks, "num_chunks": num_chunks, "num_micro_batches": num_micro_batches}
    table = operation_table(schedule, **sizes, only=only)
    if schedule not in SPLIT_BACKWARD_SCHEDULES:  # nothing else than forwards and backwards
        return list(zip(table.kind, table.chunk, strict=True))
    runs = (table.kind != Kind.IDLE) & (table.kind != Kind.SEND)
    return [(kind[some], chunk[some]) for kind, chunk, some in zip(table.kind, table.chunk, runs, strict=True)]

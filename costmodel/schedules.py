"""Pipeline schedules: for every rank the fixed order of its operations. One table serves the cost model.

``p`` ranks, ``v`` chunks per rank, ``m`` micro-batches; runtimes/placement.py says which virtual stage a chunk is. The orders are
those of torch.distributed.pipelining and of Megatron-LM:

    naive             F0 B0 F1 B1 ...                              one micro-batch in the whole pipeline at a time
    gpipe             F0 .. F(m-1) B0 .. B(m-1)                    arXiv 1811.06965
    1f1b              w = min(m, p - 1 - rank) forwards, then forward and backward in turn, then the rest
                                                                   arXiv 2104.04473, section 2.2.1
    interleaved_1f1b  rounds of r = m / max(1, m // p) micro-batches per chunk;
                      w = min(m v, (v - 1) r + 2 (p - 1 - rank))   arXiv 2104.04473, section 2.2.2
    looped_bfs        all forwards of a chunk before the next chunk's; backwards in exactly the opposite order
                                                                   arXiv 2211.05953

split_schedules.py has those that split the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.runtimes.placement import ROUND_SCHEDULES, SPLIT_BACKWARD_SCHEDULES
from costmodel.specs import InputError, PipelineSchedule
from costmodel.split_schedules import Kind, Operation, split_operations

__all__ = [
    "Kind", "Operation", "OperationTable", "micro_batches_per_round", "num_warmup_forwards", "operation_table", "rank_operations",
]  # fmt: skip

Table = NDArray[np.int64]
Count = TypeVar("Count", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Orders of all ranks: row = rank, column = position. ``kind`` holds `Kind`; shorter orders end idle."""

    kind: Table
    chunk: Table
    micro_batch: Table


def micro_batches_per_round(num_ranks: Count, num_micro_batches: Count) -> Count:
    """r: micro-batches that pass through one chunk before the next chunk's turn (interleaved schedules)."""
    return num_micro_batches // np.maximum(1, num_micro_batches // num_ranks)  # type: ignore[no-any-return]


def num_warmup_forwards(
    schedule: PipelineSchedule, *, rank: int, num_ranks: int, num_chunks: int = 1, num_micro_batches: int
) -> int:
    """Forwards of ``rank`` before it starts to alternate; one more forward then precedes the first backward."""
    if schedule == "interleaved_1f1b":
        per_round = int(micro_batches_per_round(num_ranks, num_micro_batches))
        warmup = (num_chunks - 1) * per_round + 2 * (num_ranks - 1 - rank)
    elif schedule == "1f1b":
        warmup = num_ranks - 1 - rank
    else:
        warmup = num_micro_batches * num_chunks if schedule in ("gpipe", "looped_bfs") else 0
    return min(num_micro_batches * num_chunks, warmup)


def operation_table(
    schedule: PipelineSchedule,
    *,
    num_ranks: int,
    num_chunks: int = 1,
    num_micro_batches: int,
    only: Sequence[int] | None = None,
) -> OperationTable:
    """The orders of all ranks, one row each.

    Args:
        schedule: ``none`` is ``naive`` with one rank.
        num_ranks: pipeline ranks p.
        num_chunks: model chunks per rank v.
        num_micro_batches: micro-batches m.
        only: the ranks that are wanted; None for all.

    Raises:
        InputError: when the schedule cannot split the micro-batches into equal rounds, or has not enough of them.
    """
    wanted = range(num_ranks) if only is None else only
    if schedule in ROUND_SCHEDULES and num_micro_batches % max(1, num_micro_batches // num_ranks):
        raise InputError(
            f"{schedule} with {num_ranks} pipeline ranks: {num_micro_batches} micro-batches do not split into "
            f"{num_micro_batches // num_ranks} equal rounds; use a multiple of {num_ranks}"
        )
    sizes = {"num_ranks": num_ranks, "num_chunks": num_chunks, "num_micro_batches": num_micro_batches}
    if schedule in SPLIT_BACKWARD_SCHEDULES:
        return _table_of([split_operations(schedule, rank=rank, **sizes) for rank in wanted])
    chunks, micro_batches = _forwards(schedule, num_chunks, num_micro_batches, num_ranks)
    backward_order = slice(None, None, -1 if schedule == "looped_bfs" else None)
    total = num_chunks * num_micro_batches
    shape = (len(wanted), 2 * total)
    table = OperationTable(*(np.zeros(shape, dtype=np.int64) for _ in range(3)))
    step = np.arange(total)
    for row, rank in enumerate(wanted):
        warmup = num_warmup_forwards(schedule, rank=rank, **sizes)
        forward = step + np.maximum(0, step - warmup)
        backward = np.minimum(warmup + 1 + 2 * step, total + step)
        table.kind[row, backward] = Kind.BACKWARD
        table.chunk[row, forward] = chunks
        table.chunk[row, backward] = chunks[backward_order] if schedule == "looped_bfs" else num_chunks - 1 - chunks
        table.micro_batch[row, forward] = micro_batches
        table.micro_batch[row, backward] = micro_batches[backward_order]
    return table


def rank_operations(
    schedule: PipelineSchedule, *, rank: int, num_ranks: int, num_chunks: int = 1, num_micro_batches: int
) -> tuple[Operation, ...]:
    """The operations of one rank, in order; arguments and errors as `operation_table`."""
    sizes = {"num_ranks": num_ranks, "num_chunks": num_chunks, "num_micro_batches": num_micro_batches}
    table = operation_table(schedule, **sizes, only=(rank,))
    columns = (table.kind[0].tolist(), table.chunk[0].tolist(), table.micro_batch[0].tolist())
    return tuple(
        Operation(Kind(kind), chunk, micro) for kind, chunk, micro in zip(*columns, strict=True) if kind != Kind.IDLE
    )


def _table_of(orders: list[list[Operation]]) -> OperationTable:
    """Lists of operations as arrays."""
    length = max(map(len, orders))
    idle = Operation(Kind.IDLE, 0, 0)
    padded = np.array([order + [idle] * (length - len(order)) for order in orders], dtype=np.int64)
    return OperationTable(padded[:, :, 0], padded[:, :, 1], padded[:, :, 2])


@lru_cache(maxsize=512)
def _forwards(
    schedule: PipelineSchedule, num_chunks: int, num_micro_batches: int, num_ranks: int
) -> tuple[Table, Table]:
    """Chunk and micro-batch of every forward, one round of micro-batches after the other; for reading."""
    step = np.arange(num_chunks * num_micro_batches)
    if num_chunks == 1:
        return np.zeros_like(step), step
    per_round = num_micro_batches
    if schedule != "looped_bfs":
        per_round = int(micro_batches_per_round(num_ranks, num_micro_batches))
    chunk = step // per_round % num_chunks
    return chunk, step // (per_round * num_chunks) * per_round + step % per_round

"""Pipeline schedules: for every rank the fixed order of its forwards and backwards. One table serves the cost model.

``p`` ranks, ``v`` chunks per rank, ``m`` micro-batches; virtual stage = chunk x p + rank. The orders are those of
torch.distributed.pipelining and of Megatron-LM:

    naive             F0 B0 F1 B1 ...                              one micro-batch in the whole pipeline at a time
    gpipe             F0 .. F(m-1) B0 .. B(m-1)                    arXiv 1811.06965
    1f1b              w = min(m, p - 1 - rank) forwards, then forward and backward in turn, then the rest
                                                                   arXiv 2104.04473, section 2.2.1
    interleaved_1f1b  rounds of r = m / max(1, m // p) micro-batches per chunk;
                      w = min(m v, (v - 1) r + 2 (p - 1 - rank))   arXiv 2104.04473, section 2.2.2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.specs import InputError, PipelineSchedule

Table = NDArray[np.int64]
Count = TypeVar("Count", int, NDArray[np.int64])


class Operation(NamedTuple):
    """One forward or backward of one micro-batch through one model chunk."""

    backward: bool
    chunk: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class OperationTable:
    """Orders of all ranks: row = rank, column = position; 2 m v operations per rank."""

    backward: Table
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
        warmup = num_micro_batches * num_chunks if schedule == "gpipe" else 0
    return min(num_micro_batches * num_chunks, warmup)


def operation_table(
    schedule: PipelineSchedule, *, num_ranks: int, num_chunks: int = 1, num_micro_batches: int
) -> OperationTable:
    """The orders of all ranks.

    Args:
        schedule: ``none`` is ``naive`` with one rank.
        num_ranks: pipeline ranks p.
        num_chunks: model chunks per rank v.
        num_micro_batches: micro-batches m.

    Raises:
        InputError: when the interleaved schedule cannot split the micro-batches into equal rounds.
    """
    if schedule not in ("none", "naive", "gpipe", "1f1b", "interleaved_1f1b"):
        raise InputError(
            f"pipeline_schedule {schedule} can be run, but not predicted yet; valid: 1f1b, interleaved_1f1b"
        )
    if schedule == "interleaved_1f1b" and num_micro_batches % max(1, num_micro_batches // num_ranks):
        raise InputError(
            f"interleaved_1f1b with {num_ranks} pipeline ranks: {num_micro_batches} micro-batches do not split into "
            f"{num_micro_batches // num_ranks} equal rounds; use a multiple of {num_ranks}"
        )
    chunks, micro_batches = _forwards(
        num_chunks, num_micro_batches, int(micro_batches_per_round(num_ranks, num_micro_batches))
    )
    total = num_chunks * num_micro_batches
    shape = (num_ranks, 2 * total)
    table = OperationTable(*(np.zeros(shape, dtype=np.int64) for _ in range(3)))
    step = np.arange(total)
    for rank in range(num_ranks):
        warmup = num_warmup_forwards(
            schedule, rank=rank, num_ranks=num_ranks, num_chunks=num_chunks, num_micro_batches=num_micro_batches
        )
        forward = step + np.maximum(0, step - warmup)
        backward = np.minimum(warmup + 1 + 2 * step, total + step)
        table.backward[rank, backward] = 1
        table.chunk[rank, forward], table.chunk[rank, backward] = chunks, num_chunks - 1 - chunks
        table.micro_batch[rank, forward] = table.micro_batch[rank, backward] = micro_batches
    return table


def rank_operations(
    schedule: PipelineSchedule, *, rank: int, num_ranks: int, num_chunks: int = 1, num_micro_batches: int
) -> tuple[Operation, ...]:
    """The operations of one rank, in order; arguments and errors as `operation_table`."""
    table = operation_table(schedule, num_ranks=num_ranks, num_chunks=num_chunks, num_micro_batches=num_micro_batches)
    columns = (table.backward[rank].tolist(), table.chunk[rank].tolist(), table.micro_batch[rank].tolist())
    return tuple(Operation(bool(backward), chunk, micro) for backward, chunk, micro in zip(*columns, strict=True))


def _forwards(num_chunks: int, num_micro_batches: int, per_round: int) -> tuple[Table, Table]:
    """Chunk and micro-batch of every forward, one round of micro-batches after the other."""
    step = np.arange(num_chunks * num_micro_batches)
    if num_chunks == 1:
        return np.zeros_like(step), step
    chunk = step // per_round % num_chunks
    return chunk, step // (per_round * num_chunks) * per_round + step % per_round

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

from collections.abc import Iterator
from typing import NamedTuple

from costmodel.specs import InputError, PipelineSchedule


class Operation(NamedTuple):
    """One forward or backward of one micro-batch through one model chunk."""

    backward: bool
    chunk: int
    micro_batch: int


def num_warmup_forwards(
    schedule: PipelineSchedule, *, rank: int, num_ranks: int, num_chunks: int, num_micro_batches: int
) -> int:
    """Forwards of ``rank`` before it starts to alternate; one more forward then precedes the first backward."""
    if schedule == "interleaved_1f1b":
        per_round = num_micro_batches // max(1, num_micro_batches // num_ranks)
        warmup = (num_chunks - 1) * per_round + 2 * (num_ranks - 1 - rank)
    elif schedule == "1f1b":
        warmup = num_ranks - 1 - rank
    else:
        warmup = num_micro_batches * num_chunks if schedule == "gpipe" else 0
    return min(num_micro_batches * num_chunks, warmup)


def rank_operations(
    schedule: PipelineSchedule, *, rank: int, num_ranks: int, num_chunks: int = 1, num_micro_batches: int
) -> tuple[Operation, ...]:
    """The operations of one rank, in order.

    Args:
        schedule: ``none`` is ``naive`` with one rank.
        rank: pipeline rank.
        num_ranks: pipeline ranks p.
        num_chunks: model chunks per rank v.
        num_micro_batches: micro-batches m.

    Raises:
        InputError: when the interleaved schedule cannot split the micro-batches into equal rounds.
    """
    if schedule == "interleaved_1f1b" and num_micro_batches % max(1, num_micro_batches // num_ranks):
        raise InputError(
            f"interleaved_1f1b with {num_ranks} pipeline ranks: {num_micro_batches} micro-batches do not split into "
            f"{num_micro_batches // num_ranks} equal rounds; use a multiple of {num_ranks}"
        )
    per_round = num_micro_batches // max(1, num_micro_batches // num_ranks)
    forwards = _pass(num_chunks, num_micro_batches, per_round, backward=False)
    backwards = _pass(num_chunks, num_micro_batches, per_round, backward=True)
    warmup = num_warmup_forwards(
        schedule, rank=rank, num_ranks=num_ranks, num_chunks=num_chunks, num_micro_batches=num_micro_batches
    )
    operations = [next(forwards) for _ in range(warmup)]
    for forward in forwards:
        operations += [forward, next(backwards)]
    return (*operations, *backwards)


def _pass(num_chunks: int, num_micro_batches: int, per_round: int, *, backward: bool) -> Iterator[Operation]:
    """All forwards (chunks up) or backwards (chunks down), one round of micro-batches after the other."""
    chunks = range(num_chunks - 1, -1, -1) if backward else range(num_chunks)
    if num_chunks == 1:
        per_round = num_micro_batches
    for first in range(0, num_micro_batches, per_round):
        for chunk in chunks:
            for micro_batch in range(first, first + per_round):
                yield Operation(backward, chunk, micro_batch)

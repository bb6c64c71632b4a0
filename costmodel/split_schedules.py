"""Orders of the schedules that split the backward, as torch.distributed.pipelining 2.13 lays them out.

F forward, B whole backward, I gradients of the stage's input, W gradients of its weights. Rank r of p, two chunks 0 and 1 in a V
unless said otherwise; every kind of operation of a chunk takes its micro-batches in ascending order.

    interleaved_zero_bubble   v chunks in a loop, forwards and I's in the rounds of interleaved_1f1b with
                              w = min(m v, (v - 1) r' + p - 1 - r), r' micro-batches a round; the I's W comes r I's later
                                                               arXiv 2401.10241, section 2 (ZB-H1)
    zbv_zero_bubble           F0 x (2 (p - r) - 1), (F1 F0) x r, (F1 I1 W1) x (p - r);
                              (F0 I0 W0 F1 I1 W1) until no F1 is left, F0 while there are any;
                              (I0 I1) x r, (I0 W0) x (p - r), the other W1, the other W0
                              laid out for at least 2 p - 1 micro-batches; those that do not exist are left out
                                                               arXiv 2401.10241, section 6
    dualpipe_v                F0 x 2 (p - r - 1), (F0 F1) x (r + 1), (I1 W1 F1) x (p - r - 1),
                              (F0+B1 F1+B0) x (m - 2 p + r + 1), (B1 F1+B0) x (p - r - 1),
                              (B1 B0) x (r + 1), whose second half are I's, (W B0) x (p - r - 1), W x (r + 1)
                              W: the oldest one due, if any      arXiv 2412.19437, figure 5; deepseek-ai/DualPipe

F+B are one action of torch: they run one after the other, and the forward's message is sent after both (`SEND`). In the last
rank's first turn F0 and B1 are apart.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import IntEnum
from typing import NamedTuple

from costmodel.specs import InputError, PipelineSchedule


class Kind(IntEnum):
    """What an operation does; ``SEND`` sends a forward's output later than at its end, ``IDLE`` fills up an order."""

    FORWARD = 0
    BACKWARD = 1
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3
    SEND = 4
    IDLE = 5


class Operation(NamedTuple):
    """One operation on one micro-batch of one model chunk."""

    kind: Kind
    chunk: int
    micro_batch: int


F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT  # noqa: E741


def split_operations(
    schedule: PipelineSchedule, *, rank: int, num_ranks: int, num_chunks: int, num_micro_batches: int
) -> list[Operation]:
    """The order of one rank; the equations of the module.

    Raises:
        InputError: when dualpipe_v has fewer micro-batches than virtual stages.
    """
    if schedule == "interleaved_zero_bubble":
        return _interleaved(rank, num_ranks, num_chunks, num_micro_batches)
    if schedule == "zbv_zero_bubble":
        return _zbv(rank, num_ranks, num_micro_batches)
    if num_micro_batches < 2 * num_ranks:
        raise InputError(
            f"dualpipe_v with {num_ranks} pipeline ranks: {num_micro_batches} micro-batches; needed at least {2 * num_ranks}"
        )
    return _dualpipe_v(rank, num_ranks, num_micro_batches)


class _Order:
    """An order that is being written: numbers micro-batches, and remembers the weight gradients that are due."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.count: Counter[tuple[Kind, int]] = Counter()
        self.due: deque[Operation] = deque()

    def add(self, kind: Kind, chunk: int) -> Operation:
        """The next micro-batch of ``chunk``; B and I count together."""
        key = (I if kind == B else kind, chunk)
        operation = Operation(kind, chunk, self.count[key])
        self.count[key] += 1
        self.operations.append(operation)
        if kind == I:
            self.due.append(operation._replace(kind=W))
        return operation

    def overlap(self, forward: int, backward: int, *, sends: bool) -> None:
        """A forward and a backward, then the forward's message."""
        started = self.add(F, forward)
        self.add(B, backward)
        if sends:
            self.operations.append(started._replace(kind=Kind.SEND))

    def weight(self) -> None:
        """The oldest weight gradient that is due, if any."""
        if self.due:
            self.operations.append(self.due.popleft())


def _interleaved(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Operation]:
    per_round, total = micro_batches // max(1, micro_batches // ranks), chunks * micro_batches
    warmup = min(total, (chunks - 1) * per_round + ranks - 1 - rank)
    order = _Order()
    for step in range(total + warmup):
        if step < total:
            order.add(F, step // per_round % chunks)
        if step >= warmup:
            order.add(I, chunks - 1 - (step - warmup) // per_round % chunks)
            if step - warmup >= rank:
                order.weight()
    while order.due:
        order.weight()
    return order.operations


def _zbv(rank: int, ranks: int, micro_batches: int) -> list[Operation]:
    order, laid_out = _Order(), max(2 * ranks - 1, micro_batches)

    def whole(chunk: int) -> None:
        order.add(I, chunk)
        order.weight()

    for _ in range(2 * (ranks - rank) - 1):
        order.add(F, 0)
    for _ in range(rank):
        order.add(F, 1)
        order.add(F, 0)
    for _ in range(ranks - rank):
        order.add(F, 1)
        whole(1)
    while order.count[F, 1] < order.count[F, 0] or order.count[F, 0] < laid_out:
        if order.count[F, 0] < laid_out:
            order.add(F, 0)
        whole(0)
        order.add(F, 1)
        whole(1)
    for _ in range(rank):
        order.add(I, 0)
        order.add(I, 1)
    due = [[each for each in order.due if each.chunk == chunk] for chunk in (0, 1)]
    for _ in range(ranks - rank):
        due[0].append(order.add(I, 0)._replace(kind=W))
        order.operations.append(due[0].pop(0))
    return [each for each in [*order.operations, *due[1], *due[0]] if each.micro_batch < micro_batches]


def _dualpipe_v(rank: int, ranks: int, micro_batches: int) -> list[Operation]:
    order, after = _Order(), ranks - rank - 1
    sends = (
        rank < ranks - 1,
        rank > 0,
    )  # the last rank's chunks are neighbours, and chunk 1 of rank 0 is the last stage
    for _ in range(2 * after):
        order.add(F, 0)
    for _ in range(rank + 1):
        order.add(F, 0)
        order.add(F, 1)
    for _ in range(after):
        order.add(I, 1)
        order.weight()
        order.add(F, 1)
    for turn in range(micro_batches - 2 * ranks + rank + 1):
        if turn == 0 and rank == ranks - 1:
            order.add(F, 0)
            order.add(B, 1)
        else:
            order.overlap(0, 1, sends=sends[0])
        order.overlap(1, 0, sends=sends[1])
    for _ in range(after):
        order.add(B, 1)
        order.overlap(1, 0, sends=sends[1])
    for half in range(2 * (rank + 1)):
        order.add(I if half > rank else B, 1 - half % 2)
    for _ in range(after):
        order.weight()
        order.add(I, 0)
    for _ in range(rank + 1):
        order.weight()
    return order.operations

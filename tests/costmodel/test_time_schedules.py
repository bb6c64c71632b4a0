"""The table of orders against torch's own, and its own laws."""

from typing import Any

import pytest
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    _ComputationType,
)
from torch.distributed.pipelining.stage import _PipelineStageBase

from costmodel.pipeline import build_topology
from costmodel.schedules import Kind, Operation, num_warmup_forwards, rank_operations
from costmodel.specs import InputError

COMPUTE = {
    _ComputationType.FORWARD: Kind.FORWARD,
    _ComputationType.FULL_BACKWARD: Kind.BACKWARD,
    _ComputationType.BACKWARD_INPUT: Kind.BACKWARD_INPUT,
    _ComputationType.BACKWARD_WEIGHT: Kind.BACKWARD_WEIGHT,
}
SEVERAL_STAGES = {
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv_zero_bubble": ScheduleZBVZeroBubble,
    "dualpipe_v": ScheduleDualPipeV,
}


class StageStub(_PipelineStageBase):
    """What a schedule asks of a stage when it only lays out its order."""

    def __init__(self, index: int, *, num_stages: int, group_size: int, rank: int = 0) -> None:
        self.num_stages, self.stage_index, self.submod = num_stages, index, None
        self.group_size, self.group_rank, self.group = group_size, rank, None
        self.has_backward = True
        self.stage_index_to_group_rank = {stage: stage % group_size for stage in range(num_stages)}

    def _prepare_forward_infra(self, *_: Any) -> None: ...

    def _prepare_backward_infra(self, *_: Any) -> None: ...

    def _create_grad_recv_info(self, *_: Any) -> None: ...


def loss(output: Any, _: Any) -> Any:
    return output


def torch_order(schedule: Any, rank: int, num_ranks: int) -> tuple[Operation, ...]:
    """torch's operations; a forward and a backward in one action run one after the other (`_perform_action`)."""
    actions = [action for action in schedule.pipeline_order[rank] if action is not None]
    parts = [part for action in actions for part in (action.sub_actions or (action,))]
    return tuple(
        Operation(COMPUTE[part.computation_type], part.stage_index // num_ranks, part.microbatch_index)
        for part in parts
        if part.computation_type in COMPUTE
    )


def torch_schedule(name: str, ranks: int, chunks: int, micro_batches: int) -> Any:
    stages = [StageStub(chunk * ranks, num_stages=ranks * chunks, group_size=ranks) for chunk in range(chunks)]
    return SEVERAL_STAGES[name](stages, micro_batches, loss_fn=loss)


def without_messages(order: tuple[Operation, ...]) -> tuple[Operation, ...]:
    return tuple(operation for operation in order if operation.kind != Kind.SEND)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [8, 9, 16])
@pytest.mark.parametrize(("name", "kind"), [("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B)])
def test_single_stage_schedules_equal_torch(name, kind, ranks, micro_batches):
    theirs = kind(StageStub(0, num_stages=ranks, group_size=ranks), micro_batches, loss_fn=loss)
    for rank in range(ranks):
        ours = rank_operations(name, rank=rank, num_ranks=ranks, num_micro_batches=micro_batches)
        order = torch_order(theirs, rank, ranks)
        if name == "1f1b" and rank == ranks - 1:
            # The table of torch 2.13 numbers the last rank's forwards 1 .. m; Schedule1F1B runs micro-batches 0 .. m - 1.
            order = tuple(
                action._replace(micro_batch=action.micro_batch - (action.kind == Kind.FORWARD)) for action in order
            )
        assert ours == order


@pytest.mark.parametrize(
    ("ranks", "micro_batches"), [(2, 2), (4, 3), (4, 4), (4, 5), (4, 8), (4, 10), (4, 12), (8, 16)]
)
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("name", ["interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble"])
def test_looped_schedules_equal_torch(name, ranks, micro_batches, chunks):
    theirs = torch_schedule(name, ranks, chunks, micro_batches)
    for rank in range(ranks):
        ours = rank_operations(name, rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=micro_batches)
        assert ours == torch_order(theirs, rank, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("more", [-15, -7, -1, 0, 1, 2, 9])
@pytest.mark.parametrize("name", ["zbv_zero_bubble", "dualpipe_v"])
def test_v_shaped_schedules_equal_torch(name, ranks, more):
    """From one micro-batch on; dualpipe_v from one per virtual stage on."""
    micro_batches = max(1 if name == "zbv_zero_bubble" else 2 * ranks, 2 * ranks + more)
    theirs = torch_schedule(name, ranks, 2, micro_batches)
    for rank in range(ranks):
        ours = rank_operations(name, rank=rank, num_ranks=ranks, num_chunks=2, num_micro_batches=micro_batches)
        assert without_messages(ours) == torch_order(theirs, rank, ranks)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (3, 6), (4, 13)])
def test_messages_of_overlapped_forwards_leave_where_torch_sends_them(ranks, micro_batches):
    """torch's order with communication: after the backward of the same action, and before anything else is computed."""
    theirs = torch_schedule("dualpipe_v", ranks, 2, micro_batches)
    for rank in range(ranks):
        sent, previous = set(), None
        for action in theirs.pipeline_order_with_comms[rank]:
            if action.computation_type == _ComputationType.SEND_F and previous.sub_actions:
                sent.add(
                    (previous.sub_actions[1].microbatch_index, action.stage_index // ranks, action.microbatch_index)
                )
            if action.computation_type in (*COMPUTE, _ComputationType.OVERLAP_F_B):
                previous = action
        ours = rank_operations("dualpipe_v", rank=rank, num_ranks=ranks, num_chunks=2, num_micro_batches=micro_batches)
        late = [at for at, operation in enumerate(ours) if operation.kind == Kind.SEND]
        assert {ours[at - 1].kind for at in late} <= {Kind.BACKWARD}
        assert {(ours[at - 1].micro_batch, ours[at].chunk, ours[at].micro_batch) for at in late} == sent


def test_uneven_rounds_are_refused_where_torch_refuses_them():
    with pytest.raises(ValueError, match="multiple of the number of rounds"):
        ScheduleInterleaved1F1B([StageStub(index, num_stages=8, group_size=4) for index in (0, 4)], 9, loss_fn=loss)
    with pytest.raises(InputError, match="9 micro-batches do not split into 2 equal rounds; use a multiple of 4"):
        rank_operations("interleaved_1f1b", rank=0, num_ranks=4, num_chunks=2, num_micro_batches=9)


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "micro_batches"),
    [
        *(
            (schedule, ranks, 1, micro)
            for schedule in ("naive", "gpipe", "1f1b")
            for ranks, micro in [(1, 3), (4, 2), (4, 8)]
        ),
        *(
            (schedule, ranks, chunks, micro)
            for schedule in ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
            for ranks, chunks, micro in [(4, 1, 2), (4, 2, 8), (3, 3, 6)]
        ),
        *(
            (schedule, ranks, 2, micro)
            for schedule in ("zbv_zero_bubble", "dualpipe_v")
            for ranks, micro in [(4, 8), (3, 9)]
        ),
        ("zbv_zero_bubble", 4, 2, 3),
    ],
)
def test_every_operation_runs_once_and_backwards_follow_forwards(schedule, ranks, chunks, micro_batches):
    for rank in range(ranks):
        order = without_messages(
            rank_operations(schedule, rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=micro_batches)
        )
        at = {operation: index for index, operation in enumerate(order)}
        assert len(at) == len(order)
        for chunk in range(chunks):
            for micro in range(micro_batches):
                places = [at.get(Operation(kind, chunk, micro)) for kind in list(Kind)[:4]]
                forward, whole, inputs, weights = places
                assert forward is not None
                assert (whole is None) == (inputs is not None) == (weights is not None)
                assert forward < (whole if whole is not None else inputs)
                assert inputs is None or inputs < weights
        assert len(order) == sum(
            2 + (operation.kind == Kind.BACKWARD_INPUT) for operation in order if operation.kind in (1, 2)
        )


def test_naive_keeps_one_micro_batch_in_the_pipeline():
    order = rank_operations("naive", rank=2, num_ranks=4, num_micro_batches=3)
    assert [(operation.kind, operation.micro_batch) for operation in order] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2),
    ]  # fmt: skip


def test_activations_in_flight_follow_the_published_counts():
    """1F1B keeps min(m, p - s) micro-batches at stage s; interleaving min(m v, 2(p - s - 1) + (v - 1) r + 1) chunks."""
    for ranks, chunks, micro_batches in [(4, 1, 2), (4, 1, 8), (4, 2, 8), (8, 3, 16)]:
        schedule = "1f1b" if chunks == 1 else "interleaved_1f1b"
        per_round = micro_batches // max(1, micro_batches // ranks)
        for rank in range(ranks):
            order = rank_operations(
                schedule, rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=micro_batches
            )
            held = most = 0
            for operation in order:
                held += -1 if operation.kind == Kind.BACKWARD else 1
                most = max(most, held)
            ahead = ranks - rank - 1
            expected = ahead + 1 if chunks == 1 else 2 * ahead + (chunks - 1) * per_round + 1
            assert most == min(micro_batches * chunks, expected)
            sizes = {"num_ranks": ranks, "num_chunks": chunks, "num_micro_batches": micro_batches}
            assert most == min(micro_batches * chunks, num_warmup_forwards(schedule, rank=rank, **sizes) + 1)


def test_topologies_are_shared():
    assert build_topology("1f1b", 4, 1, 8) is build_topology("1f1b", 4, 1, 8)

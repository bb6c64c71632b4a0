"""The table of orders against torch's own, and its own laws."""

from typing import Any

import pytest
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    _ComputationType,
)
from torch.distributed.pipelining.stage import _PipelineStageBase

from costmodel.pipeline import build_topology
from costmodel.schedules import Operation, num_warmup_forwards, rank_operations
from costmodel.specs import InputError

COMPUTE = {_ComputationType.FORWARD: False, _ComputationType.FULL_BACKWARD: True}


class StageStub(_PipelineStageBase):
    """What a schedule asks of a stage when it only lays out its order."""

    def __init__(self, index: int, *, num_stages: int, group_size: int, rank: int = 0) -> None:
        self.num_stages, self.stage_index = num_stages, index
        self.group_size, self.group_rank, self.group = group_size, rank, None
        self.has_backward = True
        self.stage_index_to_group_rank = {stage: stage % group_size for stage in range(num_stages)}

    def _prepare_forward_infra(self, *_: Any) -> None: ...

    def _prepare_backward_infra(self, *_: Any) -> None: ...

    def _create_grad_recv_info(self, *_: Any) -> None: ...


def loss(output: Any, _: Any) -> Any:
    return output


def torch_order(schedule: Any, rank: int, num_ranks: int) -> tuple[Operation, ...]:
    actions = [action for action in schedule.pipeline_order[rank] if action is not None]
    return tuple(
        Operation(COMPUTE[action.computation_type], action.stage_index // num_ranks, action.microbatch_index)
        for action in actions
        if action.computation_type in COMPUTE
    )


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
            order = tuple(action._replace(micro_batch=action.micro_batch - (not action.backward)) for action in order)
        assert ours == order


@pytest.mark.parametrize(
    ("ranks", "micro_batches"), [(2, 2), (4, 3), (4, 4), (4, 5), (4, 8), (4, 10), (4, 12), (8, 16)]
)
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_interleaved_schedule_equals_torch(ranks, micro_batches, chunks):
    total = ranks * chunks
    stages = [StageStub(chunk * ranks, num_stages=total, group_size=ranks) for chunk in range(chunks)]
    theirs = ScheduleInterleaved1F1B(stages, micro_batches, loss_fn=loss)
    for rank in range(ranks):
        ours = rank_operations(
            "interleaved_1f1b", rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=micro_batches
        )
        assert ours == torch_order(theirs, rank, ranks)


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
        *(("interleaved_1f1b", ranks, chunks, micro) for ranks, chunks, micro in [(4, 1, 2), (4, 2, 8), (3, 3, 6)]),
    ],
)
def test_every_operation_runs_once_and_backwards_follow_forwards(schedule, ranks, chunks, micro_batches):
    for rank in range(ranks):
        order = rank_operations(
            schedule, rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=micro_batches
        )
        assert len(set(order)) == len(order) == 2 * chunks * micro_batches
        for operation in order:
            if operation.backward:
                assert order.index(operation._replace(backward=False)) < order.index(operation)


def test_naive_keeps_one_micro_batch_in_the_pipeline():
    order = rank_operations("naive", rank=2, num_ranks=4, num_micro_batches=3)
    assert [(operation.backward, operation.micro_batch) for operation in order] == [
        (False, 0), (True, 0), (False, 1), (True, 1), (False, 2), (True, 2),
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
                held += -1 if operation.backward else 1
                most = max(most, held)
            ahead = ranks - rank - 1
            expected = ahead + 1 if chunks == 1 else 2 * ahead + (chunks - 1) * per_round + 1
            assert most == min(micro_batches * chunks, expected)
            sizes = {"num_ranks": ranks, "num_chunks": chunks, "num_micro_batches": micro_batches}
            assert most == min(micro_batches * chunks, num_warmup_forwards(schedule, rank=rank, **sizes) + 1)


def test_topologies_are_shared():
    assert build_topology("1f1b", 4, 1, 8) is build_topology("1f1b", 4, 1, 8)

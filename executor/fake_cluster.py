"""A cluster that is not there: one process plays one rank of any world, with tensors that have shapes and no memory.

Second home of torch's private interfaces (pinned to torch 2.13.0), those that only a dry run needs:

    - the ``fake`` process group, whose collectives return at once and move nothing;
    - `FakeTensorMode`, whose tensors carry shape, format and device only. It is never *entered*: DTensor and functional
      collectives take an entered one for a compiler at work and then skip their caches and wait at once;
    - the pipeline's start-up vote, which reads a received number and so cannot work without memory. The executor describes
      its stages statically, so the vote's outcome is known;
    - what schedules do with messages: those of the fake group hold nothing, while gloo's and NCCL's hold the tensor they send;
    - DTensor's all-to-all, which on a CPU mesh falls back to an all-gather because gloo has none; devices of other kinds have.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor import placement_types
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = [
    "NO_TASK",
    "PASSING_ON",
    "FakeTensor",
    "backward_task",
    "fake_cluster",
    "memoryless",
    "no_warnings",
    "process_group",
    "works_out_layout",
]


@contextlib.contextmanager
def fake_cluster(*, rank: int, size: int, all_to_all: bool) -> Iterator[None]:
    """Play global rank ``rank`` of ``size`` processes; ``all_to_all``: whether the devices' library has one."""
    placements: Any = placement_types
    vote, exchange = schedules._PipelineSchedule._warmup_p2p, placements.shard_dim_alltoall
    exchange_messages = schedules._batch_p2p
    schedules._PipelineSchedule._warmup_p2p = _take_static  # type: ignore[assignment]
    schedules._batch_p2p = _holding_what_is_sent(exchange_messages)
    if all_to_all:
        placements.shard_dim_alltoall = _exchange
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        schedules._PipelineSchedule._warmup_p2p = vote  # type: ignore[method-assign]
        schedules._batch_p2p = exchange_messages
        placements.shard_dim_alltoall = exchange


def _take_static(_: Any, stages: Sequence[Any], has_backward: bool, p2p_done: bool) -> None:
    """The vote's outcome where every stage is described statically."""
    del has_backward, p2p_done
    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


class _Sent(NamedTuple):
    """A message on its way. What it carries lives as long as it does, whether it was waited for or not: gloo's `SendWork` and
    NCCL's `WorkNCCL` (``outputs_``) keep a reference.
    """

    work: dist.Work
    tensor: torch.Tensor

    def wait(self) -> None:
        """What schedules ask of a message."""
        self.work.wait()


def _holding_what_is_sent(exchange_messages: Callable[..., Any]) -> Callable[..., Any]:
    """`_batch_p2p` whose messages that only send are `_Sent`; mixed ones are waited for at once."""

    def batch_p2p(operations: list[dist.P2POp], desc: str | None = None) -> Any:
        works = exchange_messages(operations, desc)
        if {operation.op for operation in operations} != {dist.isend}:
            return works
        return [_Sent(work, operation.tensor) for work, operation in zip(works, operations, strict=True)]

    return batch_p2p


def _exchange(tensor: torch.Tensor, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> torch.Tensor:
    """What `shard_dim_alltoall` does off the CPU."""
    name = mesh.get_group(mesh_dim).group_name
    return torch.ops._dtensor.shard_dim_alltoall(tensor, gather_dim, shard_dim, name)


def memoryless() -> FakeTensorMode:
    """Whose ``dispatch`` runs an operation on fake tensors."""
    return FakeTensorMode(allow_non_fake_inputs=True)


# Operations whose fake kernels make a tensor where the real ones pass theirs on.
PASSING_ON: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    torch.ops._c10d_functional._wrap_tensor_autograd.default: AsyncCollectiveTensor,
    torch.ops._c10d_functional.wait_tensor.default: lambda tensor: tensor,
}


def works_out_layout() -> bool:
    """Whether a fake mode is entered: DTensor runs an operation at its global shape to learn the shape of the result."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


NO_TASK = -1


def backward_task() -> int:
    """Number of the backward that autograd runs now, or `NO_TASK`."""
    return torch._C._current_graph_task_id()


def process_group(named: Any) -> dist.ProcessGroup:
    """The group that a collective's argument stands for: its name, or the group boxed for the dispatcher."""
    if isinstance(named, str):
        return torch._C._distributed_c10d._resolve_process_group(dist.GroupName(named))
    return named if isinstance(named, dist.ProcessGroup) else dist.ProcessGroup.unbox(named)


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Silence what torch says about training without memory; it says the same in a real run, where it is shown."""
    logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

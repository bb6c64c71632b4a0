"""Pipeline parallelism by torch.distributed.pipelining.

Schedules run on static tensor descriptions, so no extra forward and backward infers them. What passes between stages is one
tensor of hidden states; the last stage's module returns the loss itself. Under a schedule gradients are reduced once per
step, whatever the ZeRO stage (torch 2.13, `_PipelineStageBase.perform_reduce_grad`).

A tied head lives on the last stage and the embedding on the first: two copies that start equal, and whose gradients are
summed over the two stages before every optimizer step, so they stay equal. Both are on rank 0 under a V-shaped schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from costmodel.specs import Plan
from executor.adapter import accumulate_gradients, local_tensor
from executor.hf_models import DTYPES, Stage
from executor.mesh import Mesh
from executor.tensor_parallel import sum_over

_ONE_STAGE = {"naive": ScheduleGPipe, "gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SEVERAL_STAGES = {
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv_zero_bubble": ScheduleZBVZeroBubble,
    "dualpipe_v": ScheduleDualPipeV,
}


class _NoView(torch.autograd.Function):
    """The identity: its result shares the memory of its input, but is no view of it to autograd."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def without_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, of any shape, as one that may be detached in place even if it is a view.

    A split backward does so with what a stage returned (torch 2.13, `stage_backward_input`), and opt's layers return views.
    """
    result: torch.Tensor = _NoView.apply(tensor)
    return result


class _PipelineStage(PipelineStage):
    """A stage whose weight gradients add up in the format of the reduction when they are a pass of their own."""

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One micro batch's hidden states or loss."""
        return without_view(super().forward_maybe_with_nosync(*args, **kwargs))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """One micro batch's weight gradients."""
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)
        accumulate_gradients(self.submod)


class Pipeline:
    """The schedule over this process's stages (several with interleaving, in virtual-stage order)."""

    def __init__(self, stages: Sequence[Stage], plan: Plan, mesh: Mesh, device: torch.device) -> None:
        self.first = any(stage.spec.embedding for stage in stages)
        self.last = any(stage.spec.head for stage in stages)
        wrapped = [self._wrap(stage, plan, mesh, device) for stage in stages]
        self.schedule = _build_schedule(wrapped, plan)

    @staticmethod
    def _wrap(stage: Stage, plan: Plan, mesh: Mesh, device: torch.device) -> PipelineStage:
        """One stage. With layers recomputed as a whole its backward is never split: torch would run them again for the
        gradients of inputs and once more for every parameter's.
        """
        tokens = torch.empty(
            (plan.parallel.micro_batch_size, plan.training.sequence_length), dtype=torch.long, device="meta"
        )
        hidden, loss = _hidden_states(stage, plan), _loss(plan)
        return _PipelineStage(
            stage,
            plan.stages.index(stage.spec),
            len(plan.stages),
            device,
            input_args=tokens if stage.spec.embedding else hidden,
            output_args=loss if stage.spec.head else hidden,
            group=mesh.device_mesh.get_group("pp"),
            dw_builder=_no_weight_pass if stage.spec.recompute.kind == "full" else None,
        )

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Forward and backward of all micro batches; their losses on the last stage, an empty list elsewhere."""
        losses: list[torch.Tensor] = []
        arguments = (inputs,) if self.first else ()
        options: dict[str, Any] = {"target": targets, "losses": losses, "targets": targets} if self.last else {}
        self.schedule.step(*arguments, return_outputs=False, **options)
        return losses


def _no_weight_pass() -> Callable[[], None]:
    return lambda: None


def _hidden_states(stage: Stage, plan: Plan) -> torch.Tensor:
    length = stage.positions.stop - stage.positions.start
    shape = (plan.parallel.micro_batch_size, length, plan.model.hidden_size)
    dtype = DTYPES[plan.training.precision.compute]
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _loss(plan: Plan) -> torch.Tensor:
    dtype = torch.promote_types(DTYPES[plan.training.precision.compute], torch.float32)
    return torch.empty((), dtype=dtype, device="meta", requires_grad=True)


def _build_schedule(stages: list[Any], plan: Plan) -> Any:
    """``naive`` is GPipe with one micro batch. The stages' losses carry the mean already, so gradients are not scaled."""
    count, name = plan.parallel.num_micro_batches, plan.parallel.pipeline_schedule
    if name in _SEVERAL_STAGES:
        return _SEVERAL_STAGES[name](stages, count, loss_fn=_take_loss, scale_grads=False)
    return _ONE_STAGE[name](stages[0], count, loss_fn=_take_loss, scale_grads=False)


def _take_loss(loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return loss


class TiedWeights:
    """The embedding and its copy, the head: on the first and the last rank, or under a V-shaped schedule both on the first."""

    def __init__(self, stages: Sequence[Stage], mesh: Mesh) -> None:
        ends = [stage for stage in stages if stage.spec.embedding or stage.spec.head]
        self.weights = [stage.token_embedding.weight if stage.spec.embedding else stage.head.weight for stage in ends]
        self.group: dist.ProcessGroup | None = None
        if len(ends) == 1:
            ranks = mesh.pipeline_ranks()
            pair = mesh.device_mesh.get_group("pp") if len(ranks) == 2 else None
            self.group = pair or dist.new_group([ranks[0], ranks[-1]], use_local_synchronization=True)

    def sum_gradients(self) -> None:
        """Sum both copies' gradients, in place on both; nothing to do on the stages between."""
        gradients = []
        for weight in self.weights:
            assert isinstance(weight, torch.nn.Parameter)
            assert weight.grad is not None
            gradients.append(local_tensor(weight.grad))
        if self.group is not None:
            sum_over(gradients, self.group)
        elif gradients:
            embedding, head = gradients
            embedding += head
            head.copy_(embedding)

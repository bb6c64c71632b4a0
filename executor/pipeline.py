"""Pipeline parallelism by torch.distributed.pipelining.

Schedules run on static tensor descriptions, so no extra forward and backward infers them. What passes between stages is one
tensor of hidden states; the last stage's module returns the loss itself. Under a schedule gradients are reduced once per
step, whatever the ZeRO stage (torch 2.13, `_PipelineStageBase.perform_reduce_grad`).

A tied head lives on the last stage and the embedding on the first: two copies that start equal, and whose gradients are
summed over the two stages before every optimizer step, so they stay equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from costmodel.specs import Plan
from executor.adapter import local_tensor
from executor.hf_models import DTYPES, Stage
from executor.mesh import Mesh
from executor.tensor_parallel import sum_over

AnySchedule = ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B


class Pipeline:
    """The schedule over this process's stages (several with interleaving, in virtual-stage order)."""

    def __init__(self, stages: Sequence[Stage], plan: Plan, mesh: Mesh, device: torch.device) -> None:
        self.first = any(stage.spec.embedding for stage in stages)
        self.last = any(stage.spec.head for stage in stages)
        wrapped = [self._wrap(stage, plan, mesh, device) for stage in stages]
        self.schedule = _build_schedule(wrapped, plan)

    @staticmethod
    def _wrap(stage: Stage, plan: Plan, mesh: Mesh, device: torch.device) -> PipelineStage:
        ranks = plan.parallel.pipeline_parallel_size
        tokens = torch.empty(
            (plan.parallel.micro_batch_size, plan.training.sequence_length), dtype=torch.long, device="meta"
        )
        hidden, loss = _hidden_states(stage, plan), _loss(plan)
        return PipelineStage(
            stage,
            stage.spec.chunk * ranks + stage.spec.rank,
            ranks * plan.parallel.num_model_chunks,
            device,
            input_args=tokens if stage.spec.embedding else hidden,
            output_args=loss if stage.spec.head else hidden,
            group=mesh.device_mesh.get_group("pp"),
        )

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Forward and backward of all micro batches; their losses on the last stage, an empty list elsewhere."""
        losses: list[torch.Tensor] = []
        arguments = (inputs,) if self.first else ()
        options: dict[str, Any] = {"target": targets, "losses": losses, "targets": targets} if self.last else {}
        self.schedule.step(*arguments, return_outputs=False, **options)
        return losses


def _hidden_states(stage: Stage, plan: Plan) -> torch.Tensor:
    length = stage.positions.stop - stage.positions.start
    shape = (plan.parallel.micro_batch_size, length, plan.model.hidden_size)
    dtype = DTYPES[plan.training.precision.compute]
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _loss(plan: Plan) -> torch.Tensor:
    dtype = torch.promote_types(DTYPES[plan.training.precision.compute], torch.float32)
    return torch.empty((), dtype=dtype, device="meta", requires_grad=True)


def _build_schedule(stages: list[Any], plan: Plan) -> AnySchedule:
    """``naive`` is GPipe with one micro batch. The stages' losses carry the mean already, so gradients are not scaled."""
    count, name = plan.parallel.num_micro_batches, plan.parallel.pipeline_schedule
    if name == "interleaved_1f1b":
        return ScheduleInterleaved1F1B(stages, count, loss_fn=_take_loss, scale_grads=False)
    single = Schedule1F1B if name == "1f1b" else ScheduleGPipe
    return single(stages[0], count, loss_fn=_take_loss, scale_grads=False)


def _take_loss(loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return loss


class TiedWeights:
    """The embedding on the first stage and its copy, the head, on the last."""

    def __init__(self, stages: Sequence[Stage], mesh: Mesh) -> None:
        ranks = mesh.pipeline_ranks()
        ends = [ranks[0], ranks[-1]]
        self.stage = next((stage for stage in stages if stage.spec.embedding or stage.spec.head), None)
        self.group: dist.ProcessGroup | None = None
        if self.stage is not None:
            pair = len(ranks) == 2
            self.group = (
                mesh.device_mesh.get_group("pp") if pair else dist.new_group(ends, use_local_synchronization=True)
            )

    def sum_gradients(self) -> None:
        """Sum both copies' gradients, in place on both; nothing to do on the stages between."""
        if self.stage is None or self.group is None:
            return
        weight = self.stage.token_embedding.weight if self.stage.spec.embedding else self.stage.head.weight
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.grad is not None
        sum_over([local_tensor(weight.grad)], self.group)

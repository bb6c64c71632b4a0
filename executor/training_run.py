"""A plan turned into modules that train: build, shard, initialise, step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from costmodel.specs import InputError, Plan
from executor.adapter import (
    clean_name,
    gradient_tensors,
    local_tensor,
    on_first_reduction,
    parameter_tensors,
)
from executor.checks import check_runnable
from executor.clip import scale_gradients, squared_norm
from executor.data_parallel import prepare_micro_batch, wrap_data_parallel
from executor.fused import fused_tensors
from executor.hf_models import Stage
from executor.initialize import RandomWeights, SafetensorsWeights, WeightSource, fill_parameters
from executor.loss import loss_context
from executor.mesh import build_mesh
from executor.optimizer import build_optimizer
from executor.pipeline import Pipeline, TiedWeights
from executor.recompute import recompute_layers
from executor.sharding import Layout
from executor.state import gather_state
from executor.tensor_parallel import sum_partial_gradients, wrap_tensor_parallel

Hook = Callable[[], None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """``loss``: mean over all tokens of the global batch, the same on every process.

    ``grad_norm``: over the whole model before clipping; None when the plan does not clip.
    """

    loss: float
    grad_norm: float | None


class TrainingRun:
    """One process's part of a training run.

    Args:
        plan: what to run.
        device: where tensors live.
        seed: of the first weights; None takes the plan's.
        weights: first values of the parameters; None: as the plan says.
        memory: entered while tensors get memory. A dry run passes a mode under which they get none.

    Attributes:
        before_reduction: called once per step, in the last micro batch's backward immediately before the first gradient
            reduction (right after that backward where nothing is reduced).
        after_optimizer: called once per step after ``optimizer.step()`` and before gradients are cleared.
        optimizer: over this process's parameters.
        layout: where this process's parts lie in the whole tensors.

    Raises:
        InputError: when the plan breaks a rule, is for another runtime, or the number of processes is not the plan's.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        device: torch.device,
        seed: int | None = None,
        weights: WeightSource | None = None,
        memory: AbstractContextManager[object] | None = None,
    ) -> None:
        check_runnable(plan)
        self.plan, self.device = plan, device
        self.before_reduction: Hook | None = None
        self.after_optimizer: Hook | None = None
        self._reduction_awaited = self._last_micro_batch = False
        self.mesh = build_mesh(plan, device)
        own = [stage for stage in plan.stages if stage.rank == self.mesh.coordinates["pp"]]
        self.stages = [Stage(plan, stage) for stage in own]
        for stage in self.stages:
            self._lay_out(stage)
        self.layout = Layout(self.mesh.sizes, self.mesh.coordinates, fused_tensors(self.stages[0].config))
        pipelined = plan.parallel.pipeline_parallel_size > 1
        self._pipeline = Pipeline(self.stages, plan, self.mesh, device) if pipelined else None
        with memory or nullcontext():
            for stage in self.stages:
                stage.materialise(device)
                on_first_reduction(stage, self._notify_reduction)
            tied = pipelined and plan.model.tie_word_embeddings
            self._tied = TiedWeights(self.stages, self.mesh) if tied else None
            # The modules swap sharded parameters for gathered ones while they compute; these are the ones that stay.
            self._parameters = [(clean_name(name), p) for stage in self.stages for name, p in stage.named_parameters()]
            source = weights or self._weights(plan.training.seed if seed is None else seed)
            fill_parameters(self.named_parameters(copies=True), source, self.layout)
        self.optimizer = build_optimizer((parameter for _, parameter in self._parameters), plan.training.optimizer)

    def _lay_out(self, stage: Stage) -> None:
        wrap_tensor_parallel(stage, self.plan.parallel, self.mesh)
        recompute_layers(stage.layers, stage.spec, self.plan.training.attention_implementation)
        wrap_data_parallel(stage, self.plan, self.mesh)

    def _weights(self, seed: int) -> WeightSource:
        stage, folder = self.stages[0], self.plan.model.weights_path
        if folder is not None:
            return SafetensorsWeights(folder, base=stage.names.base)
        return RandomWeights(seed, stage.config)

    def _is_copy(self, name: str) -> bool:
        """Whether the parameter is the last stage's copy of a tied embedding, not a parameter of its own."""
        return self._tied is not None and name == self.stages[0].names.head_weight

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the global batch this process sees."""
        return self.mesh.data_parallel_rank

    @property
    def data_parallel_size(self) -> int:
        """Number of shares of the global batch."""
        return self.mesh.data_parallel_size

    def named_parameters(self, *, copies: bool = False) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """This process's part of every parameter by its name in the whole model.

        Args:
            copies: also the last stage's copy of a tied embedding, under the embedding's name.
        """
        for name, parameter in self._parameters:
            if not self._is_copy(name):
                yield name, parameter
            elif copies:
                yield self.stages[0].names.embedding_weight, parameter

    def parameter_tensors(self) -> Iterator[torch.Tensor]:
        """Plain tensors of the parameters that live between steps; padding included in their storages."""
        for stage in self.stages:
            yield from parameter_tensors(stage)

    def gradient_tensors(self) -> Iterator[torch.Tensor]:
        """Plain tensors of every gradient held now, reduced or not."""
        for stage in self.stages:
            yield from gradient_tensors(stage)

    def optimizer_state_tensors(self) -> Iterator[torch.Tensor]:
        """Plain tensors of the optimizer's state, scalars included; none before the first step."""
        for state in self.optimizer.state.values():
            yield from (local_tensor(value) for value in state.values() if isinstance(value, torch.Tensor))

    def step(self, batch: torch.Tensor) -> StepResult:
        """One optimizer step.

        Args:
            batch: token ids [global batch / data-parallel size, sequence + 1], this process's share.

        Raises:
            InputError: when the batch has another shape.
        """
        loss, norm = self.compute_step(batch)
        return StepResult(loss.item(), None if norm is None else norm.item())

    def compute_step(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`step` without waiting for its numbers: loss and gradient norm as float64 scalars on the device."""
        inputs, targets = self._split_batch(batch)
        self._reduction_awaited = self.before_reduction is not None
        with loss_context(self.plan.parallel.loss_parallel):
            loss = self._forward_backward(inputs, targets)
        self._notify_reduction()
        sum_partial_gradients(self._parameters, self.mesh)
        if self._tied is not None:
            self._tied.sum_gradients()
        result = self._clip(loss)
        self.optimizer.step()
        if self.after_optimizer is not None:
            self.after_optimizer()
        self.optimizer.zero_grad(set_to_none=True)
        return result

    def full_state(self) -> dict[str, torch.Tensor]:
        """Whole tensors by fully qualified name, on the CPU, on global rank 0; an empty dict elsewhere. All must call."""
        return gather_state(self.named_parameters(), self.layout)

    def _split_batch(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parallel, training = self.plan.parallel, self.plan.training
        needed = (parallel.micro_batch_size * parallel.num_micro_batches, training.sequence_length + 1)
        if tuple(batch.shape) != needed:
            raise InputError(f"the batch of one process has shape {list(batch.shape)}; needed is {list(needed)}")
        batch = batch.to(self.device)
        return batch[:, :-1], batch[:, 1:]

    def _forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Run all micro batches; the sum of their losses on the stage with the head, else 0."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        if self._pipeline is not None:
            self._last_micro_batch = True  # the schedule reduces once, after all micro batches
            for loss in self._pipeline.step(inputs, targets):
                total += loss.detach()
            return total
        stage, parallel = self.stages[0], self.plan.parallel
        pieces = zip(inputs.split(parallel.micro_batch_size), targets.split(parallel.micro_batch_size), strict=True)
        for index, (tokens, wanted) in enumerate(pieces):
            self._last_micro_batch = index == parallel.num_micro_batches - 1
            prepare_micro_batch(stage, parallel, last=self._last_micro_batch)
            loss = stage(tokens, wanted)
            loss.backward()
            total += loss.detach()
        return total

    def _notify_reduction(self) -> None:
        if self._reduction_awaited and self._last_micro_batch:
            self._reduction_awaited = False
            assert self.before_reduction is not None
            self.before_reduction()

    @torch.no_grad()
    def _clip(self, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Clip, and make the loss global; both need sums over all processes, so they share one all-reduce."""
        gradients, owned = [], []
        for name, parameter in self._parameters:
            assert parameter.grad is not None
            gradients.append(local_tensor(parameter.grad))
            if self.layout.owns(parameter) and not self._is_copy(name):
                owned.append(gradients[-1])
        limit = self.plan.training.optimizer.max_grad_norm
        squares = torch.zeros_like(loss) if limit is None else squared_norm(owned, self.device)
        # Only the stage with the head has a loss, and its tensor-parallel ranks all have the same.
        share = loss / self.data_parallel_size if self.mesh.coordinates["tp"] == 0 else torch.zeros_like(loss)
        sums = torch.stack([share, squares])
        if dist.is_initialized():
            dist.all_reduce(sums)
        if limit is None:
            return sums[0], None
        norm = sums[1].sqrt()
        scale_gradients(gradients, norm, limit)
        return sums[0], norm

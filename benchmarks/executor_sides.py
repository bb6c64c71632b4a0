"""Both sides of `benchmarks.executor` in one process: the executor's `TrainingRun`, and the same written by hand.

By hand means as torch's and transformers' own documents write it: the transformers model with its own forward, wrapped by one
public call or two, a loop that clips, steps and clears.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

from costmodel.specs import Plan
from executor.adapter import replicate
from executor.hf_models import build_config
from executor.initialize import RandomWeights
from executor.training_run import TrainingRun

MAX_NORM = 1.0
Step = Callable[[torch.Tensor], float]
"""One optimizer step on this process's share of the batch [sequences, sequence + 1]; the loss over all processes."""


def time_pairs(name: str, plan: Plan, *, rank: int, pairs: int, folder: Path) -> dict[str, list[list[float]]]:
    """Train both sides, a step of one after a step of the other.

    Returns:
        ``seconds`` (of the slower process), ``cpu`` (of both together) and ``losses``: [executor, by hand] of every pair.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    run = TrainingRun(plan, device=torch.device("cpu"))
    sides: list[Step] = [lambda batch: run.step(batch).loss, by_hand(name, plan)]
    found: dict[str, list[list[float]]] = {"seconds": [], "cpu": [], "losses": []}
    for number in range(pairs):
        batch = tokens(plan, number).chunk(run.data_parallel_size)[run.data_parallel_rank]
        measured = [(0.0, 0.0, 0.0)] * 2
        for side in (0, 1) if number % 2 else (1, 0):
            measured[side] = _timed(sides[side], batch)
        for key, values in zip(found, zip(*measured, strict=True), strict=True):
            found[key].append(list(values))
    dist.barrier()
    dist.destroy_process_group()
    return found


def _timed(step: Step, batch: torch.Tensor) -> tuple[float, float, float]:
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    loss = step(batch)
    took = torch.tensor([time.perf_counter() - start, time.process_time() - cpu], dtype=torch.float64)
    slowest, total = took[:1].clone(), took[1:].clone()
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(total)
    return float(slowest), float(total), loss


def tokens(plan: Plan, number: int) -> torch.Tensor:
    """The global batch of one step, [global batch, sequence + 1]."""
    generator = torch.Generator().manual_seed(number)
    shape = (plan.training.global_batch_size, plan.training.sequence_length + 1)
    return torch.randint(plan.model.vocab_size, shape, generator=generator)


def by_hand(name: str, plan: Plan) -> Step:
    """The step of one row, written by hand."""
    model = _model(plan)
    mesh = init_device_mesh("cpu", (2,))
    if name == "pp":
        return _pipeline_step(model, plan, mesh)
    if name == "tp":
        _cut(model, mesh)
    if name in ("fsdp2", "replicate"):
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=mesh) if name == "fsdp2" else replicate(module, mesh=mesh)
    wrapped = DistributedDataParallel(model) if name == "ddp" else model
    optimizer = _optimizer(model, plan)
    replicas = 1 if name == "tp" else 2

    def step(batch: torch.Tensor) -> float:
        logits = wrapped(input_ids=batch[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        _clip(model.parameters(), mesh)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return _mean(loss.detach(), replicas)

    return step


def _model(plan: Plan) -> Any:
    """The transformers model with the executor's first weights."""
    config = build_config(plan.model)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").train()
    weights = RandomWeights(plan.training.seed, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.rows(name, tuple(parameter.shape), 0, parameter.shape[0]))
    return model


def _optimizer(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """Parameters that are DTensors and plain ones are groups of their own: the fused kernel takes one kind at a time."""
    spec, parameters = plan.training.optimizer, list(model.parameters())
    kinds = [[p for p in parameters if isinstance(p, DTensor) == kind] for kind in (True, False)]
    return torch.optim.AdamW(
        [{"params": kind} for kind in kinds if kind], lr=spec.learning_rate, betas=spec.betas, eps=spec.epsilon,
        weight_decay=spec.weight_decay, fused=True,
    )  # fmt: skip


def _clip(parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
    """Clip as torch does; beside DTensors plain parameters have a norm of their own, which it does not add up."""
    listed = list(parameters)
    cut = [parameter for parameter in listed if isinstance(parameter, DTensor)]
    plain = [parameter for parameter in listed if not isinstance(parameter, DTensor)]
    if not cut or not plain:
        nn.utils.clip_grad_norm_(listed, MAX_NORM)
        return
    ours, theirs = (nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in (cut, plain))
    norm = (ours.full_tensor().square() + theirs.square()).sqrt()  # type: ignore[attr-defined]
    nn.utils.clip_grads_with_norm_(plain, MAX_NORM, norm)
    nn.utils.clip_grads_with_norm_(cut, MAX_NORM, DTensor.from_local(norm, mesh, [Replicate()], run_check=False))


def _mean(loss: torch.Tensor, replicas: int) -> float:
    """The loss over all processes, on the host."""
    if replicas > 1:
        dist.all_reduce(loss)
    return float(loss) / replicas


def _cut(model: Any, mesh: DeviceMesh) -> None:
    """The styles of torch's tensor-parallel tutorial, module by module."""
    columns, rows = ColwiseParallel, RowwiseParallel
    layer = {f"self_attn.{name}_proj": columns() for name in "qkv"} | {"self_attn.o_proj": rows()}
    layer |= {"mlp.gate_proj": columns(), "mlp.up_proj": columns(), "mlp.down_proj": rows()}
    for block in model.model.layers:
        parallelize_module(block, mesh, dict(layer))
    outer = {
        "model.embed_tokens": rows(input_layouts=Replicate()),
        "lm_head": columns(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, outer)


class _Half(nn.Module):
    """Half of the layers, with the embedding before or the norm and the head after them."""

    def __init__(self, model: Any, stage: int) -> None:
        super().__init__()
        layers = list(model.model.layers)
        middle = len(layers) // 2
        self.layers = nn.ModuleList(layers[:middle] if stage == 0 else layers[middle:])
        self.embedding = model.model.embed_tokens if stage == 0 else None
        self.norm, self.head = (None, None) if stage == 0 else (model.model.norm, model.lm_head)
        self.rotary = model.model.rotary_emb

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Token ids or hidden states in, hidden states or logits out."""
        hidden = inputs if self.embedding is None else self.embedding(inputs)
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        rotary = self.rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
        return hidden if self.norm is None else self.head(self.norm(hidden))


def _pipeline_step(model: Any, plan: Plan, mesh: DeviceMesh) -> Step:
    rank, count = dist.get_rank(), plan.parallel.num_micro_batches
    half = _Half(model, rank)
    stage = PipelineStage(half, rank, 2, torch.device("cpu"), group=mesh.get_group())
    schedule = Schedule1F1B(
        stage, count, loss_fn=lambda out, wanted: F.cross_entropy(out.flatten(0, 1), wanted.flatten())
    )
    optimizer = _optimizer(half, plan)

    def step(batch: torch.Tensor) -> float:
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(batch[:, :-1])
        else:
            schedule.step(target=batch[:, 1:], losses=losses)
        gradients = [parameter.grad for parameter in half.parameters() if parameter.grad is not None]
        square = nn.utils.get_total_norm(gradients).square()
        loss = torch.stack(losses).detach().mean() if losses else torch.zeros(())
        sums = torch.stack([square, loss])
        dist.all_reduce(sums)
        nn.utils.clip_grads_with_norm_(half.parameters(), MAX_NORM, sums[0].sqrt())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(sums[1])

    return step

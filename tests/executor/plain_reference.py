"""The reference of the executor's tests: a plain `transformers` model trained in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM

from costmodel.specs import ModelSpec, Plan, TrainingSpec
from executor.hf_models import build_config
from executor.initialize import RandomWeights
from executor.training_run import TrainingRun

STEPS = 3
Weights = Mapping[str, torch.Tensor]
Reference = tuple[list[float], list[float], Weights]


def tokens(training: TrainingSpec, vocab_size: int, step: int) -> torch.Tensor:
    """The global batch of one step, [global batch, sequence + 1]."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(vocab_size, (training.global_batch_size, training.sequence_length + 1), generator=generator)


def own_share(batch: torch.Tensor, run: TrainingRun) -> torch.Tensor:
    """The rows of the global batch that one process trains on."""
    return batch.chunk(run.data_parallel_size)[run.data_parallel_rank]


def plain_model(model: ModelSpec, training: TrainingSpec) -> torch.nn.Module:
    """The whole model in one process, as `transformers` builds it, with the executor's initial values."""
    dtype = {"fp64": torch.float64, "fp32": torch.float32}[training.precision.parameter]
    config = build_config(model)
    attention = "eager" if model.model_type == "gemma2" else "sdpa"  # transformers has no other for gemma2
    plain = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).train()
    if dtype == torch.float64:
        for module in plain.modules():
            if type(module).__name__.endswith("RMSNorm"):  # which transformers computes in float32
                module.forward = partial(_rms_norm, module)
    weights = RandomWeights(training.seed, config)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights.rows(name, tuple(parameter.shape), 0, parameter.shape[0]))
    return plain


def _rms_norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    if hasattr(module, "eps"):  # gemma2's
        return F.rms_norm(hidden, (hidden.shape[-1],), 1.0 + module.weight, module.eps)
    return F.rms_norm(hidden, (hidden.shape[-1],), module.weight, module.variance_epsilon)


def _softmax(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """torch's own, without transformers' rounding to float32 of float64 scores."""
    return torch.softmax(scores, dim, dtype=None if scores.dtype == torch.float64 else dtype)


def _forward_backward(plain: torch.nn.Module, pieces: Sequence[torch.Tensor], *, mixed: bool, head_copy: bool) -> float:
    """Gradients of the mean loss over equal pieces of a batch, and the loss.

    Mixed precision computes on bfloat16 copies of the parameters (buffers stay: the angles of rotary embeddings are
    float32) and adds the copies' gradients up in the format of the master weights. With ``head_copy`` a tied head is
    a copy of its own, as in a pipeline: its gradient and the embedding's are added in that format too.
    """
    total = 0.0
    masters = dict(plain.named_parameters(remove_duplicate=not head_copy))
    for piece in pieces:
        compute = {
            name: parameter.detach().to(torch.bfloat16 if mixed else parameter.dtype).requires_grad_()
            for name, parameter in masters.items()
        }
        arguments = {"input_ids": piece[:, :-1], "use_cache": False}
        with mock.patch.object(F, "softmax", _softmax):
            logits = torch.func.functional_call(plain, compute, (), arguments, tie_weights=not head_copy).logits
        logits = logits.float() if mixed else logits
        loss = F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten()) / len(pieces)
        loss.backward()
        total += loss.item()
        for name, master in masters.items():
            added = compute[name].grad
            assert added is not None
            master.grad = added.to(master.dtype) if master.grad is None else master.grad + added
    return total


@lru_cache(maxsize=64)
def reference(model_json: str, training_json: str, *, steps: int, piece_size: int, head_copy: bool) -> Reference:
    """Losses, gradient norms and final weights of the plain model after ``steps`` steps on pieces of the global batch."""
    model, training = ModelSpec.model_validate_json(model_json), TrainingSpec.model_validate_json(training_json)
    plain, spec = plain_model(model, training), training.optimizer
    optimizer: torch.optim.Optimizer
    if spec.name == "adamw":
        optimizer = torch.optim.AdamW(
            plain.parameters(), lr=spec.learning_rate, betas=spec.betas, eps=spec.epsilon,
            weight_decay=spec.weight_decay, foreach=False,
        )  # fmt: skip
    else:
        optimizer = torch.optim.SGD(
            plain.parameters(), lr=spec.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay,
            foreach=False,
        )  # fmt: skip
    mixed = training.precision.compute == "bf16"
    # Kernels round to bfloat16 in places of their own; in float64 it does not matter which one is used.
    unfused = mixed and training.attention_implementation == "unfused"
    losses, norms = [], []
    for step in range(steps):
        pieces = tokens(training, model.vocab_size, step).split(piece_size)
        with sdpa_kernel(SDPBackend.MATH) if unfused else nullcontext():
            losses.append(_forward_backward(plain, pieces, mixed=mixed, head_copy=head_copy))
        limit = spec.max_grad_norm if spec.max_grad_norm is not None else float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), limit).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, {name: parameter.detach() for name, parameter in plain.named_parameters()}


def reference_of(plan: Plan, steps: int = STEPS) -> Reference:
    """The reference of a plan: whole batches, in mixed precision micro-batches, since each rounds its gradients."""
    mixed, parallel = is_mixed(plan), plan.parallel
    return reference(
        plan.model.model_dump_json(),
        plan.training.model_dump_json(),
        steps=steps,
        piece_size=parallel.micro_batch_size if mixed else plan.training.global_batch_size,
        head_copy=mixed and parallel.pipeline_parallel_size > 1,
    )


def is_mixed(plan: Plan) -> bool:
    return plan.training.precision.compute != plan.training.precision.parameter


def distance(found: Weights, wanted: Weights, start: Weights) -> float:
    """How far all of ``found`` is from ``wanted``, relative to how far ``wanted`` is from ``start`` (from 0 without)."""
    apart = sum((found[name] - wanted[name]).double().square().sum().item() for name in wanted)
    way = sum((wanted[name] - start.get(name, 0)).double().square().sum().item() for name in wanted)
    return math.sqrt(apart / way)


def weights_without_rounding(plan: Plan) -> Weights:
    """The weights of the same training in one process computed in the format of the master weights."""
    precision = plan.training.precision.model_copy(update={"compute": plan.training.precision.parameter})
    training = plan.training.model_copy(update={"precision": precision})
    return reference_of(plan.model_copy(update={"training": training}))[2]

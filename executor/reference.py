"""The same training in one plain process: what every plan's loss curve must equal.

No mesh, no wrapper: a `transformers` model with the executor's first weights, torch's own optimizer and clipping,
and the whole global batch in pieces of the plan's micro-batch size (equal pieces: the mean of their means is the mean).

Usage: ``python -m executor.reference --plan plan.json --steps 8 --output FOLDER``
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.specs import InputError, Observation, Plan
from executor.checks import check_data, check_runnable, make_batches
from executor.data import GlobalBatches
from executor.failures import describe, save
from executor.files import read_plan, write_atomically
from executor.launch import run_command, worker_arguments, worker_environment
from executor.progress import ProgressReport
from executor.tokenize import load_tokens
from executor.worker import OBSERVATION_FILE, parse_arguments

if TYPE_CHECKING:
    import torch
    from torch import nn


def run_reference(
    plan: Plan, *, steps: int, data: str | Path | None = None, seed: int | None = None, progress: bool = True
) -> Observation:
    """Train the plan's model in one process of its own, on the CPU.

    Args:
        plan: whose model, training, weights and data order are taken; its parallelism is not.
        steps: optimizer steps.
        data: text, JSON Lines or token file; None trains on the text that meshwright carries.
        seed: of weights and data order; None takes the plan's.
        progress: show loss and speed on stderr.

    Returns:
        The losses of all steps.

    Raises:
        InputError: when the plan or the text cannot be used.
        ExecutionError: when the process fails.
    """
    if steps < 1:
        raise InputError(f"steps is {steps}; needed: at least 1")
    data_path = None if data is None else Path(data)
    check_runnable(plan)
    check_data(plan, data_path)
    with tempfile.TemporaryDirectory(prefix="meshwright-reference-") as name:
        folder = Path(name)
        arguments = worker_arguments(plan, folder, steps=steps, data=data_path, seed=seed, progress=progress)
        run_command([sys.executable, "-m", "executor.reference", *arguments], worker_environment(1), folder)
        return Observation.model_validate_json((folder / OBSERVATION_FILE).read_text())


def train_plain(plan: Plan, batches: GlobalBatches, *, steps: int, seed: int, progress: ProgressReport) -> Observation:
    """Train and return the losses."""
    import torch

    model = build_plain_model(plan, seed)
    optimizer = _build_optimizer(plan, model)
    limit = plan.training.optimizer.max_grad_norm
    tokens_per_step = plan.training.global_batch_size * plan.training.sequence_length
    losses = []
    for number in range(steps):
        start = time.perf_counter()
        losses.append(accumulate_gradients(plan, model, batches.batch(number)))
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        speed = tokens_per_step / (time.perf_counter() - start)
        progress.step(number + 1, loss=losses[-1], tokens_per_second=speed)
    return Observation(source="one process, plain transformers", plan_hash=plan.plan_hash, losses=tuple(losses))


def build_plain_model(plan: Plan, seed: int) -> nn.Module:
    """The whole model, as `transformers` makes it, with the weights that every plan starts from."""
    import torch
    from transformers import AutoModelForCausalLM

    from executor.hf_models import (
        DTYPES,
        attention_implementation,
        build_config,
        keep_norms_in_double,
        module_names,
    )
    from executor.initialize import RandomWeights, SafetensorsWeights, WeightSource

    config, dtype = build_config(plan.model), DTYPES[plan.training.precision.parameter]
    model: nn.Module = AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation=attention_implementation(config)
    )
    if dtype == torch.float64:
        keep_norms_in_double(model)
    source: WeightSource = RandomWeights(seed, config)
    if plan.model.weights_path is not None:
        source = SafetensorsWeights(plan.model.weights_path, base=module_names(plan.model).base)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source.rows(name, tuple(parameter.shape), 0, parameter.shape[0]))
    return model.train()


def accumulate_gradients(plan: Plan, model: nn.Module, batch: torch.Tensor) -> float:
    """Gradients of the mean loss over a global batch, int64 [sequences, tokens + 1]; returns the loss."""
    import torch
    import torch.nn.functional as F

    from executor.hf_models import DTYPES

    compute = DTYPES[plan.training.precision.compute]
    pieces = batch.split(plan.parallel.micro_batch_size)
    total = 0.0
    for piece in pieces:
        # Parameters are kept in their own format and multiplied in the compute format, as MixedPrecisionPolicy does.
        weights = {name: parameter.to(compute) for name, parameter in model.named_parameters()}
        arguments = {"input_ids": piece[:, :-1], "use_cache": False}
        logits = torch.func.functional_call(model, weights, (), arguments, tie_weights=True).logits
        logits = logits.float() if compute == torch.bfloat16 else logits
        loss = F.cross_entropy(logits.flatten(0, 1), piece[:, 1:].flatten()) / len(pieces)
        loss.backward()
        total += loss.item()
    return total


def _build_optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    import torch

    spec = plan.training.optimizer
    rate, decay = spec.learning_rate, spec.weight_decay
    if spec.name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=spec.momentum, weight_decay=decay)
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=spec.betas, eps=spec.epsilon, weight_decay=decay)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says; failures are written or printed."""
    options = parse_arguments(arguments)
    try:
        plan = read_plan(options.plan)
        seed = plan.training.seed if options.seed is None else options.seed
        batches = make_batches(plan, load_tokens(plan.model, options.data), seed)
        with ProgressReport(options.steps, enabled=not options.no_progress) as progress:
            observation = train_plain(plan, batches, steps=options.steps, seed=seed, progress=progress)
        write_atomically(options.output / OBSERVATION_FILE, observation.model_dump_json(indent=2) + "\n")
    except BaseException as error:
        failure = describe(error, 0)
        if options.failures is None:
            print(failure, file=sys.stderr, flush=True)
        else:
            save(failure, options.failures)
        return 2 if failure.kind == "input" else 1
    return 0


if __name__ == "__main__":
    exit_code = main()
    sys.stderr.flush()
    os._exit(exit_code)

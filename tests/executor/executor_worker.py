"""What a pool process does: train a plan, train the reference, compare."""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from executor_harness import Parity
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from costmodel.specs import InputError, ModelSpec, Plan, TrainingSpec
from executor.hf_models import build_config
from executor.initialize import RandomWeights
from executor.observe import state_snapshot
from executor.training_run import TrainingRun

STEPS = 3
torch.set_num_threads(1)
warnings.simplefilter("ignore")


def handle(job: dict[str, Any], timeout: timedelta) -> Any:
    """Run one job inside its own process group."""
    store = dist.FileStore(job["store"], job["world_size"])
    plan = Plan.model_validate_json(job["plan"])
    if job["kind"] == "parity" and job["rank"] == 0:
        reference(plan.model.model_dump_json(), plan.training.model_dump_json())
    dist.init_process_group("gloo", store=store, rank=job["rank"], world_size=job["world_size"], timeout=timeout)
    import state_jobs  # its jobs use this module's reference

    answer = {**_JOBS, **state_jobs.JOBS}[job["kind"]](plan, job)
    dist.destroy_process_group()  # after an error the pool is killed instead: peers may still be waiting
    return answer


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
    plain = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train()
    if dtype == torch.float64:
        for module in plain.modules():
            if hasattr(module, "variance_epsilon"):  # RMSNorm, which transformers computes in float32
                module.forward = partial(_rms_norm, module)
    weights = RandomWeights(training.seed, config)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights.rows(name, tuple(parameter.shape), 0, parameter.shape[0]))
    return plain


def _rms_norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(hidden, (hidden.shape[-1],), module.weight, module.variance_epsilon)


def _forward_backward(plain: torch.nn.Module, batch: torch.Tensor, *, mixed: bool) -> torch.Tensor:
    """Gradients of the mean loss; mixed precision computes on a bfloat16 copy and hands its gradients to the master."""
    model = copy.deepcopy(plain).to(torch.bfloat16) if mixed else plain
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    logits = logits.float() if mixed else logits
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    if mixed:
        for master, parameter in zip(plain.parameters(), model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
    return loss.detach()


@lru_cache(maxsize=64)
def reference(
    model_json: str, training_json: str, steps: int = STEPS
) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, gradient norms and final weights of the plain model after so many steps on whole batches."""
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
    losses, norms = [], []
    for step in range(steps):
        batch = tokens(training, model.vocab_size, step)
        loss = _forward_backward(plain, batch, mixed=training.precision.compute == "bf16")
        limit = spec.max_grad_norm if spec.max_grad_norm is not None else float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), limit).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, {name: parameter.detach() for name, parameter in plain.named_parameters()}


def parity(plan: Plan, job: dict[str, Any]) -> Parity | None:
    """Train the plan and compare losses and every weight with the reference; rank 0 answers."""
    run = TrainingRun(plan, device=torch.device("cpu"))
    calls: list[str] = []
    run.before_reduction = lambda: calls.append("before_reduction")
    run.after_optimizer = lambda: calls.append("after_optimizer")
    results = [run.step(own_share(tokens(plan.training, plan.model.vocab_size, step), run)) for step in range(STEPS)]
    state = run.full_state()
    if job["rank"] != 0:
        return None
    losses, norms, weights = reference(plan.model.model_dump_json(), plan.training.model_dump_json())
    differences = {name: (state[name] - weights[name]).abs().max().item() for name in weights if name in state}
    start = dict(plain_model(plan.model, plan.training).named_parameters())
    limit = plan.training.optimizer.max_grad_norm
    worst = max(differences, key=differences.__getitem__)
    return Parity(
        num_compared=len(differences),
        num_parameters=len(weights) if state.keys() == weights.keys() else -1,
        loss_difference=max(abs(result.loss - wanted) for result, wanted in zip(results, losses, strict=True)),
        weight_difference=differences[worst],
        worst_weight=worst,
        relative_loss_difference=max(
            abs(result.loss - wanted) / wanted for result, wanted in zip(results, losses, strict=True)
        ),
        relative_update_difference=math.sqrt(
            sum((state[name] - weights[name]).double().square().sum().item() for name in weights)
            / sum((weights[name] - start[name]).double().square().sum().item() for name in weights)
        ),
        grad_norm_difference=max(
            0.0 if limit is None else abs((result.grad_norm or 0.0) - wanted)
            for result, wanted in zip(results, norms, strict=True)
        ),
        smallest_update=min((weights[name] - start[name]).abs().max().item() for name in weights),
        clipped_steps=sum(norm > (limit or float("inf")) for norm in norms),
        hook_calls=calls,
    )


def state(plan: Plan, job: dict[str, Any]) -> list[dict[str, tuple[int, int, int]]] | None:
    """Bytes of distinct storages of parameters, gradients and optimizer state at the three instants; a list by rank."""
    run = TrainingRun(plan, device=torch.device("cpu"))
    seen = {"after_init": state_snapshot(run)}
    for step in range(2):
        run.before_reduction = lambda: seen.update(before_reduction=state_snapshot(run))
        run.after_optimizer = lambda: seen.update(after_step=state_snapshot(run))
        run.step(own_share(tokens(plan.training, plan.model.vocab_size, step), run))
    ranks: list[Any] = [None] * job["world_size"]
    dist.all_gather_object(ranks, seen)
    return ranks if job["rank"] == 0 else None


class Traffic(TorchDispatchMode):
    """Counts collectives of one process: (operation, size of its group by the ratio of output to input) -> calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # a DTensor first turns itself into local operations
        name = func._schema.name.removeprefix("c10d::").strip("_")
        if func.namespace == "c10d" and name in ("allgather_base", "reduce_scatter_base"):
            output, given = args[0].numel(), args[1].numel()
            self.calls[name, max(output // given, given // output)] += 1
        elif func.namespace == "c10d" and name.startswith("allreduce") and args[0][0].numel() > 2:
            self.calls["allreduce", 0] += 1  # not the clipping and loss scalars
        return func(*args, **(kwargs or {}))


def traffic(plan: Plan, job: dict[str, Any]) -> dict[tuple[str, int], int]:
    """Collectives of rank 0 in the second step."""
    run = TrainingRun(plan, device=torch.device("cpu"))
    run.step(own_share(tokens(plan.training, plan.model.vocab_size, 0), run))
    with Traffic() as seen:
        run.step(own_share(tokens(plan.training, plan.model.vocab_size, 1), run))
    return dict(seen.calls)


def forwards(plan: Plan, job: dict[str, Any]) -> int:
    """How often layers run forward in one step, on all processes together."""
    run, calls = TrainingRun(plan, device=torch.device("cpu")), 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    for stage in run.stages:
        for layer in stage.layers.values():
            getattr(layer, "_checkpoint_wrapped_module", layer).register_forward_pre_hook(count)
    run.step(own_share(tokens(plan.training, plan.model.vocab_size, 0), run))
    total = torch.tensor(calls)
    dist.all_reduce(total)
    return int(total)


def loaded(plan: Plan, job: dict[str, Any]) -> tuple[int, float] | None:
    """Save other weights, start the plan from them; number of tensors and the largest difference of what it holds."""
    other = plain_model(plan.model, plan.training.model_copy(update={"seed": plan.training.seed + 1}))
    folder = str(Path(job["store"]).parent)
    if job["rank"] == 0:
        other.save_pretrained(folder, max_shard_size="100KB")  # several files
    dist.barrier()
    model = plan.model.model_copy(update={"weights_path": folder})
    state = TrainingRun(plan.model_copy(update={"model": model}), device=torch.device("cpu")).full_state()
    if job["rank"] != 0:
        return None
    weights = dict(other.named_parameters())
    assert state.keys() == weights.keys()
    return len(state), max((state[name] - weights[name]).abs().max().item() for name in weights)


def bad_batch(plan: Plan, job: dict[str, Any]) -> str:
    """The message about a batch of the wrong shape."""
    run = TrainingRun(plan, device=torch.device("cpu"))
    try:
        run.step(torch.zeros((3, plan.training.sequence_length + 1), dtype=torch.long))
    except InputError as error:
        return str(error)
    return "accepted"


_JOBS = {
    "parity": parity,
    "state": state,
    "bad_batch": bad_batch,
    "traffic": traffic,
    "loaded": loaded,
    "forwards": forwards,
}

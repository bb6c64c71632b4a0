"""What a pool process does: train a plan, train the reference, compare."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import state_jobs
import torch
import torch.distributed as dist
from executor_harness import Parity
from plain_reference import (
    STEPS,
    distance,
    is_mixed,
    own_share,
    plain_model,
    reference_of,
    tokens,
    weights_without_rounding,
)
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costmodel.specs import InputError, ModelSpec, Plan
from executor.observe import state_snapshot
from executor.training_run import TrainingRun

torch.set_num_threads(1)
warnings.simplefilter("ignore")


def handle(job: dict[str, Any], timeout: timedelta) -> Any:
    """Run one job inside its own process group."""
    distributed_c10d._process_group_name = partial(_name_by_ranks, Counter())
    store = dist.FileStore(job["store"], job["world_size"])
    plan = Plan.model_validate_json(job["plan"])
    if job["kind"] == "parity" and job["rank"] == 0:
        reference_of(plan)
    dist.init_process_group("gloo", store=store, rank=job["rank"], world_size=job["world_size"], timeout=timeout)
    answer = {**_JOBS, **state_jobs.JOBS}[job["kind"]](plan, job)
    dist.destroy_process_group()  # after an error the pool is killed instead: peers may still be waiting
    return answer


def _name_by_ranks(seen: Counter[tuple[int, ...]], ranks: Sequence[int], use_hashed_name: bool) -> str:
    """A process group's name from its ranks; torch counts all groups instead.

    DTensor remembers how operations are sharded together with their mesh, and meshes of two jobs are equal when their ranks
    are: the names of their groups must be too, or the second job asks for groups of the first.
    """
    key = tuple(ranks)
    seen[key] += 1
    return f"{'-'.join(map(str, key)) or 'all'}.{seen[key]}"


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
    losses, norms, weights = reference_of(plan)
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
        relative_weight_difference=distance(state, weights, {}),
        relative_update_difference=distance(state, weights, start),
        grad_norm_difference=max(
            0.0 if limit is None else abs((result.grad_norm or 0.0) - wanted)
            for result, wanted in zip(results, norms, strict=True)
        ),
        relative_rounding=distance(weights, weights_without_rounding(plan), start) if is_mixed(plan) else 0.0,
        smallest_update=min(
            (weights[name] - start[name]).abs().max().item() for name in weights if not _stands_still(plan.model, name)
        ),
        clipped_steps=sum(norm > (limit or float("inf")) for norm in norms),
        hook_calls=calls,
    )


def _stands_still(model: ModelSpec, name: str) -> bool:
    """A key bias shifts all scores of a query alike: without rotary positions its gradient is zero."""
    return model.model_type == "opt" and name.endswith("k_proj.bias")


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


class Formats(TorchDispatchMode):
    """Formats of what one process reduces and gathers: c10d's own collectives, of DTensor's those of vectors.

    DTensor's other collectives are of activations; vectors are gradients of norms and biases.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[str]] = {"reduced": set(), "gathered": set()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        what = "gathered" if "gather" in func.__name__ else "reduced"
        if func.namespace in ("c10d", "_c10d_functional") and ("reduce" in func.__name__ or what == "gathered"):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.numel() > 2]
            counted = (tensor for tensor in tensors if func.namespace == "c10d" or tensor.dim() == 1)
            self.seen[what] |= {str(tensor.dtype) for tensor in counted}
        return func(*args, **(kwargs or {}))


def formats(plan: Plan, job: dict[str, Any]) -> dict[str, set[str]]:
    """Formats of rank 0's tensors during the second step, by what they are."""
    run = TrainingRun(plan, device=torch.device("cpu"))
    seen: dict[str, set[str]] = {"activations": set(), "gradients": set()}

    def look() -> None:
        seen["gradients"] |= {str(gradient.dtype) for gradient in run.gradient_tensors()}

    for stage in run.stages:
        for layer in stage.layers.values():
            layer.register_forward_hook(lambda *call: seen["activations"].add(str(call[-1].dtype)))
    run.step(own_share(tokens(plan.training, plan.model.vocab_size, 0), run))
    run.before_reduction = run.after_optimizer = look
    with Formats() as collectives:
        run.step(own_share(tokens(plan.training, plan.model.vocab_size, 1), run))
    seen["parameters"] = {str(parameter.dtype) for parameter in run.parameter_tensors()}
    seen["optimizer state"] = {str(tensor.dtype) for tensor in run.optimizer_state_tensors()}
    return seen | collectives.seen


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
    "formats": formats,
    "loaded": loaded,
    "forwards": forwards,
}

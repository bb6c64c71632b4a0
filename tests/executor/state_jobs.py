"""Jobs of pool processes that write checkpoints and Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plain_reference import own_share, plain_model, reference_of, tokens
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from costmodel.specs import Plan
from executor.checkpoint import load_checkpoint, save_checkpoint
from executor.checkpoint_record import make_record, newest_checkpoint
from executor.hf_models import keep_norms_in_double
from executor.save_hf import save_hf
from executor.training_run import TrainingRun

CPU = torch.device("cpu")


def _train(run: TrainingRun, start: int, stop: int) -> list[float]:
    training, vocabulary = run.plan.training, run.plan.model.vocab_size
    return [run.step(own_share(tokens(training, vocabulary, step), run)).loss for step in range(start, stop)]


def checkpoint_save(plan: Plan, job: dict[str, Any]) -> list[str]:
    """Train ``stop`` steps and save; the files written."""
    run = TrainingRun(plan, device=CPU)
    _train(run, 0, job["stop"])
    record = make_record(plan, step=job["stop"], seed=plan.training.seed, data="")
    folder = save_checkpoint(run, Path(job["folder"]), record, dist.group.WORLD)
    return sorted(path.name for path in folder.iterdir())


def checkpoint_resume(plan: Plan, job: dict[str, Any]) -> tuple[int, int, float, float] | None:
    """Load, train from ``start`` to ``stop``: tensors compared, the model's tensors, largest differences of losses and weights.

    The first weights are drawn with another seed, so a tensor that was not loaded shows.
    """
    run = TrainingRun(plan, device=CPU, seed=plan.training.seed + 1)
    checkpoint = newest_checkpoint(Path(job["folder"]))
    assert checkpoint is not None
    load_checkpoint(run, checkpoint, dist.group.WORLD)
    losses = _train(run, job["start"], job["stop"])
    state = run.full_state()
    if job["rank"] != 0:
        return None
    wanted, _, weights = reference_of(plan, steps=job["stop"])
    compared = state.keys() & weights.keys()
    return (
        len(compared),
        len(weights),
        max(abs(found - needed) for found, needed in zip(losses, wanted[job["start"] :], strict=True)),
        max((state[name] - weights[name]).abs().max().item() for name in compared),
    )


def export(plan: Plan, job: dict[str, Any]) -> dict[str, Any] | None:
    """Train a Hugging Face folder (made here) for 5 steps, save it, and hold it against one process's training of it.

    Answers the largest differences of logits and weights, the number of weight files, and the loaded model's class.
    """
    start, saved = Path(job["folder"]) / "start", Path(job["folder"]) / "saved"
    if job["rank"] == 0:
        first = plain_model(plan.model, plan.training.model_copy(update={"seed": 99}))
        first.save_pretrained(start, max_shard_size="50KB")
        (start / "tokenizer.json").write_text("{}")
    dist.barrier()
    model = plan.model.model_copy(update={"weights_path": str(start), "tokenizer_path": None})
    plan = plan.model_copy(update={"model": model})
    run = TrainingRun(plan, device=CPU)
    _train(run, 0, 5)
    dtype = job.get("dtype")
    save_hf(run, saved, dist.group.WORLD, max_file_bytes=100_000, dtype=dtype and getattr(torch, dtype))
    if job["rank"] != 0:
        return None
    training = plan.training.model_copy(update={"seed": 99})
    _, _, weights = reference_of(plan.model_copy(update={"training": training}), steps=5)
    single = plain_model(plan.model, training)
    with torch.no_grad():
        for name, parameter in single.named_parameters():
            parameter.copy_(weights[name])
    loaded = AutoModelForCausalLM.from_pretrained(saved)
    stored = {name: tensor for path in saved.glob("*.safetensors") for name, tensor in load_file(path).items()}
    return {
        "logits": _logit_difference(loaded, single, plan.model.vocab_size) if dtype is None else None,
        "weights": max((stored[name].double() - weights[name]).abs().max().item() for name in weights),
        "stored": sorted(stored) == sorted(weights),
        "dtypes": sorted({str(tensor.dtype) for tensor in stored.values()}),
        "files": sorted(path.name for path in saved.iterdir()),
        "class": type(loaded).__name__,
        "moved": max((weights[name] - tensor).abs().max().item() for name, tensor in _start(start).items()),
    }


def _start(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@torch.no_grad()
def _logit_difference(loaded: Any, single: Any, vocab_size: int) -> float:
    """Both as `transformers` runs them, but for RMSNorm, which it rounds to float32 whatever its input."""
    inputs = torch.randint(vocab_size, (3, 12), generator=torch.Generator().manual_seed(5))
    logits = []
    for model in (loaded, single):
        keep_norms_in_double(model)
        logits.append(model.eval()(inputs, use_cache=False).logits)
    assert logits[0].dtype == torch.float64
    return (logits[0] - logits[1]).abs().max().item()


JOBS = {"checkpoint_save": checkpoint_save, "checkpoint_resume": checkpoint_resume, "export": export}

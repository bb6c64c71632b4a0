"""Contexts that rules are asked about, and one candidate at a time."""

from __future__ import annotations

from typing import Any

from costmodel.models.loader import load_model
from costmodel.runtimes.grid import Grid, RecomputeKind
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import RuleContext, evaluate
from costmodel.specs import OptimizerSpec, ParallelConfig, Rejection, RuntimeProfile, TrainingSpec
from hardware_profiles.loader import load_cluster


def make_training(
    runtime: RuntimeProfile, *, batch: int = 64, sequence: int = 1024, precision: str = "bf16"
) -> TrainingSpec:
    return TrainingSpec(
        global_batch_size=batch,
        sequence_length=sequence,
        precision=runtime.precisions[precision],
        optimizer=OptimizerSpec(),
    )


def make_context(
    *,
    model: str = "llama-3-8b",
    cluster: str = "8x8xH100-SXM",
    runtime: str = "torch",
    layers_per_stage: tuple[int, ...] | None = None,
    runtime_changes: dict[str, Any] | None = None,
    **training: Any,
) -> RuleContext:
    profile = load_runtime(runtime)
    return RuleContext(
        model=load_model(model),
        cluster=load_cluster(cluster),
        training=make_training(profile, **training),
        runtime=profile.model_copy(update=runtime_changes or {}),
        layers_per_stage=layers_per_stage,
    )


def broken(context: RuleContext, recompute: RecomputeKind = "none", **sizes: Any) -> dict[str, Rejection]:
    grid = Grid.from_parallel(ParallelConfig(**sizes), recompute)
    return {o.rule.name: o.rejection(0) for o in evaluate(context, grid) if not o.mask_ok[0]}


# 64 devices: tp 4 x pp 2 x dp 8 = 64; batch 64 = 1 x 8 x 8.
GOOD: dict[str, Any] = {
    "tensor_parallel_size": 4,
    "sequence_parallel": True,
    "loss_parallel": True,
    "pipeline_parallel_size": 2,
    "pipeline_schedule": "1f1b",
    "data_parallel_shard_size": 8,
    "zero_stage": 1,
    "micro_batch_size": 1,
    "num_micro_batches": 8,
}

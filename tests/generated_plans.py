"""Valid plans of all kinds, from 8 to 16,384 devices, by seed; and real ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from costmodel.build import build_plan
from costmodel.models.loader import load_model
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import check
from costmodel.specs import (
    AXIS_ORDERS,
    ClusterSpec,
    InputError,
    OptimizerSpec,
    ParallelConfig,
    Plan,
    RecomputeSpec,
    RuntimeProfile,
    TrainingSpec,
)
from hardware_profiles.loader import load_cluster

_NODES = (1, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 96, 128, 256, 512, 1024, 2048)
_DEVICES = ("H100-SXM", "A100-SXM-80GB", "B200")
# Words of precision that are drawn; elsewhere bf16 twice as often as fp32.
_PRECISIONS = {"megatron": ("bf16", "bf16-gradients", "fp16", "fp32", "fp8", "fp8-current", "fp8-blockwise", "mxfp8")}
_CHUNKED = ("interleaved_1f1b", "looped_bfs")


@lru_cache(maxsize=128)
def _cluster(name: str) -> ClusterSpec:
    return load_cluster(name)


def generated_plans(
    runtime: str, models: Sequence[str], *, count: int, seed: int, accept: Callable[[Plan], bool] = lambda plan: True
) -> Iterator[Plan]:
    """So many different plans that obey every rule of the runtime, the same ones for the same seed.

    Args:
        runtime: name of its profile.
        models: of the catalogue.
        count: plans.
        seed: of the choices.
        accept: further wishes.
    """
    rng, seen = random.Random(seed), set[str]()
    for _ in range(count * 2000):
        plan = random_plan(rng, runtime, models)
        if plan is not None and plan.plan_hash not in seen and accept(plan):
            seen.add(plan.plan_hash)
            yield plan
            if len(seen) == count:
                return
    raise AssertionError(f"found {len(seen)} of {count} plans for {runtime}")


def drawn_plan(
    seed: int, runtime: str, models: Sequence[str], accept: Callable[[Plan], bool] = lambda plan: True
) -> Plan:
    """The first such plan of a seed: a property-based test draws the seed and has nothing to filter out."""
    return next(generated_plans(runtime, models, count=1, seed=seed, accept=accept))


def random_plan(rng: random.Random, runtime: str, models: Sequence[str]) -> Plan | None:
    """One plan, or None where the choices break a rule."""
    profile, model = load_runtime(runtime), load_model(rng.choice(models))
    cluster = _cluster(f"{rng.choice(_NODES)}x8x{rng.choice(_DEVICES)}")
    sizes = _sizes(rng, profile, cluster.num_devices, model.num_hidden_layers)
    if sizes is None:
        return None
    parallel = ParallelConfig(**sizes)
    batch = parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size
    if batch > 10**6:
        return None
    training = TrainingSpec(
        global_batch_size=batch,
        sequence_length=rng.choice((1024, 2048, 4096, 8192, 32768)),
        precision=profile.precisions[
            rng.choice(
                [word for word in _PRECISIONS.get(runtime, ("bf16", "bf16", "fp32")) if word in profile.precisions]
            )
        ],
        optimizer=_optimizer(rng),
    )
    stages = parallel.pipeline_parallel_size * parallel.num_model_chunks
    try:
        plan = build_plan(
            model,
            cluster,
            training,
            profile,
            parallel,
            recompute=_recompute(rng, profile),
            layers_per_stage=_layers(rng, profile, model.num_hidden_layers, stages),
            axis_order=AXIS_ORDERS[rng.choice(profile.axis_orders)],
        )
    except InputError:
        return None
    return None if check(plan) else plan


def _sizes(rng: random.Random, profile: RuntimeProfile, devices: int, layers: int) -> dict[str, Any] | None:
    tensor = rng.choice((1, 1, 2, 4, 8)) if profile.tensor_parallel else 1
    context = rng.choice((1, 1, 1, 2, 4, 8)) if profile.context_parallel_methods else 1
    pipeline, schedule, chunks = _pipeline(rng, profile, layers)
    data, rest = divmod(devices, tensor * context * pipeline)
    if rest or not data:
        return None
    shard = rng.choice([size for size in range(1, data + 1) if data % size == 0])
    shard = rng.choice((data, data, shard))
    stages = [stage for stage in profile.zero_stages if (stage > 0) == (shard * context > 1)]
    if not stages:
        return None
    zero = rng.choice(stages)
    split = rng.random() < 0.8
    return {
        "tensor_parallel_size": tensor,
        "sequence_parallel": _switch(profile.sequence_parallel, tensor, split),
        "loss_parallel": _switch(profile.loss_parallel, tensor, split),
        "context_parallel_size": context,
        "context_parallel_method": rng.choice(profile.context_parallel_methods) if context > 1 else None,
        "pipeline_parallel_size": pipeline,
        "pipeline_schedule": schedule,
        "num_model_chunks": chunks,
        "data_parallel_replicate_size": data // shard,
        "data_parallel_shard_size": shard,
        "zero_stage": zero,
        "hierarchical_partition_size": 8
        if profile.hierarchical_partition and zero == 3 and rng.random() < 0.3
        else None,
        "micro_batch_size": rng.choice((1, 1, 2, 4)),
        "num_micro_batches": rng.choice((1, 2, 3, 4, 8, 16, 32)),
    }


def _switch(word: str, tensor: int, chosen: bool) -> bool:
    return tensor > 1 and (word == "always" or (word == "optional" and chosen))


def _pipeline(rng: random.Random, profile: RuntimeProfile, layers: int) -> tuple[int, str, int]:
    schedules = [schedule for schedule in profile.schedules if schedule != "none"]
    if not schedules or rng.random() < 0.4:
        return 1, "none", 1
    ranks, schedule = rng.choice([size for size in (2, 3, 4, 8, 16) if size <= layers]), rng.choice(schedules)
    chunks = rng.choice([count for count in (2, 2, 3, 4) if count * ranks <= layers] or [1])
    return ranks, schedule, chunks if schedule in _CHUNKED else 1


def _layers(rng: random.Random, profile: RuntimeProfile, layers: int, stages: int) -> tuple[int, ...] | None:
    """Even stages, or some layers moved from one stage to another."""
    if stages == 1 or not profile.uneven_stages or layers < stages or rng.random() < 0.4:
        return None
    counts = list(even_split(layers, stages))
    for _ in range(rng.choice((1, 1, 2))):
        giver, taker = rng.randrange(stages), rng.randrange(stages)
        if counts[giver] > 1:
            counts[giver] -= 1
            counts[taker] += 1
    return tuple(counts)


def _recompute(rng: random.Random, profile: RuntimeProfile) -> RecomputeSpec:
    kind = rng.choice(profile.recompute_kinds)
    if kind == "full" and profile.recompute_layers != "all" and rng.random() < 0.5:
        return RecomputeSpec(kind=kind, num_layers=rng.choice((1, 2, 3)))
    return RecomputeSpec(kind=kind)


def _optimizer(rng: random.Random) -> OptimizerSpec:
    return OptimizerSpec(
        learning_rate=rng.choice((1e-3, 3e-4, 1.5e-4)),
        weight_decay=rng.choice((0.0, 0.01, 0.1)),
        betas=rng.choice(((0.9, 0.95), (0.9, 0.999))),
        epsilon=rng.choice((1e-8, 1e-6)),
        max_grad_norm=rng.choice((1.0, 1.0, 0.5, None)),
    )

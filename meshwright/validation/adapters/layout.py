"""A run -> the plan that it ran, and the profile that predicts it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from costmodel.build import build_plan
from costmodel.runtimes.layer_split import dealt_layers
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import check
from costmodel.specs import InputError, ParallelConfig, Plan, RuntimeProfile, TrainingSpec
from costmodel.vocabulary import padded_model
from hardware_profiles.types import ClusterSpec
from meshwright.validation.adapters import words
from meshwright.validation.adapters.dimensions import build_model_spec
from meshwright.validation.adapters.errors import BrokenRuleError, UnsupportedRunError
from meshwright.validation.adapters.frameworks import FRAMEWORKS, framework_of
from meshwright.validation.adapters.hardware import build_cluster
from meshwright.validation.adapters.kernels import with_kernels
from meshwright.validation.run_rows import ParallelFields, RunRow, global_batch_size, is_sane_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedRun:
    """A run as a plan. ``runtime`` stands in for ``framework``."""

    framework: str
    runtime: RuntimeProfile
    plan: Plan


def adapt(row: RunRow) -> AdaptedRun:
    """The plan of a run.

    Raises:
        UnknownAcceleratorError: when there is no profile of its accelerator.
        BrokenRuleError: when its layout breaks a rule.
        UnsupportedRunError: when the cost model lacks something the run uses, or the row something the plan needs.
    """
    cluster = build_cluster(row.hardware)
    _refuse_foreign(row)
    framework = framework_of(row)
    sizes = _sizes(row, framework, cluster)
    runtime = with_kernels(load_runtime(FRAMEWORKS[framework].profile), row, FRAMEWORKS[framework])
    model = padded_model(build_model_spec(row.model), runtime, sizes["tensor_parallel_size"])
    recompute = words.recompute_kind(row.parallel.recompute, framework)
    try:
        training = _training(row, framework, runtime, cluster)
        parallel = ParallelConfig(**sizes)
        plan = build_plan(
            model,
            cluster,
            training,
            runtime,
            parallel,
            recompute=recompute,
            layers_per_stage=dealt_layers(model, runtime, sizes["pipeline_parallel_size"], sizes["num_model_chunks"]),
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise UnsupportedRunError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    except InputError as error:
        raise UnsupportedRunError(str(error)) from error
    _check_rules(plan, runtime, borrowed=framework != runtime.name)
    return AdaptedRun(framework=framework, runtime=runtime, plan=plan)


def _refuse_foreign(row: RunRow) -> None:
    parallel = row.parallel
    if row.model.moe is not None or (parallel.ep or 1) > 1:
        raise UnsupportedRunError("mixture of experts")
    if (parallel.extra or {}).get("task") == "LoRA":
        raise UnsupportedRunError("LoRA")
    if parallel.offload not in (None, "none"):
        raise UnsupportedRunError(f"offload {parallel.offload!r}")
    words.check_optimizer(parallel.optimizer)


def _sizes(row: RunRow, framework: str, cluster: ClusterSpec) -> dict[str, Any]:
    """Fields of ParallelConfig."""
    parallel, devices = row.parallel, row.hardware.n_gpus or cluster.num_devices
    tensor, pipeline, context = parallel.tp or 1, parallel.pp or 1, parallel.cp or 1
    data = _data_parallel(parallel, devices)
    schedule, chunks = words.pipeline_schedule(parallel)
    stage = words.zero_stage(parallel, framework, data * context)
    shard = words.shard_size(parallel, data, cluster.devices_per_node) if stage else 1
    if data % shard:
        raise UnsupportedRunError(f"a shard group of {shard} does not divide dp {data}")
    stated = parallel.sequence_parallel
    micro, count = _batch(row, data)
    return {
        "tensor_parallel_size": tensor,
        "sequence_parallel": tensor > 1 and (FRAMEWORKS[framework].sequence_parallel if stated is None else stated),
        "loss_parallel": tensor > 1,
        "pipeline_parallel_size": pipeline,
        "pipeline_schedule": schedule,
        "num_model_chunks": chunks,
        "data_parallel_replicate_size": data // shard,
        "data_parallel_shard_size": shard,
        "zero_stage": stage if shard * context > 1 else 0,
        "context_parallel_size": context,
        "context_parallel_method": words.context_parallel_method(framework, context),
        "micro_batch_size": micro,
        "num_micro_batches": count,
    }


def _data_parallel(parallel: ParallelFields, devices: int) -> int:
    """Data-parallel ranks, which tp, pp and cp leave of the devices."""
    sizes = {"tp": parallel.tp or 1, "pp": parallel.pp or 1}
    if parallel.cp is not None and parallel.cp > 1:
        sizes["cp"] = parallel.cp
    product, named = math.prod(sizes.values()), " x ".join(f"{name} {size}" for name, size in sizes.items())
    if devices % product:
        raise UnsupportedRunError(f"{named} does not divide {devices} devices")
    if parallel.dp is not None and parallel.dp * product != devices:
        raise UnsupportedRunError(f"{named} x dp {parallel.dp} is not {devices} devices")
    return devices // product


def _batch(row: RunRow, data_parallel: int) -> tuple[int, int]:
    """Micro-batch size and their number: global batch = micro batch x number x data-parallel size."""
    parallel, batch = row.parallel, global_batch_size(row)
    if batch is None:
        raise UnsupportedRunError("the row lacks parallel.global_batch")
    if not is_sane_batch(batch):
        raise UnsupportedRunError("micro_batch x grad_accum x dp is no global batch between 1 and 1,000,000")
    micro = parallel.micro_batch or _micro_batch(parallel, batch, data_parallel)
    if batch % (micro * data_parallel):
        raise UnsupportedRunError(f"micro batch {micro} x dp {data_parallel} does not divide the global batch {batch}")
    return micro, batch // (micro * data_parallel)


def _micro_batch(parallel: ParallelFields, batch: int, data_parallel: int) -> int:
    if parallel.grad_accum is None:
        raise UnsupportedRunError("the row lacks parallel.micro_batch")
    return max(1, round(batch / (parallel.grad_accum * data_parallel)))


def _training(row: RunRow, framework: str, runtime: RuntimeProfile, cluster: ClusterSpec) -> TrainingSpec:
    batch = global_batch_size(row)
    content = {
        "global_batch_size": batch,
        "sequence_length": row.model.seq_len,
        "precision": words.precision(
            row.parallel.dtype,
            framework,
            runtime,
            cluster.device,
            reduces_low=words.reduces_in_compute_format(row.parallel, framework),
        ),
        "attention_implementation": words.attention_implementation(row.parallel.flash_attention, cluster.device),
    }
    return TrainingSpec.model_validate(content)


def _check_rules(plan: Plan, runtime: RuntimeProfile, *, borrowed: bool) -> None:
    """Every rule of plans; what a profile supports says nothing about a framework that only borrows it."""
    for broken in check(plan, runtime):
        if not (borrowed and (broken.rule.startswith("runtime_") or broken.rule == "full_pipeline")):
            raise BrokenRuleError(broken.rule, broken.message)

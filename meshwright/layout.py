"""Complete the sizes of a plan that a person states only in part.

    devices = pipeline x data_parallel_replicate x data_parallel_shard x context x tensor (1)
    global_batch_size = micro_batch_size x num_micro_batches x data_parallel_size         (2)

What (1) and (2) leave open is filled in only where a single value is left; the rest has the documented
defaults (sizes 1, micro_batch_size 1). Whether the result is a valid plan is for runtimes/rules.py.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from costmodel.runtimes.placement import V_SCHEDULES
from costmodel.specs import ClusterSpec, InputError, ParallelConfig, RuntimeProfile, TrainingSpec
from hardware_profiles.errors import explain_validation_error, show_value, unknown_name

_MAX_SIZE = 10**9


def complete_parallel(
    sizes: dict[str, Any], *, cluster: ClusterSpec, training: TrainingSpec, runtime: RuntimeProfile
) -> ParallelConfig:
    """The full configuration that agrees with the sizes stated.

    Args:
        sizes: fields of `ParallelConfig`; absent or None means not stated.
        cluster: gives the number of devices in (1).
        training: gives the global batch in (2).
        runtime: its switches that are always on under tensor parallelism are on.

    Raises:
        InputError: when a value is outside its domain, or the sizes do not multiply.
    """
    stated = {name: value for name, value in sizes.items() if value is not None}
    unknown = sorted(set(stated) - set(ParallelConfig.model_fields))
    if unknown:
        raise InputError(unknown_name("size", unknown[0], ParallelConfig.model_fields))
    # Every value alone, before they are divided by each other, and as the numbers they mean.
    stated = _validate(stated).model_dump(include=set(stated))
    for name, value in stated.items():
        if isinstance(sizes[name], bool) and ParallelConfig.model_fields[name].annotation is not bool:
            raise InputError(f"{name} is {show_value(sizes[name])}; needed a whole number of at least 1")
        if isinstance(value, int) and value > _MAX_SIZE:
            raise InputError(f"{name} is {value}; needed at most {_MAX_SIZE:,}")
    stated.update(_data_parallel_sizes(stated, cluster.num_devices))
    stated.update(_micro_batches(stated, training.global_batch_size))
    for switch in ("sequence_parallel", "loss_parallel"):
        if getattr(runtime, switch) == "always":
            stated.setdefault(switch, stated.get("tensor_parallel_size", 1) > 1)
    if "pipeline_schedule" not in stated and stated.get("pipeline_parallel_size", 1) > 1:
        interleaved = stated.get("num_model_chunks", 1) > 1
        stated["pipeline_schedule"] = "interleaved_1f1b" if interleaved else "1f1b"
    if stated.get("pipeline_schedule") in V_SCHEDULES:
        stated.setdefault("num_model_chunks", 2)
    return _validate(stated)


def _data_parallel_sizes(stated: dict[str, Any], num_devices: int) -> dict[str, int]:
    """Number (1), solved for the two data-parallel sizes."""
    replicate, shard = stated.get("data_parallel_replicate_size"), stated.get("data_parallel_shard_size")
    if replicate is not None and shard is not None:
        return {}
    tensor, pipeline = stated.get("tensor_parallel_size", 1), stated.get("pipeline_parallel_size", 1)
    context = stated.get("context_parallel_size", 1)
    fixed = tensor * pipeline * context * (replicate or 1) * (shard or 1)
    rest, remainder = divmod(num_devices, fixed)
    if rest == 0 or remainder:
        raise InputError(
            f"sizes do not multiply to the cluster: tensor_parallel_size {tensor} x pipeline_parallel_size {pipeline}"
            + (f" x context_parallel_size {context}" if context > 1 else "")
            + (f" x data_parallel_replicate_size {replicate}" if replicate else "")
            + (f" x data_parallel_shard_size {shard}" if shard else "")
            + f" = {fixed} does not divide {num_devices} devices; change a size, or state both data-parallel sizes to "
            "leave devices idle"
        )
    if replicate is not None:
        return {"data_parallel_shard_size": rest}
    if shard is not None:
        return {"data_parallel_replicate_size": rest}
    if stated.get("zero_stage", 0) > 0:
        return {"data_parallel_replicate_size": 1, "data_parallel_shard_size": rest}
    return {"data_parallel_replicate_size": rest, "data_parallel_shard_size": 1}


def _micro_batches(stated: dict[str, Any], global_batch_size: int) -> dict[str, int]:
    """Number (2), solved for the micro-batch size or the number of micro-batches."""
    size, count = stated.get("micro_batch_size"), stated.get("num_micro_batches")
    if size is not None and count is not None:
        return {}
    data_parallel = stated["data_parallel_replicate_size"] * stated["data_parallel_shard_size"]
    known = size if size is not None else count if count is not None else 1
    rest, remainder = divmod(global_batch_size, data_parallel * known)
    if rest == 0 or remainder:
        name = "num_micro_batches" if size is None and count is not None else "micro_batch_size"
        raise InputError(
            f"batch not divisible: data_parallel_size {data_parallel} x {name} {known} = {data_parallel * known} "
            f"does not divide global_batch_size {global_batch_size}; change the batch or one of these sizes"
        )
    if size is None and count is not None:
        return {"micro_batch_size": rest}
    return {"micro_batch_size": known, "num_micro_batches": rest}


def _validate(stated: dict[str, Any]) -> ParallelConfig:
    try:
        return ParallelConfig.model_validate(stated)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, "sizes", ParallelConfig)) from None

"""One line per plan, for tables and messages."""

from __future__ import annotations

from costmodel.runtimes.axis_orders import axis_order_word
from costmodel.runtimes.grid import RecomputeKind
from costmodel.runtimes.placement import V_SCHEDULES
from costmodel.specs import DEFAULT_AXIS_ORDER, Axis, ParallelConfig, Plan

_LISTED = 8
"""Stages that are listed one by one."""
_RECOMPUTE = {"none": "no-recompute", "core_attention": "selective", "op_policy": "op-selective", "full": "full"}


def summarize(plan: Plan) -> str:
    """A plan in short form, such as ``tp8 pp16 dp8 (zero1) mb1 m192 1f1b full``."""
    kinds = {stage.recompute.kind for stage in plan.stages}
    kind: RecomputeKind = next(k for k in ("full", "op_policy", "core_attention", "none") if k in kinds)
    text = summarize_parallel(plan.parallel, kind, plan.axis_order)
    modes = [stage.recompute.word for stage in plan.stages]
    if len(set(modes)) > 1 or ":" in modes[0]:
        again = sum(stage.num_recomputed_layers for stage in plan.stages)
        listed = "/".join(modes) if len(modes) <= _LISTED else f"{again} of {plan.model.num_hidden_layers} layers"
        text += f" recompute {listed}"
    counts = [stage.num_layers for stage in plan.stages]
    if max(counts) - min(counts) <= 1:
        return text
    listed = "/".join(map(str, counts)) if len(counts) <= _LISTED else f"{min(counts)} to {max(counts)} a stage"
    return f"{text} layers {listed}"


def summarize_parallel(
    parallel: ParallelConfig, recompute: RecomputeKind, axis_order: tuple[Axis, ...] = DEFAULT_AXIS_ORDER
) -> str:
    """The same from the sizes alone; parts at their neutral value are left out."""
    parts = [f"tp{parallel.tensor_parallel_size}", f"pp{parallel.pipeline_parallel_size}", _data_parallel(parallel)]
    if parallel.sequence_parallel:
        parts[0] += "+sp"
    if parallel.context_parallel_size > 1:
        parts.append(f"cp{parallel.context_parallel_size} {parallel.context_parallel_method}")
    parts += [f"mb{parallel.micro_batch_size}", f"m{parallel.num_micro_batches}"]
    if parallel.num_model_chunks > 1:
        schedule = parallel.pipeline_schedule.removesuffix("_1f1b")
        parts.append(schedule if schedule in V_SCHEDULES else f"{schedule} v{parallel.num_model_chunks}")
    elif parallel.pipeline_schedule != "none":
        parts.append(parallel.pipeline_schedule)
    parts.append(_RECOMPUTE[recompute])
    if axis_order != DEFAULT_AXIS_ORDER:
        parts.append(axis_order_word(axis_order).replace("_", "-"))
    return " ".join(parts)


def _data_parallel(parallel: ParallelConfig) -> str:
    replicate, shard = parallel.data_parallel_replicate_size, parallel.data_parallel_shard_size
    if parallel.zero_stage == 0:
        return f"dp{parallel.data_parallel_size}"
    size = f"{replicate}x{shard}" if replicate > 1 else str(shard)
    partition = parallel.hierarchical_partition_size
    return f"dp{size} (zero{parallel.zero_stage}{f' hpz{partition}' if partition else ''})"

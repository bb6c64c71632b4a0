"""Steps of one size from a plan: the next values of an axis, everything else following."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS, SCHEDULES
from costmodel.runtimes.placement import LOOPED_SCHEDULES, V_SCHEDULES
from costmodel.runtimes.rules import RuleContext, divisors
from costmodel.specs import ParallelConfig, PipelineSchedule
from planner.context_values import context_methods, context_sizes
from planner.enumeration import (
    DEFAULT_SCHEDULES,
    Declared,
    chunk_values,
    micro_batch_values,
    pipeline_values,
    shard_values,
    tensor_parallel_values,
)

Move = tuple[str, str, ParallelConfig]
"""The axis, its new value as a person writes it, and all sizes then."""


def moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    """Steps along every axis of sizes and switches, to the next values that the space declares.

    Args:
        parallel: where the steps start.
        context: model, cluster, training, runtime.
        declared: axis -> column codes; axes that are absent take their default values.
    """
    yield from _tensor_moves(parallel, context, declared)
    yield from _context_moves(parallel, context, declared)
    yield from _pipeline_moves(parallel, context, declared)
    yield from _schedule_moves(parallel, context, declared)
    yield from _micro_batch_moves(parallel, context, declared)
    yield from _sharding_moves(parallel, context, declared)
    yield from _partition_moves(parallel, context, declared)
    yield from _switch_moves(parallel)
    yield from _device_moves(parallel, context, declared)


def devices_of_a_stage(parallel: ParallelConfig) -> int:
    """Devices that share the sequences of one replica's stage."""
    return parallel.tensor_parallel_size * parallel.context_parallel_size


def beside(values: list[Any], current: Any) -> list[Any]:
    """The values just below and just above ``current``."""
    if current not in values:
        return []
    index = values.index(current)
    return values[max(0, index - 1) : index] + values[index + 1 : index + 2]


def _data_sizes(parallel: ParallelConfig, data: int, cut: int) -> dict[str, int | None]:
    """Replicate, shard and ZeRO for ``data`` devices, in the way the plan uses its data-parallel axes now.

    ``cut``: the context-parallel devices, which ZeRO shards over too.
    """
    stage, shard, partition = (
        parallel.zero_stage,
        parallel.data_parallel_shard_size,
        parallel.hierarchical_partition_size,
    )
    if stage == 0 or data * cut == 1:
        return _data_axes(data, 1, 0, None)
    if parallel.data_parallel_replicate_size == 1 or data % shard:
        shard = data
    group = shard * cut
    keep = stage == 3 and partition is not None and partition < group and group % partition == 0
    return _data_axes(data // shard, shard, stage, partition if keep else None)


def _data_axes(replicate: int, shard: int, stage: int, partition: int | None) -> dict[str, int | None]:
    return {
        "data_parallel_replicate_size": replicate,
        "data_parallel_shard_size": shard,
        "zero_stage": stage,
        "hierarchical_partition_size": partition,
    }


def _with_data(parallel: ParallelConfig, data: int, **changes: Any) -> ParallelConfig:
    """Change sizes and give the data-parallel axes ``data`` devices; a micro-batch too large for its share shrinks."""
    batch = parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size
    share = max(1, batch // data)
    micro = max(size for size in divisors(share) if size <= parallel.micro_batch_size)
    return _changed(
        parallel,
        **_data_sizes(parallel, data, changes.get("context_parallel_size", parallel.context_parallel_size)),
        micro_batch_size=micro,
        num_micro_batches=share // micro,
        **changes,
    )


def _changed(parallel: ParallelConfig, **changes: Any) -> ParallelConfig:
    return ParallelConfig.model_validate({**parallel.model_dump(), **changes})


def _tensor_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    current = parallel.tensor_parallel_size
    rest = current * parallel.data_parallel_size
    for size in beside(sorted({*tensor_parallel_values(context, declared), current}), current):
        if rest % size == 0:
            on = size > 1
            changes = {
                "tensor_parallel_size": size,
                "sequence_parallel": on and (parallel.sequence_parallel or current == 1),
                "loss_parallel": on and (parallel.loss_parallel or current == 1),
            }
            yield "tensor_parallel_size", str(size), _with_data(parallel, rest // size, **changes)


def _context_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    """Sizes beside the plan's with the first method searched there, and the runtime's other methods at the plan's own size."""
    current, tensor = parallel.context_parallel_size, parallel.tensor_parallel_size
    rest, stated = current * parallel.data_parallel_size, declared.get("context_parallel_method")
    sizes = context_sizes(context, declared.get("context_parallel_size"), stated)
    for size in beside(sorted({*sizes, current}), current):
        if rest % size == 0:
            codes = context_methods(context, stated, size=size, tensor=tensor, devices=parallel.num_devices)
            methods = [CONTEXT_PARALLEL_METHODS[code] for code in codes]
            method = parallel.context_parallel_method if parallel.context_parallel_method in methods else methods[0]
            changes = {"context_parallel_size": size, "context_parallel_method": method}
            yield "context_parallel_size", str(size), _with_data(parallel, rest // size, **changes)
    if current > 1:
        known = map(CONTEXT_PARALLEL_METHODS.index, context.runtime.context_parallel_methods)
        for code in sorted(set(stated or known) - {0}):
            method = CONTEXT_PARALLEL_METHODS[code]
            if method != parallel.context_parallel_method:
                yield "context_parallel_method", str(method), _changed(parallel, context_parallel_method=method)


def _pipeline_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    """The schedule stays; where its chunks lie in a loop, it keeps the number of virtual stages if it can."""
    current, layers = parallel.pipeline_parallel_size, context.model.num_hidden_layers
    rest = current * parallel.data_parallel_size
    for size in beside(pipeline_values(context, declared, rest), current):
        schedule: PipelineSchedule = parallel.pipeline_schedule
        chunks = 1
        if schedule in LOOPED_SCHEDULES:
            chunks = max(2, min(parallel.num_model_chunks * current, layers) // size)
        elif schedule in V_SCHEDULES:
            chunks = 2
        if size == 1:
            schedule, chunks = "none", 1
        elif schedule == "none" or chunks * size > layers:
            schedule, chunks = "1f1b", 1
        changes = {"pipeline_parallel_size": size, "pipeline_schedule": schedule, "num_model_chunks": chunks}
        yield "pipeline_parallel_size", str(size), _with_data(parallel, rest // size, **changes)


def _schedule_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    if parallel.pipeline_parallel_size == 1:
        return
    searched = [SCHEDULES.index(name) for name in DEFAULT_SCHEDULES if name in context.runtime.schedules]
    known, current = declared.get("pipeline_schedule", searched), parallel.pipeline_schedule
    schedules = {SCHEDULES[code] for code in known} - {"none", "naive", current}
    looped = current if current in LOOPED_SCHEDULES else "interleaved_1f1b"
    if looped in {*schedules, current}:
        chunks = {1, *declared.get("num_model_chunks", chunk_values(context, parallel.pipeline_parallel_size))}
        for count in beside(sorted({*chunks, parallel.num_model_chunks}), parallel.num_model_chunks):
            if count > 1:
                changed = _changed(parallel, pipeline_schedule=looped, num_model_chunks=count)
                yield "num_model_chunks", str(count), changed
    for schedule in sorted(schedules - {looped}):
        count = max(2, parallel.num_model_chunks) if schedule in LOOPED_SCHEDULES else 1 + (schedule in V_SCHEDULES)
        yield "pipeline_schedule", schedule, _changed(parallel, pipeline_schedule=schedule, num_model_chunks=count)


def _micro_batch_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    current = parallel.micro_batch_size
    share = current * parallel.num_micro_batches
    sizes = declared.get("micro_batch_size", micro_batch_values(share, context.training.sequence_length))
    values = [size for size in sizes if share % size == 0]
    for size in beside(sorted({*values, current}), current):
        changed = _changed(parallel, micro_batch_size=size, num_micro_batches=share // size)
        yield "micro_batch_size", str(size), changed


def _sharding_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    data, stage, partition = parallel.data_parallel_size, parallel.zero_stage, parallel.hierarchical_partition_size
    if data * parallel.context_parallel_size == 1:
        return
    for other in beside(sorted(declared.get("zero_stage", context.runtime.zero_stages)), stage):
        shard = 1 if other == 0 else data if stage == 0 else parallel.data_parallel_shard_size
        axes = _data_axes(data // shard, shard, other, partition if other == 3 else None)
        yield "zero_stage", str(other), _changed(parallel, **axes)
    if stage > 0:
        known = shard_values(context, declared, data, devices_of_a_stage(parallel))
        sizes = [size for size in sorted({*known, parallel.data_parallel_shard_size}) if size > 1]
        for shard in beside(sizes, parallel.data_parallel_shard_size):
            axes = _data_axes(data // shard, shard, stage, None)
            yield "data_parallel_shard_size", str(shard), _changed(parallel, **axes)


def _partition_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    """hpZ: off, or one copy per node where ZeRO-3 shards over several."""
    if parallel.zero_stage != 3:
        return
    group = parallel.data_parallel_shard_size * parallel.context_parallel_size
    share = context.cluster.devices_per_node // parallel.tensor_parallel_size
    sizes = (0, share) if 1 < share < group and group % share == 0 else (0,)
    current = parallel.hierarchical_partition_size or 0
    for size in beside(sorted({*declared.get("hierarchical_partition_size", sizes), current}), current):
        changed = _changed(parallel, hierarchical_partition_size=size or None)
        yield "hierarchical_partition_size", str(size or "off"), changed


def _switch_moves(parallel: ParallelConfig) -> Iterator[Move]:
    if parallel.tensor_parallel_size > 1:
        for name in ("sequence_parallel", "loss_parallel"):
            on = not getattr(parallel, name)
            yield name, str(on).lower(), _changed(parallel, **{name: on})


def _device_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    """More or fewer replicas of the same model-parallel group, as the batch divides."""
    group, batch, cluster = (
        parallel.num_devices // parallel.data_parallel_size,
        context.training.global_batch_size,
        context.cluster,
    )
    numbers = [group * data for data in divisors(batch) if group * data <= cluster.num_devices]
    known = [number for number in declared.get("num_devices_used", numbers) if number in numbers]
    for number in beside(sorted({*known, parallel.num_devices}), parallel.num_devices):
        yield "num_devices_used", str(number), _with_data(parallel, number // group)

"""The plans one step away from the best on every axis: what each would cost, or why it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid, RecomputeKind
from costmodel.runtimes.placement import LOOPED_SCHEDULES, V_SCHEDULES
from costmodel.runtimes.rules import RuleContext, divisors, evaluate
from costmodel.specs import AXIS_ORDERS, DEFAULT_AXIS_ORDER, Neighbour, ParallelConfig, PipelineSchedule
from costmodel.specs import Axis as MeshAxis
from planner.axis_orders import orders_differ
from planner.candidates import device_bytes, gib_apart
from planner.enumeration import (
    DEFAULT_SCHEDULES,
    Declared,
    chunk_values,
    micro_batch_values,
    pipeline_values,
    shard_values,
    tensor_parallel_values,
)
from planner.evaluation import Search, exact_seconds
from planner.space import Space


@dataclass(frozen=True, slots=True)
class Step:
    """One axis moved to one value, everything else following."""

    axis: str
    value: str
    parallel: ParallelConfig
    recompute: RecomputeKind
    axis_order: tuple[MeshAxis, ...]


def find_neighbours(space: Space, found: Search) -> tuple[Neighbour, ...]:
    """Price every step away from the best plan.

    Where a budget ended the search early, a neighbour inside the space may be faster: it then becomes the best.
    """
    row = found.best()
    return tuple(_price(step, found.seconds(row), space, found) for step in steps_from(row, space, found))


def steps_from(row: int, space: Space, found: Search) -> list[Step]:
    """All steps from a candidate to the next value of one axis, among the values the space declares.

    An axis that the user fixed steps through its default values: what it costs to fix it is worth knowing.
    """
    context, kind = space.context, found.candidates.grid.recompute_kind(row)
    declared = {axis: values for axis, values in space.declared.items() if axis not in space.fixed}
    parallel = found.candidates.grid.parallel(row)
    moves = [
        *_tensor_moves(parallel, context, declared),
        *_pipeline_moves(parallel, context, declared),
        *_schedule_moves(parallel, context, declared),
        *_micro_batch_moves(parallel, context, declared),
        *_sharding_moves(parallel, context, declared),
        *_partition_moves(parallel, context, declared),
        *_switch_moves(parallel),
        *_device_moves(parallel, context, declared),
    ]
    order = found.candidates.grid.order(row)
    steps = [Step(axis, value, changed, kind, _settled(order, changed, context)) for axis, value, changed in moves]
    allowed = declared.get("recompute", tuple(map(RECOMPUTE_KINDS.index, context.runtime.recompute_kinds)))
    kinds = [RECOMPUTE_KINDS[code] for code in sorted(allowed)]
    steps += [Step("recompute", other, parallel, other, order) for other in _beside(kinds, kind)]
    steps += [
        Step("axis_order", word, parallel, kind, AXIS_ORDERS[word])
        for word in context.runtime.axis_orders
        if AXIS_ORDERS[word] != order and _differ(parallel, context)
    ]
    return steps


def _differ(parallel: ParallelConfig, context: RuleContext) -> bool:
    sizes = (parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size)
    return orders_differ(context.cluster, *sizes)


def _settled(order: tuple[MeshAxis, ...], parallel: ParallelConfig, context: RuleContext) -> tuple[MeshAxis, ...]:
    """The order, or the default where it makes no difference: the one that candidates have there."""
    return order if _differ(parallel, context) else DEFAULT_AXIS_ORDER


Move = tuple[str, str, ParallelConfig]


def _beside(values: list[Any], current: Any) -> list[Any]:
    """The values just below and just above ``current``."""
    if current not in values:
        return []
    index = values.index(current)
    return values[max(0, index - 1) : index] + values[index + 1 : index + 2]


def _data_sizes(parallel: ParallelConfig, data: int) -> dict[str, int | None]:
    """Replicate, shard and ZeRO for ``data`` devices, in the way the plan uses its data-parallel axes now."""
    stage, shard, partition = (
        parallel.zero_stage,
        parallel.data_parallel_shard_size,
        parallel.hierarchical_partition_size,
    )
    if stage == 0 or data == 1:
        return _data_axes(data, 1, 0, None)
    if parallel.data_parallel_replicate_size == 1 or data % shard:
        shard = data
    keep = stage == 3 and partition is not None and partition < shard and shard % partition == 0
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
        **_data_sizes(parallel, data),
        micro_batch_size=micro,
        num_micro_batches=share // micro,
        **changes,
    )


def _changed(parallel: ParallelConfig, **changes: Any) -> ParallelConfig:
    return ParallelConfig.model_validate({**parallel.model_dump(), **changes})


def _tensor_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    current = parallel.tensor_parallel_size
    rest = current * parallel.data_parallel_size
    for size in _beside(sorted({*tensor_parallel_values(context, declared), current}), current):
        if rest % size == 0:
            on = size > 1
            changes = {
                "tensor_parallel_size": size,
                "sequence_parallel": on and (parallel.sequence_parallel or current == 1),
                "loss_parallel": on and (parallel.loss_parallel or current == 1),
            }
            yield "tensor_parallel_size", str(size), _with_data(parallel, rest // size, **changes)


def _pipeline_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    """The schedule stays; where its chunks lie in a loop, it keeps the number of virtual stages if it can."""
    current, layers = parallel.pipeline_parallel_size, context.model.num_hidden_layers
    rest = current * parallel.data_parallel_size
    for size in _beside(pipeline_values(context, declared, rest), current):
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
        for count in _beside(sorted({*chunks, parallel.num_model_chunks}), parallel.num_model_chunks):
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
    for size in _beside(sorted({*values, current}), current):
        changed = _changed(parallel, micro_batch_size=size, num_micro_batches=share // size)
        yield "micro_batch_size", str(size), changed


def _sharding_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    data, stage, partition = parallel.data_parallel_size, parallel.zero_stage, parallel.hierarchical_partition_size
    if data == 1:
        return
    for other in _beside(sorted(declared.get("zero_stage", context.runtime.zero_stages)), stage):
        shard = 1 if other == 0 else data if stage == 0 else parallel.data_parallel_shard_size
        axes = _data_axes(data // shard, shard, other, partition if other == 3 else None)
        yield "zero_stage", str(other), _changed(parallel, **axes)
    if stage > 0:
        known = shard_values(context, declared, data, parallel.tensor_parallel_size)
        sizes = [size for size in sorted({*known, parallel.data_parallel_shard_size}) if size > 1]
        for shard in _beside(sizes, parallel.data_parallel_shard_size):
            axes = _data_axes(data // shard, shard, stage, None)
            yield "data_parallel_shard_size", str(shard), _changed(parallel, **axes)


def _partition_moves(parallel: ParallelConfig, context: RuleContext, declared: Declared) -> Iterator[Move]:
    """hpZ: off, or one copy per node where ZeRO-3 shards over several."""
    if parallel.zero_stage != 3:
        return
    shard, share = parallel.data_parallel_shard_size, context.cluster.devices_per_node // parallel.tensor_parallel_size
    sizes = (0, share) if 1 < share < shard and shard % share == 0 else (0,)
    current = parallel.hierarchical_partition_size or 0
    for size in _beside(sorted({*declared.get("hierarchical_partition_size", sizes), current}), current):
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
    for number in _beside(sorted({*known, parallel.num_devices}), parallel.num_devices):
        yield "num_devices_used", str(number), _with_data(parallel, number // group)


def _price(step: Step, best_seconds: float, space: Space, found: Search) -> Neighbour:
    """Evaluate one step, or say which rule or how much memory stands against it."""
    context = space.context
    grid = Grid.from_parallel(step.parallel, step.recompute, step.axis_order)
    broken = [outcome for outcome in evaluate(context, grid) if not outcome.mask_ok[0]]
    if broken:
        return Neighbour(axis=step.axis, value=step.value, rejection=broken[0].rejection(0).message)
    row = _row_of(found.candidates.grid, grid)
    if row is not None and found.fits[row] and np.isfinite(found.seconds(row)):
        return _priced(step, found.seconds(row), best_seconds)
    needed, capacity = float(device_bytes(context, grid)[0]), context.usable_bytes
    if needed > capacity:
        wanted, held = gib_apart(needed, capacity)
        text = f"needs {wanted} GiB a device of {held} GiB"
        return Neighbour(axis=step.axis, value=step.value, needed_bytes=int(needed), rejection=text)
    return _priced(step, float(exact_seconds(context, grid)[0]), best_seconds)


def _priced(step: Step, seconds: float, best_seconds: float) -> Neighbour:
    return Neighbour(axis=step.axis, value=step.value, step_time_seconds=seconds, slowdown=seconds / best_seconds - 1)


def _row_of(grid: Grid, one: Grid) -> int | None:
    """The row of ``grid`` that equals the single row ``one``."""
    same = np.ones(len(grid), dtype=bool)
    for column in fields(Grid):
        same &= getattr(grid, column.name) == getattr(one, column.name)[0]
    rows = np.flatnonzero(same)
    return int(rows[0]) if len(rows) else None

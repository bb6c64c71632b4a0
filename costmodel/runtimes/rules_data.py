"""Rules on the batch and on ZeRO groups."""

from __future__ import annotations

import numpy as np

from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules_core import BoolColumn, Finding, Rule, RuleContext, divisors, listed


def _batch_divides(context: RuleContext, grid: Grid) -> BoolColumn:
    product = grid.micro_batch_size * grid.num_micro_batches * grid.data_parallel_size
    return np.asarray(context.training.global_batch_size % product == 0)


def _batch_equals(context: RuleContext, grid: Grid) -> BoolColumn:
    product = grid.micro_batch_size * grid.num_micro_batches * grid.data_parallel_size
    return np.asarray(context.training.global_batch_size == product)


def _explain_divisible(context: RuleContext, grid: Grid, row: int) -> Finding:
    micro, count = int(grid.micro_batch_size[row]), int(grid.num_micro_batches[row])
    data, batch = int(grid.data_parallel_size[row]), context.training.global_batch_size
    sizes = {"micro_batch_size": micro, "num_micro_batches": count, "data_parallel_size": data}
    factors = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    product, valid = micro * count * data, listed(divisors(batch))
    by = " x ".join(factors) + (f" = {product}" if len(factors) > 1 else "")
    nearest = max(1, round(batch / product)) * product
    return Finding(
        f"global_batch_size {batch} is not divisible by {by}; valid products: {valid}",
        f"set global_batch_size to {nearest}, or choose sizes whose product is one of {valid}",
        {"global_batch_size": batch, "product": product, "valid": valid},
    )


def _explain_product(context: RuleContext, grid: Grid, row: int) -> Finding:
    micro, count = int(grid.micro_batch_size[row]), int(grid.num_micro_batches[row])
    data, batch = int(grid.data_parallel_size[row]), context.training.global_batch_size
    product = micro * count * data
    if batch % (micro * data) == 0:
        fix = f"set num_micro_batches to {batch // (micro * data)}"
    else:
        fix = f"choose micro_batch_size x data_parallel_size among the divisors of {batch}: {listed(divisors(batch))}"
    return Finding(
        f"micro_batch_size {micro} x num_micro_batches {count} x data_parallel_size {data} = {product}, but it must "
        "equal "
        f"global_batch_size {batch}",
        f"{fix}, or set global_batch_size to {product}",
        {"global_batch_size": batch, "product": product},
    )


def _zero_needs_shards(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.zero_stage == 0) | (grid.shard_group_size > 1))


def _shards_need_zero(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.data_parallel_shard_size == 1) | (grid.zero_stage > 0))


def _explain_zero(context: RuleContext, grid: Grid, row: int) -> Finding:
    stage, shards = int(grid.zero_stage[row]), int(grid.data_parallel_shard_size[row])
    data, valid = int(grid.data_parallel_size[row]), listed(s for s in context.runtime.zero_stages if s > 0)
    if stage:
        fix = "set zero_stage to 0, or data_parallel_shard_size to 2 or more"
        message = f"zero_stage {stage} has nothing to shard: data_parallel_shard_size is 1; valid zero_stage here: 0"
    else:
        fix = f"set zero_stage to one of {valid}, or shard size to 1 and data_parallel_replicate_size to {data}"
        message = f"data_parallel_shard_size {shards} with zero_stage 0: only ZeRO shards; valid zero_stage: {valid}"
    return Finding(message, fix, {"zero_stage": stage, "data_parallel_shard_size": shards})


def _hierarchical_stage(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.hierarchical_partition_size == 0) | (grid.zero_stage == 3))


def _hierarchical_divides(_: RuleContext, grid: Grid) -> BoolColumn:
    size, shards = grid.hierarchical_partition_size, grid.shard_group_size
    return np.asarray((size == 0) | ((size > 1) & (size < shards) & (shards % np.maximum(size, 1) == 0)))


def _explain_hierarchical_stage(_: RuleContext, grid: Grid, row: int) -> Finding:
    size, stage = int(grid.hierarchical_partition_size[row]), int(grid.zero_stage[row])
    return Finding(
        f"hierarchical_partition_size {size} with zero_stage {stage}: it keeps a second copy of the parameters that "
        "ZeRO-3 "
        "gathers, so it needs zero_stage 3",
        "set zero_stage to 3, or leave hierarchical_partition_size off",
        {"hierarchical_partition_size": size, "zero_stage": stage, "valid": "off"},
    )


def _explain_hierarchical_size(_: RuleContext, grid: Grid, row: int) -> Finding:
    size, shards = int(grid.hierarchical_partition_size[row]), int(grid.shard_group_size[row])
    cut = int(grid.context_parallel_size[row])
    group = f"data_parallel_shard_size {shards}"
    if cut > 1:
        group = f"data_parallel_shard_size {shards // cut} x context_parallel_size {cut} = {shards}"
    valid = listed([d for d in divisors(shards) if 1 < d < shards] or ["off"])
    return Finding(
        f"hierarchical_partition_size {size} must divide {group} and lie between 1 and it; valid: {valid}",
        f"set hierarchical_partition_size to one of {valid}",
        {"hierarchical_partition_size": size, "data_parallel_shard_size": shards, "valid": valid},
    )


_BATCH_AXES = ("micro_batch_size", "num_micro_batches", "data_parallel_replicate_size", "data_parallel_shard_size")

DATA_RULES: tuple[Rule, ...] = (
    Rule(name="batch_divisible", stated_axes=(), mask=_batch_divides, explain=_explain_divisible),
    Rule(name="batch_product", stated_axes=_BATCH_AXES, mask=_batch_equals, explain=_explain_product),
    # A stage alone breaks nothing: where a single device is left to shard over, the planner takes stage 0.
    Rule(
        name="zero_needs_shards",
        stated_axes=("zero_stage", "data_parallel_shard_size", "context_parallel_size"),
        mask=_zero_needs_shards,
        explain=_explain_zero,
    ),
    Rule(
        name="shards_need_zero",
        stated_axes=("zero_stage", "data_parallel_shard_size"),
        mask=_shards_need_zero,
        explain=_explain_zero,
    ),
    Rule(
        name="hierarchical_partition_needs_zero3",
        stated_axes=("hierarchical_partition_size", "zero_stage"),
        mask=_hierarchical_stage,
        explain=_explain_hierarchical_stage,
    ),
    Rule(
        name="hierarchical_partition_divides_shards",
        stated_axes=("hierarchical_partition_size", "data_parallel_shard_size", "context_parallel_size"),
        mask=_hierarchical_divides,
        explain=_explain_hierarchical_size,
    ),
)

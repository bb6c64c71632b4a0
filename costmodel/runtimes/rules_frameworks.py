"""Rules on what single frameworks do not combine, each a field of `RuntimeProfile` with its source in the profile's file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS, Grid, IntColumn
from costmodel.runtimes.rules_core import BoolColumn, Finding, Rule, RuleContext, divisors, everywhere, listed
from costmodel.runtimes.rules_tensor import tensor_parallel_dims
from costmodel.specs import RuntimeProfile, TensorParallelSwitch

_ALL_TO_ALL = CONTEXT_PARALLEL_METHODS.index("all_to_all")
_TENSOR, _PIPELINE, _CONTEXT = "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"
_REPLICATE, _SHARD = "data_parallel_replicate_size", "data_parallel_shard_size"
_ZERO, _PARTITION = "zero_stage", "hierarchical_partition_size"


def _tensor(context: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.tensor_parallel_size == 1) | context.runtime.tensor_parallel)


def _explain_tensor(context: RuleContext, grid: Grid, row: int) -> Finding:
    size = int(grid.tensor_parallel_size[row])
    return Finding(
        f"runtime {context.runtime.name} has no tensor parallelism, found {_TENSOR} {size}; valid: 1",
        f"set {_TENSOR} to 1, or choose another runtime",
        {_TENSOR: size, "valid": 1},
    )


def _switch(axis: str, state: Callable[[RuntimeProfile], TensorParallelSwitch]) -> Rule:
    """A switch that some runtimes tie to tensor parallelism: always on or always off beside it."""

    def mask(context: RuleContext, grid: Grid) -> BoolColumn:
        allowed = np.array([value in _values(state(context.runtime)) for value in (0, 1)])
        return np.asarray((grid.tensor_parallel_size == 1) | allowed[getattr(grid, axis)])

    def explain(context: RuleContext, grid: Grid, row: int) -> Finding:
        size, found = int(grid.tensor_parallel_size[row]), _WORDS[int(getattr(grid, axis)[row])]
        needed = _WORDS[_values(state(context.runtime))[0]]
        return Finding(
            f"runtime {context.runtime.name} has {axis} always {needed} under tensor parallelism, found {found} "
            f"with {_TENSOR} {size}; valid: {needed}",
            f"turn {axis} {needed}, set {_TENSOR} to 1, or choose another runtime",
            {axis: found, _TENSOR: size, "valid": needed},
        )

    return Rule(name=f"runtime_{axis}", stated_axes=(axis, _TENSOR), mask=mask, explain=explain)


_WORDS = ("off", "on")


def _values(state: TensorParallelSwitch) -> tuple[int, ...]:
    """What the switch may be, 0 or 1."""
    return {"optional": (0, 1), "always": (1,), "never": (0,)}[state]


def _sequence_multiple(context: RuleContext, grid: Grid) -> BoolColumn:
    multiple = context.runtime.sequence_multiple
    pieces = multiple * grid.tensor_parallel_size * grid.context_parallel_size
    return np.asarray(context.training.sequence_length % np.where(multiple == 1, 1, pieces) == 0)


def _explain_sequence_multiple(context: RuleContext, grid: Grid, row: int) -> Finding:
    multiple, length = context.runtime.sequence_multiple, context.training.sequence_length
    tensor, cut = int(grid.tensor_parallel_size[row]), int(grid.context_parallel_size[row])
    pieces = multiple * tensor * cut
    valid = listed(divisors(length // multiple)) if length % multiple == 0 else "none"
    return Finding(
        f"runtime {context.runtime.name} needs sequence_length to be a multiple of {multiple} x {_TENSOR} {tensor} x {_CONTEXT} "
        f"{cut} = {pieces}, found {length}; valid {_TENSOR} x {_CONTEXT}: {valid}",
        f"pad sequence_length to {-(-length // pieces) * pieces}, or choose {_TENSOR} x {_CONTEXT} from {valid}",
        {"sequence_length": length, "multiple": pieces, "valid": valid},
    )


def _whole_key_value_heads(context: RuleContext, tensor: IntColumn, cut: IntColumn) -> BoolColumn:
    """Every context rank gets as many of a tensor rank's heads, or where heads may be copied, every head as many ranks."""
    heads = np.maximum(tensor_parallel_dims(context.model)["num_key_value_heads"] // tensor, 1)
    return np.asarray((heads % cut == 0) | (context.runtime.all_to_all_copies_heads & (cut % heads == 0)))


def _key_value_heads(context: RuleContext, grid: Grid) -> BoolColumn:
    fine = _whole_key_value_heads(context, grid.tensor_parallel_size, grid.context_parallel_size)
    return np.asarray((grid.context_parallel_method != _ALL_TO_ALL) | fine)


def _explain_key_value_heads(context: RuleContext, grid: Grid, row: int) -> Finding:
    size, tensor = int(grid.context_parallel_size[row]), int(grid.tensor_parallel_size[row])
    dims, name = tensor_parallel_dims(context.model), context.runtime.name
    heads, sizes = dims["num_key_value_heads"], np.array(divisors(max(1, dims["num_attention_heads"] // tensor)))
    valid = listed(sizes[_whole_key_value_heads(context, np.full_like(sizes, tensor), sizes)])
    copies = "into whole heads or copies" if context.runtime.all_to_all_copies_heads else "into whole heads"
    methods = " or ".join(m for m in context.runtime.context_parallel_methods if m != "all_to_all") or "another runtime"
    return Finding(
        f"runtime {name} exchanges key-value heads under all_to_all: {heads} num_key_value_heads / {_TENSOR} {tensor} do not "
        f"fall {copies} over {_CONTEXT} {size}; valid {_CONTEXT}: {valid}",
        f"set {_CONTEXT} to one of {valid}, or use {methods}",
        {_CONTEXT: size, "num_key_value_heads": heads, _TENSOR: tensor, "valid": valid},
    )


def _replicas(context: RuleContext, grid: Grid) -> BoolColumn:
    model = grid.tensor_parallel_size * grid.pipeline_parallel_size
    mixed = (grid.context_parallel_size > 1) | ((grid.data_parallel_replicate_size > 1) & (model > 1))
    return np.asarray(~mixed | (grid.zero_stage > 0) | (not context.runtime.replicas_alone))


def _explain_replicas(context: RuleContext, grid: Grid, row: int) -> Finding:
    sizes = {name: int(getattr(grid, name)[row]) for name in (_REPLICATE, _TENSOR, _PIPELINE, _CONTEXT)}
    found = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    valid = listed(stage for stage in context.runtime.zero_stages if stage)
    replicas = sizes[_REPLICATE] * sizes[_CONTEXT]
    return Finding(
        f"runtime {context.runtime.name} replicates parameters only where nothing else is parallel, found {found} with "
        f"{_ZERO} 0; valid {_ZERO}: {valid}",
        f"set {_ZERO} to one of {valid} and {_SHARD} to {sizes[_REPLICATE]}, or the other sizes to 1"
        if sizes[_REPLICATE] > 1
        else f"set {_ZERO} to one of {valid}, which shards over the {replicas} context-parallel devices, or {_CONTEXT} to 1",
        {_ZERO: 0, "replicas": replicas, "valid": valid},
    )


def _hybrid_stage(context: RuleContext, grid: Grid) -> BoolColumn:
    hybrid = (grid.data_parallel_replicate_size > 1) & (grid.shard_group_size > 1)
    return np.asarray(~hybrid | np.isin(grid.zero_stage, context.runtime.hybrid_zero_stages))


def _explain_hybrid_stage(context: RuleContext, grid: Grid, row: int) -> Finding:
    replicate, shard, stage = (int(getattr(grid, name)[row]) for name in (_REPLICATE, _SHARD, _ZERO))
    valid = listed(context.runtime.hybrid_zero_stages)
    return Finding(
        f"runtime {context.runtime.name} shards inside groups of replicas ({_REPLICATE} {replicate} with {_SHARD} {shard}) under "
        f"{_ZERO} {valid} only, found {_ZERO} {stage}; valid: {valid}",
        f"set {_ZERO} to {valid}, or {_REPLICATE} to 1 and {_SHARD} to {replicate * shard}",
        {_ZERO: stage, _REPLICATE: replicate, _SHARD: shard, "valid": valid},
    )


def _hybrid_partition(context: RuleContext, grid: Grid) -> BoolColumn:
    both = (grid.data_parallel_replicate_size > 1) & (grid.hierarchical_partition_size > 0)
    return np.asarray(~both | context.runtime.hybrid_hierarchical_partition)


def _explain_hybrid_partition(context: RuleContext, grid: Grid, row: int) -> Finding:
    replicate, size = int(grid.data_parallel_replicate_size[row]), int(grid.hierarchical_partition_size[row])
    return Finding(
        f"runtime {context.runtime.name} keeps no second copy of parameters inside groups of replicas: {_PARTITION} {size} with "
        f"{_REPLICATE} {replicate}; valid: {_PARTITION} off, or {_REPLICATE} 1",
        f"leave {_PARTITION} off, or shard over all data-parallel devices ({_REPLICATE} 1)",
        {_PARTITION: size, _REPLICATE: replicate, "valid": "off"},
    )


def _pipelines(context: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.pipeline_parallel_size == 1) | (context.runtime.schedules != ("none",)))


def _explain_pipelines(context: RuleContext, grid: Grid, row: int) -> Finding:
    size = int(grid.pipeline_parallel_size[row])
    return Finding(
        f"runtime {context.runtime.name} has no pipelines, found {_PIPELINE} {size}; valid: 1",
        f"set {_PIPELINE} to 1, or choose a runtime that has pipelines: torch, torchtitan, megatron, megatron-deepspeed or nemo",
        {_PIPELINE: size, "valid": 1},
    )


def _pipeline_stage(context: RuleContext, grid: Grid) -> BoolColumn:
    allowed = np.isin(grid.zero_stage, context.runtime.pipeline_zero_stages)
    return np.asarray((grid.pipeline_parallel_size == 1) | allowed)


def _explain_pipeline_stage(context: RuleContext, grid: Grid, row: int) -> Finding:
    stage, pipeline = int(grid.zero_stage[row]), int(grid.pipeline_parallel_size[row])
    valid = listed(context.runtime.pipeline_zero_stages)
    return Finding(
        f"runtime {context.runtime.name} refuses {_ZERO} {stage} with pipelines ({_PIPELINE} {pipeline}): every micro-batch "
        f"would reduce or gather anew; valid {_ZERO}: {valid}",
        f"set {_ZERO} to one of {valid}, or {_PIPELINE} to 1",
        {_ZERO: stage, _PIPELINE: pipeline, "valid": valid},
    )


def _zero_optimizer(context: RuleContext, grid: Grid) -> BoolColumn:
    known = context.runtime.zero_optimizers
    return np.asarray(
        (grid.zero_stage == 0) | everywhere(grid, known is None or context.training.optimizer.name in known)
    )


def _explain_zero_optimizer(context: RuleContext, grid: Grid, row: int) -> Finding:
    stage, name, valid = (
        int(grid.zero_stage[row]),
        context.training.optimizer.name,
        listed(context.runtime.zero_optimizers or ()),
    )
    return Finding(
        f"runtime {context.runtime.name} shards the states of {valid} only, found optimizer {name} with {_ZERO} {stage}; valid "
        f"optimizer: {valid}",
        f"set {_ZERO} to 0 and {_SHARD} to 1, or optimizer to {valid}",
        {_ZERO: stage, "optimizer": name, "valid": valid},
    )


def _rule(
    name: str,
    axes: tuple[str, ...],
    mask: Callable[[RuleContext, Grid], BoolColumn],
    explain: Callable[[RuleContext, Grid, int], Finding],
) -> Rule:
    return Rule(name=f"runtime_{name}", stated_axes=axes, mask=mask, explain=explain)


FRAMEWORK_RULES: tuple[Rule, ...] = (
    _rule("tensor_parallel", (_TENSOR,), _tensor, _explain_tensor),
    _switch("sequence_parallel", lambda runtime: runtime.sequence_parallel),
    _switch("loss_parallel", lambda runtime: runtime.loss_parallel),
    _rule("sequence_multiple", (), _sequence_multiple, _explain_sequence_multiple),
    _rule(
        "key_value_heads", (_CONTEXT, "context_parallel_method", _TENSOR), _key_value_heads, _explain_key_value_heads
    ),
    _rule("replicas_alone", (_REPLICATE, _ZERO), _replicas, _explain_replicas),
    _rule("hybrid_zero_stage", (_REPLICATE, _SHARD, _ZERO), _hybrid_stage, _explain_hybrid_stage),
    _rule("hybrid_hierarchical_partition", (_REPLICATE, _PARTITION), _hybrid_partition, _explain_hybrid_partition),
    _rule("pipelines", (_PIPELINE,), _pipelines, _explain_pipelines),
    _rule("pipeline_zero_stage", (_PIPELINE, _ZERO), _pipeline_stage, _explain_pipeline_stage),
    _rule("zero_optimizer", (_ZERO,), _zero_optimizer, _explain_zero_optimizer),
)

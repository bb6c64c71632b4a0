"""Rules on what the training framework, the device and the model support."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from costmodel.runtimes.axis_orders import AXIS_ORDER_WORDS
from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid
from costmodel.runtimes.rules_core import BoolColumn, Finding, Rule, RuleContext, everywhere, listed
from costmodel.specs import MAX_SEQUENCE_LENGTH, DeviceSpec, ModelSpec, PrecisionSpec, RuntimeProfile


def _runtime_axis(
    axis: str, all_values: tuple[object, ...], supported: Callable[[RuntimeProfile], tuple[object, ...]]
) -> Rule:
    """The runtime must know the value of one axis; columns hold indices into ``all_values``."""

    def values(context: RuleContext) -> list[object]:
        known = supported(context.runtime)
        return [value for value in all_values if value in known]

    def mask(context: RuleContext, grid: Grid) -> BoolColumn:
        allowed = np.array([value in values(context) for value in all_values])
        return np.asarray(allowed[getattr(grid, axis)])

    def explain(context: RuleContext, grid: Grid, row: int) -> Finding:
        found, valid = str(all_values[int(getattr(grid, axis)[row])]), listed(values(context))
        return Finding(
            f"runtime {context.runtime.name} does not support {axis} {found}; supported: {valid}",
            f"choose {axis} from {valid}, or another runtime",
            {axis: found, "valid": valid},
        )

    return Rule(name=f"runtime_{axis}", stated_axes=(axis,), mask=mask, explain=explain)


def _context_rule(name: str, ok: Callable[[RuleContext], bool], explain: Callable[[RuleContext], Finding]) -> Rule:
    """A rule that no axis changes: broken for every candidate or for none."""
    return Rule(
        name=name,
        stated_axes=(),
        mask=lambda context, grid: everywhere(grid, ok(context)),
        explain=lambda context, _grid, _row: explain(context),
    )


def _hybrid(context: RuleContext, grid: Grid) -> BoolColumn:
    hybrid = (grid.data_parallel_replicate_size > 1) & (grid.shard_group_size > 1)
    return np.asarray(~hybrid | context.runtime.hybrid_shard)


def _explain_hybrid(context: RuleContext, grid: Grid, row: int) -> Finding:
    replicate, shard = int(grid.data_parallel_replicate_size[row]), int(grid.data_parallel_shard_size[row])
    return Finding(
        f"runtime {context.runtime.name} does not support hybrid shard (data_parallel_replicate_size {replicate} with "
        f"data_parallel_shard_size {shard}); valid: {replicate * shard} x 1 with zero_stage 0 or 1 x "
        f"{replicate * shard}",
        "set one of data_parallel_replicate_size and data_parallel_shard_size to 1, or choose another runtime",
        {"data_parallel_replicate_size": replicate, "data_parallel_shard_size": shard},
    )


def _hierarchical(context: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.hierarchical_partition_size == 0) | context.runtime.hierarchical_partition)


def _explain_hierarchical(context: RuleContext, grid: Grid, row: int) -> Finding:
    size = int(grid.hierarchical_partition_size[row])
    return Finding(
        f"runtime {context.runtime.name} does not support hierarchical_partition_size, found {size}; valid: off",
        "leave hierarchical_partition_size off, or choose another runtime",
        {"hierarchical_partition_size": size},
    )


def _hierarchical_tensor(_: RuleContext, grid: Grid) -> BoolColumn:
    """FSDP2 cannot reshard a tensor-parallel (DTensor) parameter to a smaller group (torch 2.13, _fsdp_param.py).

    DeepSpeed makes groups of neighbouring ranks (0.16, utils/groups.py), which are the tensor-parallel ones.
    """
    return np.asarray((grid.hierarchical_partition_size == 0) | (grid.tensor_parallel_size == 1))


def _explain_hierarchical_tensor(context: RuleContext, grid: Grid, row: int) -> Finding:
    size, tensor = int(grid.hierarchical_partition_size[row]), int(grid.tensor_parallel_size[row])
    return Finding(
        f"hierarchical_partition_size {size} with tensor_parallel_size {tensor}: runtime {context.runtime.name} cannot "
        "keep a second copy of parameters that tensor parallelism has cut; tensor_parallel_size must be 1",
        "set tensor_parallel_size to 1, or leave hierarchical_partition_size off",
        {"hierarchical_partition_size": size, "tensor_parallel_size": tensor},
    )


def _word(context: RuleContext) -> str:
    """The user's word for the precision (bf16, ...)."""
    names = [name for name, spec in context.runtime.precisions.items() if spec == context.training.precision]
    precision = context.training.precision
    return names[0] if names else "fp8" if precision.fp8_recipe else precision.compute


def _formats(context: RuleContext) -> str:
    """What the projections and everything else compute in."""
    precision = context.training.precision
    recipe = f" and fp8 ({precision.fp8_recipe} scaling)" if precision.fp8_recipe else ""
    return precision.compute + recipe


def valid_precisions(context: RuleContext) -> list[str]:
    """Precisions that both the runtime and the device support."""
    device = context.cluster.device
    return [
        name
        for name, spec in context.runtime.precisions.items()
        if device_supports(device, spec) and (spec.compute != "fp64" or device.kind == "cpu")
    ]


def device_supports(device: DeviceSpec, precision: PrecisionSpec) -> bool:
    """Whether the device computes in the format, and multiplies in fp8 where that is asked for."""
    peaks = device.peak_flops_per_second
    return precision.compute in peaks and (precision.fp8_recipe is None or "fp8" in peaks)


def _runtime_precision(context: RuleContext) -> bool:
    return context.training.precision in context.runtime.precisions.values()


def _explain_runtime_precision(context: RuleContext) -> Finding:
    valid = listed(valid_precisions(context))
    return Finding(
        f"runtime {context.runtime.name} has no precision that computes in {_formats(context)} with "
        "these "
        f"formats; valid here: {valid}",
        f"choose precision from {valid}",
        {"precision": context.training.precision.compute, "valid": valid},
    )


def _device_precision(context: RuleContext) -> bool:
    return device_supports(context.cluster.device, context.training.precision)


def _explain_device_precision(context: RuleContext) -> Finding:
    device, valid = context.cluster.device, " or ".join(valid_precisions(context))
    use = f"use {valid}" if valid else f"runtime {context.runtime.name} and this device have no precision in common"
    return Finding(
        f"{device.name} does not support precision {_word(context)}; {use}",
        f"set precision to {valid}, or choose another device" if valid else "choose another device or runtime",
        {"precision": _word(context), "device": device.name, "valid": valid or "none"},
    )


def _fp64_on_cpu(context: RuleContext) -> bool:
    return context.training.precision.compute != "fp64" or context.cluster.device.kind == "cpu"


def _explain_fp64(context: RuleContext) -> Finding:
    device, valid = context.cluster.device, " or ".join(valid_precisions(context)) or "none"
    return Finding(
        f"precision fp64 is for parity checks on a cpu device, found {device.name}; use {valid}",
        f"set precision to {valid}, or use a cpu cluster",
        {"precision": "fp64", "device": device.name, "valid": valid},
    )


def _member(what: str, found: Callable[[RuleContext], str], valid: Callable[[RuleContext], tuple[str, ...]]) -> Rule:
    """The runtime must list a word of the context: optimizer, model family, device kind."""

    def explain(context: RuleContext) -> Finding:
        supported = listed(valid(context))
        return Finding(
            f"runtime {context.runtime.name} does not support {what} {found(context)}; supported: {supported}",
            f"choose {what} from {supported}, or another runtime",
            {what: found(context), "valid": supported},
        )

    return _context_rule(f"runtime_{what}", lambda context: found(context) in valid(context), explain)


def longest_sequence_length(model: ModelSpec) -> int:
    """The longest sequence that may be stated, or that learned position embeddings hold."""
    most = model.max_position_embeddings if model.learned_position_embeddings else MAX_SEQUENCE_LENGTH
    return min(MAX_SEQUENCE_LENGTH, most)


def _positions(context: RuleContext) -> bool:
    return context.training.sequence_length <= longest_sequence_length(context.model)


def _explain_positions(context: RuleContext) -> Finding:
    length, limit = context.training.sequence_length, context.model.max_position_embeddings
    return Finding(
        f"sequence_length {length} exceeds the {limit} learned position embeddings of {context.model.name}; "
        f"valid: 1 to {limit}",
        f"set sequence_length to at most {limit}, or choose a model with rotary positions",
        {"sequence_length": length, "max_position_embeddings": limit},
    )


def _chunked_loss(context: RuleContext) -> bool:
    return context.training.loss_chunks == 1 or context.runtime.chunked_loss


def _explain_chunked_loss(context: RuleContext) -> Finding:
    chunks = context.training.loss_chunks
    return Finding(
        f"runtime {context.runtime.name} does not compute the loss in chunks of the sequence (loss_chunks {chunks}); valid: 1",
        "set loss_chunks to 1, or choose a runtime whose loss is the user's own code: composer-fsdp, deepspeed, unknown",
        {"loss_chunks": chunks, "valid": 1},
    )


def _chunks_have_tokens(context: RuleContext, grid: Grid) -> BoolColumn:
    chunks, length = context.training.loss_chunks, context.training.sequence_length
    return np.asarray((chunks == 1) | (chunks * grid.context_parallel_size <= length))


def _explain_chunks(context: RuleContext, grid: Grid, row: int) -> Finding:
    chunks, length = context.training.loss_chunks, context.training.sequence_length
    size = int(grid.context_parallel_size[row])
    most = max(length // size, 1)
    return Finding(
        f"loss_chunks {chunks} exceeds the {length // size} tokens of a sequence on one device (sequence_length {length} / "
        f"context_parallel_size {size}); valid: 1 to {most}",
        f"set loss_chunks to at most {most}",
        {"loss_chunks": chunks, "sequence_length": length, "context_parallel_size": size, "valid": f"1 to {most}"},
    )


RUNTIME_RULES: tuple[Rule, ...] = (
    _member("model_family", lambda c: c.model.family, lambda c: c.runtime.model_families),
    _member("device", lambda c: c.cluster.device.kind, lambda c: c.runtime.devices),
    _member("optimizer", lambda c: c.training.optimizer.name, lambda c: c.runtime.optimizers),
    _context_rule("device_precision", _device_precision, _explain_device_precision),
    _context_rule("fp64_on_cpu", _fp64_on_cpu, _explain_fp64),
    _context_rule("runtime_precision", _runtime_precision, _explain_runtime_precision),
    _context_rule("learned_positions", _positions, _explain_positions),
    _context_rule("runtime_chunked_loss", _chunked_loss, _explain_chunked_loss),
    Rule(
        name="loss_chunks_have_tokens",
        stated_axes=(),
        mask=_chunks_have_tokens,
        explain=_explain_chunks,
    ),
    _runtime_axis("zero_stage", (0, 1, 2, 3), lambda runtime: runtime.zero_stages),
    _runtime_axis("pipeline_schedule", SCHEDULES, lambda runtime: runtime.schedules),
    _runtime_axis("recompute", RECOMPUTE_KINDS, lambda runtime: runtime.recompute_kinds),
    _runtime_axis("axis_order", AXIS_ORDER_WORDS, lambda runtime: runtime.axis_orders),
    Rule(
        name="runtime_hybrid_shard",
        stated_axes=("data_parallel_replicate_size", "data_parallel_shard_size"),
        mask=_hybrid,
        explain=_explain_hybrid,
    ),
    Rule(
        name="runtime_hierarchical_partition",
        stated_axes=("hierarchical_partition_size",),
        mask=_hierarchical,
        explain=_explain_hierarchical,
    ),
    Rule(
        name="runtime_hierarchical_partition_tensor_parallel",
        stated_axes=("hierarchical_partition_size", "tensor_parallel_size"),
        mask=_hierarchical_tensor,
        explain=_explain_hierarchical_tensor,
    ),
)

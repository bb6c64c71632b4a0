"""Rules on devices, tensor parallelism, sequence parallelism and the parallel loss."""

from __future__ import annotations

from math import gcd

import numpy as np

from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules_core import BoolColumn, Finding, Rule, RuleContext, divisors, listed
from costmodel.specs import ModelSpec


def tensor_parallel_dims(model: ModelSpec) -> dict[str, int]:
    """What tensor parallelism cuts: name of the dim -> greatest size that divides it in every layer."""
    heads = gcd(*(group.attention.num_attention_heads for group in model.layers))
    key_values = gcd(*(group.attention.num_key_value_heads for group in model.layers))
    intermediate = gcd(*(group.feed_forward.intermediate_size for group in model.layers))
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": key_values,
        "intermediate_size": intermediate,
        "hidden_size": model.hidden_size,
    }


def valid_tensor_parallel_sizes(context: RuleContext) -> list[int]:
    """Sizes that divide every cut dim and fit the cluster, ascending."""
    common = gcd(*tensor_parallel_dims(context.model).values())
    return [size for size in divisors(common) if size <= context.cluster.num_devices]


def _tensor_parallel_rule(dim: str) -> Rule:
    def mask(context: RuleContext, grid: Grid) -> BoolColumn:
        return np.asarray(tensor_parallel_dims(context.model)[dim] % grid.tensor_parallel_size == 0)

    def explain(context: RuleContext, grid: Grid, row: int) -> Finding:
        size, extent = int(grid.tensor_parallel_size[row]), tensor_parallel_dims(context.model)[dim]
        valid = listed(valid_tensor_parallel_sizes(context))
        return Finding(
            f"tensor_parallel_size {size} does not divide {dim} {extent} of {context.model.name}: "
            f"every rank needs whole shares; valid tensor_parallel_size: {valid}",
            f"set tensor_parallel_size to one of {valid}, and use pipeline_parallel_size for the rest",
            {"tensor_parallel_size": size, dim: extent, "valid": valid},
        )

    return Rule(
        name=f"tensor_parallel_divides_{dim}", stated_axes=("tensor_parallel_size",), mask=mask, explain=explain
    )


def _fits_devices(context: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray(grid.num_devices <= context.cluster.num_devices)


def _explain_devices(context: RuleContext, grid: Grid, row: int) -> Finding:
    tensor, pipeline = int(grid.tensor_parallel_size[row]), int(grid.pipeline_parallel_size[row])
    data, found, devices = int(grid.data_parallel_size[row]), int(grid.num_devices[row]), context.cluster.num_devices
    cut = int(grid.context_parallel_size[row])
    shared = f" x context_parallel_size {cut}" if cut > 1 else ""
    return Finding(
        f"the sizes multiply to {found} devices (tensor_parallel_size {tensor} x pipeline_parallel_size {pipeline} x "
        f"data_parallel_size {data}{shared}), but {context.cluster.name} has {devices}",
        f"choose sizes whose product is at most {devices}, best a divisor of it: {listed(divisors(devices))}",
        {"devices_used": found, "devices": devices},
    )


def _sequence_parallel_needs_tensor(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.sequence_parallel == 0) | (grid.tensor_parallel_size > 1))


def _explain_sequence_parallel(_: RuleContext, grid: Grid, row: int) -> Finding:
    size = int(grid.tensor_parallel_size[row])
    return Finding(
        f"sequence_parallel is on with tensor_parallel_size {size}: it splits norms and dropout over the "
        "tensor-parallel "
        "ranks, so it needs tensor_parallel_size of at least 2",
        "turn sequence_parallel off or set tensor_parallel_size to 2 or more",
        {"tensor_parallel_size": size},
    )


def _sequence_divides(context: RuleContext, grid: Grid) -> BoolColumn:
    length = context.training.sequence_length
    return np.asarray((grid.sequence_parallel == 0) | (length % grid.tensor_parallel_size == 0))


def _explain_sequence_divides(context: RuleContext, grid: Grid, row: int) -> Finding:
    size, length = int(grid.tensor_parallel_size[row]), context.training.sequence_length
    valid = listed(s for s in valid_tensor_parallel_sizes(context) if length % s == 0)
    padded = -(-length // size) * size
    return Finding(
        f"sequence_parallel cuts sequence_length {length} over tensor_parallel_size {size}, which does not divide it; "
        f"valid tensor_parallel_size: {valid}",
        f"pad sequence_length to {padded}, choose tensor_parallel_size from {valid}, or turn sequence_parallel off",
        {"sequence_length": length, "tensor_parallel_size": size, "valid": valid},
    )


def _loss_parallel_needs_tensor(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray((grid.loss_parallel == 0) | (grid.tensor_parallel_size > 1))


def _explain_loss_parallel(_: RuleContext, grid: Grid, row: int) -> Finding:
    size = int(grid.tensor_parallel_size[row])
    return Finding(
        f"loss_parallel is on with tensor_parallel_size {size}: it keeps the logits cut along the vocabulary over the "
        "tensor-parallel ranks, so it needs tensor_parallel_size of at least 2",
        "turn loss_parallel off or set tensor_parallel_size to 2 or more",
        {"tensor_parallel_size": size},
    )


TENSOR_RULES: tuple[Rule, ...] = (
    *(
        _tensor_parallel_rule(dim)
        for dim in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size")
    ),
    Rule(name="device_count", stated_axes=(), mask=_fits_devices, explain=_explain_devices),
    Rule(
        name="sequence_parallel_needs_tensor_parallel",
        stated_axes=("sequence_parallel", "tensor_parallel_size"),
        mask=_sequence_parallel_needs_tensor,
        explain=_explain_sequence_parallel,
    ),
    Rule(
        name="sequence_parallel_divides_sequence",
        stated_axes=("sequence_parallel", "tensor_parallel_size"),
        mask=_sequence_divides,
        explain=_explain_sequence_divides,
    ),
    Rule(
        name="loss_parallel_needs_tensor_parallel",
        stated_axes=("loss_parallel", "tensor_parallel_size"),
        mask=_loss_parallel_needs_tensor,
        explain=_explain_loss_parallel,
    ),
)

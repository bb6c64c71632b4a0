"""Rules on context parallelism: every sequence cut over several devices."""

from __future__ import annotations

import numpy as np

from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS, Grid, IntColumn
from costmodel.runtimes.rules_core import BoolColumn, Finding, Rule, RuleContext, divisors, everywhere, listed
from costmodel.runtimes.rules_tensor import tensor_parallel_dims

_ALL_TO_ALL = CONTEXT_PARALLEL_METHODS.index("all_to_all")
_SIZE, _METHOD = "context_parallel_size", "context_parallel_method"


def _is_cut(grid: Grid) -> BoolColumn:
    return np.asarray(grid.context_parallel_size > 1)


def _method_matches(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray(_is_cut(grid) == (grid.context_parallel_method > 0))


def _explain_method(context: RuleContext, grid: Grid, row: int) -> Finding:
    size, method = int(grid.context_parallel_size[row]), CONTEXT_PARALLEL_METHODS[grid.context_parallel_method[row]]
    known = listed(context.runtime.context_parallel_methods)
    valid = known if size > 1 else "null"
    return Finding(
        f"{_METHOD} {method or 'null'} with {_SIZE} {size}: the method is null exactly when the size is 1; valid: {valid}",
        f"set {_METHOD} to {valid}, or change {_SIZE}",
        {_SIZE: size, _METHOD: method or "null", "valid": valid},
    )


def _runtime_knows(context: RuleContext, grid: Grid) -> BoolColumn:
    known = (None, *context.runtime.context_parallel_methods)
    allowed = np.array([method in known for method in CONTEXT_PARALLEL_METHODS])
    return np.asarray(allowed[grid.context_parallel_method])


def _explain_runtime(context: RuleContext, grid: Grid, row: int) -> Finding:
    size, method = int(grid.context_parallel_size[row]), CONTEXT_PARALLEL_METHODS[grid.context_parallel_method[row]]
    if not context.runtime.context_parallel_methods:
        return Finding(
            f"runtime {context.runtime.name} has no context parallelism, found {_SIZE} {size} ({_METHOD} {method}); valid: 1",
            f"set {_SIZE} to 1 and {_METHOD} to none, or choose another runtime",
            {_SIZE: size, _METHOD: str(method), "valid": 1},
        )
    valid = listed(context.runtime.context_parallel_methods)
    return Finding(
        f"runtime {context.runtime.name} does not support context parallelism by {method} ({_SIZE} {size}); "
        f"supported methods: {valid}",
        f"set {_SIZE} to 1, choose {_METHOD} from {valid}, or another runtime",
        {_SIZE: size, _METHOD: str(method), "valid": valid},
    )


def _needs_fused(context: RuleContext, grid: Grid) -> BoolColumn:
    """Transformer Engine and torch cut the sequence of fused attention only."""
    return np.asarray(~_is_cut(grid) | everywhere(grid, context.training.attention_implementation == "fused"))


def _explain_fused(_: RuleContext, grid: Grid, row: int) -> Finding:
    size = int(grid.context_parallel_size[row])
    return Finding(
        f"{_SIZE} {size} with unfused attention: the parts of a sequence are joined by the log-sum-exp that only fused "
        "attention returns",
        f"use fused attention, or set {_SIZE} to 1",
        {_SIZE: size},
    )


def _pieces(grid: Grid) -> IntColumn:
    """Equal pieces of a sequence: two per rank, the first and the last of those left, so that causal work is even."""
    tensor = np.where(grid.sequence_parallel == 1, grid.tensor_parallel_size, 1)
    return np.where(_is_cut(grid), 2 * grid.context_parallel_size * tensor, 1)


def _divides_sequence(context: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray(context.training.sequence_length % _pieces(grid) == 0)


def _explain_sequence(context: RuleContext, grid: Grid, row: int) -> Finding:
    size, pieces, length = (
        int(grid.context_parallel_size[row]),
        int(_pieces(grid)[row]),
        context.training.sequence_length,
    )
    others = pieces // size
    valid = listed(divisors(length // others)) if length % others == 0 else "none"
    return Finding(
        f"{_SIZE} {size} cuts sequence_length {length} into {pieces} equal pieces (2 a rank, times tensor_parallel_size "
        f"with sequence_parallel), which do not divide it; valid {_SIZE}: {valid}",
        f"pad sequence_length to {-(-length // pieces) * pieces}, or set {_SIZE} to one of {valid}",
        {_SIZE: size, "sequence_length": length, "pieces": pieces, "valid": valid},
    )


def _divides_heads(context: RuleContext, grid: Grid) -> BoolColumn:
    heads = tensor_parallel_dims(context.model)["num_attention_heads"]
    cut = grid.tensor_parallel_size * grid.context_parallel_size
    return np.asarray((grid.context_parallel_method != _ALL_TO_ALL) | (heads % cut == 0))


def _explain_heads(context: RuleContext, grid: Grid, row: int) -> Finding:
    size, tensor = int(grid.context_parallel_size[row]), int(grid.tensor_parallel_size[row])
    heads = tensor_parallel_dims(context.model)["num_attention_heads"]
    valid = listed(divisors(heads // tensor)) if heads % tensor == 0 else "none"
    return Finding(
        f"{_METHOD} all_to_all gives every rank whole heads: {heads} num_attention_heads / tensor_parallel_size {tensor} "
        f"are not divisible by {_SIZE} {size}; valid {_SIZE}: {valid}",
        f"set {_SIZE} to one of {valid}, or use ring or all_gather",
        {_SIZE: size, "num_attention_heads": heads, "tensor_parallel_size": tensor, "valid": valid},
    )


CONTEXT_RULES: tuple[Rule, ...] = (
    Rule(
        name="context_parallel_method_matches",
        stated_axes=(_SIZE, _METHOD),
        mask=_method_matches,
        explain=_explain_method,
    ),
    Rule(
        name="runtime_context_parallel_method",
        stated_axes=(_METHOD,),
        mask=_runtime_knows,
        explain=_explain_runtime,
    ),
    Rule(
        name="context_parallel_needs_fused_attention", stated_axes=(_SIZE,), mask=_needs_fused, explain=_explain_fused
    ),
    Rule(
        name="context_parallel_divides_sequence",
        stated_axes=(_SIZE, "sequence_parallel", "tensor_parallel_size"),
        mask=_divides_sequence,
        explain=_explain_sequence,
    ),
    Rule(
        name="context_parallel_divides_heads",
        stated_axes=(_SIZE, _METHOD, "tensor_parallel_size"),
        mask=_divides_heads,
        explain=_explain_heads,
    ),
)

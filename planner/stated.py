"""Refuse what the user stated where it contradicts a rule or itself, whatever the axes left open would be.

Besides the values stated, some follow from them (a single stage has no schedule, a list of stages says how many
there are); a rule that those break is broken by the statement too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS, SCHEDULES, Grid
from costmodel.runtimes.placement import LOOPED_SCHEDULES, V_SCHEDULES
from costmodel.runtimes.rules import RuleContext, divisors, evaluate
from costmodel.specs import InputError
from planner.axes import AXES, GRID_AXES
from planner.context_values import cuts_sequences

_NONE = SCHEDULES.index("none")
_CUT, _METHOD = "context_parallel_size", "context_parallel_method"
_CHUNKED = {SCHEDULES.index(name) for name in (*LOOPED_SCHEDULES, *V_SCHEDULES)}
Stated = Mapping[str, int]


def check_stated(context: RuleContext, stated: Stated) -> None:
    """Refuse stated values that break a rule or each other.

    Args:
        context: model, cluster, training, runtime and the stated layers per stage.
        stated: axis -> the column code of its one value.

    Raises:
        InputError: with the first contradiction and what would solve it.
    """
    _check_data_parallel(stated)
    complete = _with_consequences(context, stated)
    for outcome in evaluate(context, _row(complete)):
        axes = outcome.rule.stated_axes
        if axes is not None and set(axes) <= set(complete) and not outcome.mask_ok[0]:
            rejection = outcome.rejection(0)
            raise InputError(f"{rejection.message}; {rejection.fix}")
    _check_product(stated, alone=complete.get(_CUT) == 1)


def check_num_devices(context: RuleContext, numbers: Iterable[int]) -> None:
    """Refuse a number of devices that the cluster does not have.

    Raises:
        InputError: with the numbers that are valid.
    """
    devices = context.cluster.num_devices
    for number in numbers:
        if number > devices:
            raise InputError(
                f"num_devices_used is {number}, but {context.cluster.name} has {devices} devices; valid: 1 to {devices}"
            )


def _with_consequences(context: RuleContext, stated: Stated) -> dict[str, int]:
    """The stated values and those that follow from them alone."""
    known = dict(stated)
    if known.get("pipeline_parallel_size") == 1:
        known.setdefault("pipeline_schedule", _NONE)
    if known.get("pipeline_schedule") == _NONE:
        known.setdefault("pipeline_parallel_size", 1)
    _cut_consequences(context, known)
    if context.layers_per_stage is not None:
        stages = len(context.layers_per_stage)
        chunked = _CHUNKED & {SCHEDULES.index(name) for name in context.runtime.schedules}
        if not chunked or known.get("pipeline_schedule", min(chunked)) not in chunked or stages == 1:
            known.setdefault("num_model_chunks", 1)
        if "pipeline_parallel_size" in known:
            known.setdefault("num_model_chunks", max(1, stages // known["pipeline_parallel_size"]))
        elif "num_model_chunks" in known:
            known["pipeline_parallel_size"] = max(1, stages // known["num_model_chunks"])
    return known


def _cut_consequences(context: RuleContext, known: dict[str, int]) -> None:
    """Where sequences are not cut there is no method, and a runtime with one method cuts them by it."""
    if not known.get(_METHOD) and (_METHOD in known or not cuts_sequences(context)):
        known.setdefault(_CUT, 1)
    if known.get(_CUT) == 1:
        known.setdefault(_METHOD, 0)
    methods = context.runtime.context_parallel_methods or CONTEXT_PARALLEL_METHODS[1:]
    if _CUT in known and (len(methods) == 1 or not context.runtime.context_parallel_methods):
        known.setdefault(_METHOD, CONTEXT_PARALLEL_METHODS.index(methods[0]))


def _row(stated: Stated) -> Grid:
    """One row with the stated values and every other axis at its neutral value."""
    row = {name: stated.get(name, AXES[name].neutral) for name in GRID_AXES}
    if "data_parallel_replicate_size" not in stated and "data_parallel_size" in stated:
        row["data_parallel_replicate_size"] = max(1, stated["data_parallel_size"] // row["data_parallel_shard_size"])
    return Grid(**{name: np.array([code], dtype=np.int64) for name, code in row.items()})


def _check_data_parallel(stated: Stated) -> None:
    """data_parallel_size = replicate x shard, as far as they are stated."""
    total = stated.get("data_parallel_size")
    parts = [stated.get(f"data_parallel_{part}_size") for part in ("replicate", "shard")]
    product = int(np.prod([part for part in parts if part is not None]))
    if total is None or (total == product if None not in parts else total % product == 0):
        return
    raise InputError(
        f"data_parallel_size {total} must equal data_parallel_replicate_size {parts[0] or 'free'} x "
        f"data_parallel_shard_size {parts[1] or 'free'}; change one of them (divisors of {total}: "
        f"{', '.join(map(str, divisors(total)))})"
    )


def _check_product(stated: Stated, *, alone: bool) -> None:
    """num_devices_used = tensor x context x pipeline x data parallel, as far as they are stated; ``alone``: context is 1."""
    used = stated.get("num_devices_used")
    data = (
        ("data_parallel_size",)
        if "data_parallel_size" in stated
        else ("data_parallel_replicate_size", "data_parallel_shard_size")
    )
    names = ("tensor_parallel_size", *(() if alone else (_CUT,)), "pipeline_parallel_size", *data)
    sizes = {name: stated[name] for name in names if name in stated}
    product = int(np.prod(list(sizes.values())))
    complete = len(sizes) == len(names)
    if used is None or (used == product if complete else used % product == 0):
        return
    factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
    equals = f" = {product}" if len(sizes) > 1 else ""
    if complete:
        raise InputError(
            f"num_devices_used is {used}, but {factors}{equals}; make them equal, or leave one of them free"
        )
    raise InputError(
        f"num_devices_used {used} is not a multiple of {factors}{equals}; use a multiple of it, or smaller sizes"
    )

"""Declare the space that is searched: what the user states, the defaults for the rest.

A value stated with ``fix`` that breaks a rule by itself, or together with the other stated ones, is bad
input; a space whose candidates all break rules or memory is an answer (`Infeasible`), not an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid, IntColumn
from costmodel.runtimes.rules import (
    RuleContext,
    RuleOutcome,
    divisors,
    evaluate,
    obeyed,
    valid_tensor_parallel_sizes,
)
from costmodel.specs import (
    AxisValues,
    ClusterSpec,
    InputError,
    MemoryLimit,
    ModelSpec,
    RecomputeLayers,
    RuntimeProfile,
    TrainingSpec,
)
from planner.axes import AXES, GRID_AXES, OPEN_AXES, parse_layers, parse_values, require_axis
from planner.completion import Completer
from planner.context_values import context_sizes
from planner.enumeration import DEFAULT_SCHEDULES, Declared, enumerate_candidates, tensor_parallel_values
from planner.stage_table import WINDOW
from planner.stated import check_num_devices, check_stated

_NO_RECOMPUTATION = RECOMPUTE_KINDS.index("none")


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """A declared space.

    ``declared``: axis -> column codes that the user stated; ``fixed``: the axes stated with one value.
    ``num_devices``: numbers of devices a candidate may use. ``grid``: all candidates, ``outcomes``: of every rule.
    ``free_stages``: whether stages of
    pipelines with one chunk a rank may be uneven; ``recompute_layers``: how many of its layers a stage may recompute.
    """

    context: RuleContext
    declared: Declared
    fixed: frozenset[str]
    num_devices: tuple[int, ...]
    grid: Grid
    outcomes: tuple[RuleOutcome, ...]
    free_stages: bool
    recompute_layers: RecomputeLayers


def declare_space(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    *,
    fix: Mapping[str, str] | None = None,
    allow: Mapping[str, str | Sequence[str]] | None = None,
    memory_limit: MemoryLimit | None = None,
) -> Space:
    """The space of candidate plans.

    Args:
        model: what is trained.
        cluster: where.
        training: batch, sequence, precision, optimizer.
        runtime: what the framework supports.
        fix: axis -> its one value, as a person writes it; ``layers_per_stage`` takes ``10,12,12,10`` or ``even``,
            ``recompute_layers`` takes ``all`` or ``any``, and is ``all`` where ``recompute`` is fixed.
        allow: axis -> its values, a list or comma-separated; ``all`` schedules are those of the runtime.
        memory_limit: how much of a device a plan may use; None is all of it.

    Raises:
        InputError: for an unknown axis or value, an axis stated twice, or stated values that break a rule
            by themselves.
    """
    declared, stages = _read_declared(fix or {}, _every_schedule(allow or {}, runtime))
    fixed = frozenset(fix or {}) - OPEN_AXES
    context = RuleContext(
        model=model,
        cluster=cluster,
        training=training,
        runtime=runtime,
        layers_per_stage=stages.layers,
        memory_limit=memory_limit,
    )
    check_stated(context, {axis: declared[axis][0] for axis in fixed})
    check_num_devices(context, declared.get("num_devices_used", ()))
    num_devices, grid, outcomes = _choose_devices(context, declared)
    free = runtime.uneven_stages and stages.layers is None and not stages.even
    whole = stages.whole or (stages.whole is None and "recompute" in fixed)
    counts: RecomputeLayers = "all" if whole else runtime.recompute_layers
    return Space(context, declared, fixed, num_devices, grid, outcomes, free, counts)


def _every_schedule(
    allow: Mapping[str, str | Sequence[str]], runtime: RuntimeProfile
) -> Mapping[str, str | Sequence[str]]:
    """``all`` written out."""
    asked = allow.get("pipeline_schedule")
    words = asked.split(",") if isinstance(asked, str) else list(asked or ())
    if "all" not in (word.strip().lower() for word in words if isinstance(word, str)):
        return allow
    return {**allow, "pipeline_schedule": tuple(name for name in SCHEDULES if name in {"none", *runtime.schedules})}


def schedules_left_out(space: Space) -> tuple[str, ...]:
    """Schedules of the runtime that the space leaves out because nobody asked for them; none where there is no pipeline."""
    if "pipeline_schedule" in space.declared or not (space.grid.pipeline_parallel_size > 1).any():
        return ()
    return tuple(name for name in space.context.runtime.schedules if name not in DEFAULT_SCHEDULES)


def completer_of(space: Space) -> Completer:
    """What completes the candidates of a space."""
    context = space.context
    return Completer(context, float(context.usable_bytes), free=space.free_stages, counts=space.recompute_layers)


def describe_space(space: Space) -> tuple[AxisValues, ...]:
    """The space axis by axis, as its candidates really hold it."""
    columns = {name: getattr(space.grid, name) for name in GRID_AXES}
    values = [AxisValues(axis="num_devices_used", values=tuple(str(number) for number in space.num_devices))]
    values += [
        AxisValues(axis=name, values=tuple(AXES[name].show(int(code)) for code in _distinct(column)))
        for name, column in columns.items()
    ]
    stages = space.context.layers_per_stage
    if stages is not None:
        splits: tuple[str, ...] = (",".join(map(str, stages)),)
    elif space.free_stages:
        splits = (
            f"all whose slowest stage is within {WINDOW:.0%} of the fastest split's",
            "even split (several chunks)",
        )
    else:
        splits = ("even split",)
    counts = {
        "per_stage": "any number of every stage",
        "uniform": "one number for all stages (full)",
        "all": "all of a stage",
    }[space.recompute_layers]
    return (
        *values,
        AxisValues(axis="recompute_layers", values=(counts,)),
        AxisValues(axis="layers_per_stage", values=splits),
    )


def _distinct(column: IntColumn) -> IntColumn:
    """The values of a column in ascending order; ticked off where they are small, which is much faster than sorting."""
    most = int(column.max(initial=0))
    if most > len(column):
        return np.unique(column)
    held = np.zeros(most + 1, dtype=np.bool_)
    held[column] = True
    return np.flatnonzero(held)


class _Stages(NamedTuple):
    """What is stated of stages: their layers, that they are even, and whether all their layers are recomputed or any number."""

    layers: tuple[int, ...] | None = None
    even: bool = False
    whole: bool | None = None


def _read_declared(
    fix: Mapping[str, str], allow: Mapping[str, str | Sequence[str]]
) -> tuple[dict[str, tuple[int, ...]], _Stages]:
    """Stated axes as column codes, and what is stated of stages."""
    declared: dict[str, tuple[int, ...]] = {}
    stages = _Stages()
    for name, text in fix.items():
        if name in allow:
            raise InputError(f"axis {name} is stated twice, with --fix and with --allow; state it once")
        if name in OPEN_AXES:
            stages = _read_stages(stages, name, text)
            continue
        declared[name] = parse_values(name, text, "fix")
        if "," in text:
            raise InputError(f"--fix {name}={text} lists several values; use --allow {name}={text}")
    for name, words in allow.items():
        require_axis(name, "allow")
        if name in OPEN_AXES:
            example = {"layers_per_stage": "10,12,12,10", "recompute_layers": "all"}[name]
            raise InputError(f"{name} takes one value: use --fix {name}={example}")
        declared[name] = parse_values(name, words if isinstance(words, str) else ",".join(words), "allow")
    if stages.whole is False and declared.get("recompute") == (_NO_RECOMPUTATION,):
        raise InputError(
            "recompute none leaves no layers for recompute_layers any; leave one of them out, or state recompute full"
        )
    return declared, stages


def _read_stages(stages: _Stages, name: str, text: str) -> _Stages:
    word = text.strip().lower()
    if name == "recompute_layers":
        if word not in ("all", "any"):
            raise InputError(f"recompute_layers is {text!r}; valid: all (layers of a stage), any (number of them)")
        return stages._replace(whole=word == "all")
    if word == "even":
        return stages._replace(even=True)
    try:
        return stages._replace(layers=parse_layers(text))
    except InputError as error:
        raise InputError(f"{error}, or the word even") from None


def _choose_devices(context: RuleContext, declared: Declared) -> tuple[tuple[int, ...], Grid, tuple[RuleOutcome, ...]]:
    """All devices; where no candidate on all of them obeys the rules, the largest number on which one does."""
    devices = context.cluster.num_devices
    if "num_devices_used" in declared:
        numbers = declared["num_devices_used"]
        grid = enumerate_candidates(context, declared, numbers)
        return numbers, grid, evaluate(context, grid)
    whole = enumerate_candidates(context, declared, [devices])
    outcomes = evaluate(context, whole)
    if obeyed(outcomes).any():
        return (devices,), whole, outcomes
    for number in _smaller_products(context, declared):
        grid = enumerate_candidates(context, declared, [number])
        fewer = evaluate(context, grid)
        if obeyed(fewer).any():
            return (number,), grid, fewer
    return (devices,), whole, outcomes


def _smaller_products(context: RuleContext, declared: Declared) -> list[int]:
    """Products of sizes below the number of devices, largest first; data_parallel_size divides the batch."""
    devices, batch = context.cluster.num_devices, context.training.global_batch_size
    layers = range(1, context.model.num_hidden_layers + 1)
    valid = valid_tensor_parallel_sizes(context)
    sizes = [size for size in tensor_parallel_values(context, declared) if size in valid]
    tensor = np.array(sizes, dtype=np.int64)
    stated = (declared.get("context_parallel_size"), declared.get("context_parallel_method"))
    within = np.unique(np.multiply.outer(tensor, np.array(context_sizes(context, *stated), dtype=np.int64)))
    pipeline = np.array(declared.get("pipeline_parallel_size", tuple(layers)), dtype=np.int64)
    data = np.array(declared.get("data_parallel_size", tuple(divisors(batch))), dtype=np.int64)
    products = np.unique(np.multiply.outer(np.multiply.outer(within, pipeline), data[data < devices]))
    return [int(number) for number in products[products < devices][::-1]]

"""The axes of the declared space: their names, how a person writes a value, and how a grid stores it.

A column code is an int64: sizes as they are, booleans 0 or 1, schedules, context-parallel methods, axis orders and recompute
kinds as indices into `SCHEDULES`, `CONTEXT_PARALLEL_METHODS`, `AXIS_ORDER_WORDS` and `RECOMPUTE_KINDS`, and 0 for a
hierarchical partition that is off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from costmodel.runtimes.axis_orders import AXIS_ORDER_WORDS
from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS, RECOMPUTE_KINDS, SCHEDULES
from costmodel.specs import AXIS_ORDERS, InputError, ParallelConfig, RecomputeSpec
from costmodel.specs import Axis as MeshAxis
from hardware_profiles.errors import show_value

_MAX_SIZE = 10**9
_WHOLE_NUMBER = re.compile(r" *[+-]?[0-9]{1,100} *", re.ASCII)
_WORDS = {"core_attention": ("selective",)}


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: ``parse`` reads a person's word into a column code, ``show`` writes it back."""

    name: str
    parse: Callable[[str], int]
    show: Callable[[int], str]
    neutral: int


def _is_size(text: str) -> bool:
    return bool(_WHOLE_NUMBER.fullmatch(text)) and 1 <= int(text) <= _MAX_SIZE


def _parse_size(name: str, text: str) -> int:
    if not _is_size(text):
        raise InputError(f"{name} is {show_value(text)}; needed a whole number from 1 to {_MAX_SIZE:,}")
    return int(text)


def _size(name: str) -> Axis:
    return Axis(name, lambda text: _parse_size(name, text), str, 1)


def _parse_switch(name: str, text: str) -> int:
    words = {"true": 1, "on": 1, "1": 1, "yes": 1, "false": 0, "off": 0, "0": 0, "no": 0}
    if text.strip().lower() not in words:
        raise InputError(f"{name} is {text!r}; valid: true, false")
    return words[text.strip().lower()]


def _switch(name: str) -> Axis:
    return Axis(name, lambda text: _parse_switch(name, text), lambda code: "true" if code else "false", 0)


def _choice(name: str, values: tuple[str, ...]) -> Axis:
    codes = {word: code for code, value in enumerate(values) for word in (value, *_WORDS.get(value, ()))}

    def parse(text: str) -> int:
        if text.strip().lower() not in codes:
            raise InputError(f"{name} is {text!r}; valid: {', '.join(values)}")
        return codes[text.strip().lower()]

    return Axis(name, parse, lambda code: values[code], 0)


def _parse_partition(text: str) -> int:
    if text.strip().lower() in {"off", "none"}:
        return 0
    return _parse_size("hierarchical_partition_size", text)


_ALL: tuple[Axis, ...] = (
    _size("num_devices_used"),
    _size("tensor_parallel_size"),
    _switch("sequence_parallel"),
    _switch("loss_parallel"),
    _size("pipeline_parallel_size"),
    _choice("pipeline_schedule", SCHEDULES),
    _size("num_model_chunks"),
    _size("context_parallel_size"),
    _choice("context_parallel_method", tuple(method or "none" for method in CONTEXT_PARALLEL_METHODS)),
    _size("data_parallel_size"),
    _size("data_parallel_replicate_size"),
    _size("data_parallel_shard_size"),
    _choice("zero_stage", ("0", "1", "2", "3")),
    Axis("hierarchical_partition_size", _parse_partition, lambda code: str(code) if code else "off", 0),
    _choice("axis_order", AXIS_ORDER_WORDS),
    _size("micro_batch_size"),
    _size("num_micro_batches"),
    _choice("recompute", RECOMPUTE_KINDS),
)
AXES: dict[str, Axis] = {axis.name: axis for axis in _ALL}
OPEN_AXES = frozenset({"layers_per_stage", "recompute_layers"})
"""Not columns of a grid: every candidate leaves them open unless they are fixed."""
AXIS_NAMES: tuple[str, ...] = (*AXES, "layers_per_stage", "recompute_layers")
# The axes that are columns of a grid; the two others are products of columns.
GRID_AXES: tuple[str, ...] = tuple(name for name in AXES if name not in {"num_devices_used", "data_parallel_size"})
_RESERVED = {name for name in ParallelConfig.model_fields if name not in AXES}


def require_axis(name: str, option: str) -> None:
    """Refuse a name that is no axis.

    Raises:
        InputError: with the list of axes; a field reserved for later is named as such.
    """
    if name in AXIS_NAMES:
        return
    reason = "is reserved and cannot be changed yet" if name in _RESERVED else "is no axis of the space"
    raise InputError(f"--{option} {name}: {name!r} {reason}; valid axes: {', '.join(AXIS_NAMES)}")


def parse_values(name: str, text: str, option: str) -> tuple[int, ...]:
    """Comma-separated values of one axis as column codes, without repetition, in the order written.

    Raises:
        InputError: for an unknown axis, an empty list or a value outside the axis.
    """
    require_axis(name, option)
    words = [word for word in text.split(",") if word.strip()]
    if not words:
        raise InputError(f"--{option} {name}= has no value; write --{option} {name}=VALUE")
    return tuple(dict.fromkeys(AXES[name].parse(word) for word in words))


def parse_layers(text: str) -> tuple[int, ...]:
    """Layers of every virtual stage, in order: ``10,12,12,10``.

    Raises:
        InputError: when one is no positive whole number.
    """
    if not all(map(_is_size, text.split(","))):
        raise InputError(
            f"layers_per_stage is {show_value(text)}; needed whole numbers of at least 1, one for each stage, such as 10,12,12,10"
        )
    return tuple(map(int, text.split(",")))


def parse_order(text: str) -> tuple[MeshAxis, ...]:
    """The order of mesh axes, outer to inner, that a word names.

    Raises:
        InputError: when it names none.
    """
    return AXIS_ORDERS[AXIS_ORDER_WORDS[AXES["axis_order"].parse(str(text))]]


def parse_recompute(text: str) -> RecomputeSpec | tuple[RecomputeSpec, ...]:
    """Recomputation of all stages alike, or of every virtual stage in order: ``full``, ``full:2,none``.

    ``full:2`` is the first two layers of a stage.

    Raises:
        InputError: when a kind or a number is none.
    """
    specs = tuple(_parse_stage(word) for word in text.split(","))
    return specs[0] if len(specs) == 1 else specs


def _parse_stage(word: str) -> RecomputeSpec:
    kind, colon, count = word.partition(":")
    if colon and not _is_size(count):
        raise InputError(
            f"recompute {show_value(word)} has {show_value(count)} as its number of layers; needed KIND:N with a whole number "
            "of at least 1, such as full:2, or KIND alone for all layers of a stage"
        )
    return RecomputeSpec(kind=RECOMPUTE_KINDS[AXES["recompute"].parse(kind)], num_layers=int(count) if colon else None)

"""From what people state (names, words, numbers as text) to specs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from costmodel.specs import (
    MAX_GLOBAL_BATCH_SIZE,
    MAX_SEQUENCE_LENGTH,
    ClusterSpec,
    InputError,
    MemoryLimit,
    ModelSpec,
    OptimizerSpec,
    PrecisionSpec,
    RuntimeProfile,
    TrainingSpec,
)
from hardware_profiles.errors import explain_validation_error, show_value
from hardware_profiles.units import parse_quantity

if TYPE_CHECKING:
    from hardware_profiles.types import DeviceSpec

_SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_TOKENS = 10**18
_LEAST_RESERVE = 2**20  # less is a size whose unit was forgotten
_TOKENS = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e\+?[0-9]{1,3})?) ?([KMBT]?)", re.IGNORECASE)


def load_model(source: str | Path) -> ModelSpec:
    """A model by catalogue name, config.json or folder. Raises InputError when there is no such model."""
    return resolve_model(source)


def load_cluster(source: str | Path) -> ClusterSpec:
    """A cluster by name (``8x8xH100-SXM``) or YAML file. Raises InputError when there is no such cluster."""
    return resolve_cluster(source)


def load_runtime(name: str) -> RuntimeProfile:
    """The profile of a training framework. Raises InputError when there is none of that name."""
    return resolve_runtime(name)


def resolve_model(model: ModelSpec | str | Path) -> ModelSpec:
    """The model itself, or the one a catalogue name, config.json or folder describes."""
    if isinstance(model, ModelSpec):
        return model
    from costmodel.models.loader import load_model

    return load_model(model)


def resolve_cluster(cluster: ClusterSpec | str | Path) -> ClusterSpec:
    """The cluster itself, or the one that ``8x8xH100-SXM`` or a YAML file describes."""
    if isinstance(cluster, ClusterSpec):
        return cluster
    from hardware_profiles.loader import load_cluster

    return load_cluster(cluster)


def resolve_runtime(runtime: RuntimeProfile | str) -> RuntimeProfile:
    """The runtime profile itself, or the one of that name."""
    if isinstance(runtime, RuntimeProfile):
        return runtime
    if not isinstance(runtime, str):
        raise InputError(f"runtime is {show_value(runtime)}; needed the name of one, such as 'torch'")
    from costmodel.runtimes.loader import load_runtime

    return load_runtime(runtime)


def make_training(
    cluster: ClusterSpec,
    runtime: RuntimeProfile,
    *,
    global_batch_size: int,
    sequence_length: int,
    precision: str | None = None,
    optimizer: str | OptimizerSpec = "adamw",
    attention: str = "fused",
    loss_chunks: int = 1,
) -> TrainingSpec:
    """What is trained in one step, with the number formats that the runtime uses for ``precision``.

    Args:
        cluster: gives the device whose precisions are offered.
        runtime: resolves the precision word into number formats.
        global_batch_size: sequences per optimizer step.
        sequence_length: tokens per sequence.
        precision: bf16, fp16, fp32, fp64, or one of the runtime's fp8 recipes; None takes bf16 where the device has it,
            else fp16, and fp32 on a CPU.
        optimizer: ``adamw``, ``sgd`` or a full `OptimizerSpec`.
        attention: ``fused`` (no score matrix in memory) or ``unfused``.
        loss_chunks: parts of a sequence that head and loss work through one at a time, 1 for all at once.

    Raises:
        InputError: for a value outside its domain, or a precision that the device or the runtime lacks.
    """
    content: dict[str, Any] = {
        "global_batch_size": whole_number("global_batch_size", global_batch_size, 1, MAX_GLOBAL_BATCH_SIZE),
        "sequence_length": whole_number("sequence_length", sequence_length, 1, MAX_SEQUENCE_LENGTH),
        "precision": runtime.precisions[choose_precision(cluster.device, runtime, precision)],
        "optimizer": optimizer if isinstance(optimizer, OptimizerSpec) else _optimizer(optimizer, runtime),
        "attention_implementation": one_of("attention", attention, ("fused", "unfused")),
        "loss_chunks": whole_number("loss_chunks", loss_chunks, 1, MAX_SEQUENCE_LENGTH),
    }
    try:
        return TrainingSpec.model_validate(content)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, "training", TrainingSpec)) from None


def choose_precision(device: DeviceSpec, runtime: RuntimeProfile, precision: str | None) -> str:
    """The precision word to train in: the one stated, or the default of the device.

    Raises:
        InputError: when the device or the runtime does not support it.
    """
    offered = [word for word, spec in runtime.precisions.items() if _has_precision(device, spec)]
    if precision is None:
        preferred = ("fp32", "bf16") if device.kind == "cpu" else ("bf16", "fp16", "fp32")
        found = next((word for word in preferred if word in offered), None)
        if found is None:
            raise InputError(f"runtime {runtime.name} and {device.name} have no training precision in common")
        return found
    needed = f"choose one of {', '.join(offered)}" if offered else "choose another runtime or device"
    if not isinstance(precision, str) or precision not in runtime.precisions:
        word = show_value(precision)
        raise InputError(f"precision {word} is not supported by runtime {runtime.name} on {device.name}; {needed}")
    if precision not in offered:
        if precision == "fp64":
            raise InputError(f"precision fp64 is for exact comparisons on a cpu, found {device.name}; {needed}")
        raise InputError(f"{device.name} does not support {precision} training; {needed}")
    return precision


def whole_number(name: str, value: object, lowest: int, highest: int | None = None) -> int:
    """The value itself, if it is a whole number (of numpy too) in the range.

    Raises:
        InputError: when it is not.
    """
    found = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if found is None or found < lowest or (highest is not None and found > highest):
        needed = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest:,}"
        raise InputError(f"{name} is {show_value(value)}; needed a whole number {needed}")
    return found


def parse_tokens(tokens: int | float | str) -> int:
    """A number of training tokens: 300000000000, ``300e9``, ``300B`` or ``2T``.

    Raises:
        InputError: when it is no positive whole number.
    """
    needed = "needed a positive number of tokens, such as 300e9, 300B or 2T"
    match = _TOKENS.fullmatch(str(tokens).strip())
    if not match:
        raise InputError(f"tokens is {show_value(tokens)}; {needed}")
    number = float(re.sub("[_,]", "", match[1])) * _SCALES[match[2].upper()]
    if not math.isfinite(number) or not 1 <= number <= _MAX_TOKENS:
        raise InputError(f"tokens is {show_value(tokens)}; needed between 1 and {_MAX_TOKENS:.0e}")
    return round(number)


def parse_memory_limit(
    device: DeviceSpec, max_memory_fraction: float | str | None, reserve_memory: int | str | None
) -> MemoryLimit | None:
    """How much of a device a plan may use; None where nothing is stated.

    Args:
        device: whose memory is limited.
        max_memory_fraction: a share above 0 and up to 1, such as 0.9 or ``90%``.
        reserve_memory: bytes, or a size such as ``4 GiB``.

    Raises:
        InputError: when one is out of its domain, or nothing is left for the plan.
    """
    if max_memory_fraction is None and reserve_memory is None:
        return None
    from costmodel.runtimes.memory_limit import make_memory_limit

    fraction = 1.0 if max_memory_fraction is None else parse_share("max_memory_fraction", max_memory_fraction, 1.0)
    reserve = 0 if reserve_memory is None else parse_quantity(reserve_memory, "bytes", "reserve_memory")
    if not isinstance(reserve, int) or reserve < 0 or 0 < reserve < _LEAST_RESERVE:
        raise InputError(
            f"reserve_memory is {show_value(reserve_memory)}, {reserve} bytes; needed 0 or at least 1 MiB, such as 4GiB"
        )
    return make_memory_limit(device, fraction=fraction, reserve_bytes=reserve)


def parse_share(name: str, value: float | str, highest: float = math.inf, *, example: float = 0.9) -> float:
    """A fraction that people write as 0.1 or ``10%``.

    Raises:
        InputError: when it is no number above 0 and up to ``highest``.
    """
    number, whole = value, 1
    if isinstance(value, str) and value.strip().endswith("%"):
        number, whole = value.strip()[:-1], 100
    try:
        share = float(parse_quantity(number, None, name)) / whole
    except InputError:
        share = math.nan
    if not 0 < share <= highest:
        limit = f" and up to {highest:g}" if math.isfinite(highest) else ""
        raise InputError(
            f"{name} is {show_value(value)}; needed a share above 0{limit}, such as {example:g} or {example:.0%}"
        )
    return share


def require_mapping(name: str, value: object, *, example: str) -> dict[str, Any]:
    """The mapping itself, keys as text; None is empty.

    Raises:
        InputError: when it is no mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {show_value(value)}; needed a mapping such as {example}")
    return {str(key): item for key, item in value.items()}


def parse_assignments(items: Iterable[str], *, option: str) -> dict[str, str]:
    """``axis=value`` texts as a mapping.

    Raises:
        InputError: when one has no name or value, or an axis is stated twice.
    """
    result: dict[str, str] = {}
    for item in items:
        name, separator, value = (part.strip() for part in item.partition("="))
        if not (name and separator and value):
            raise InputError(f"{option} {item!r}: needed axis=value, such as tensor_parallel_size=8")
        name = name.replace("-", "_")
        if name in result:
            raise InputError(f"{option} states {name} twice: {result[name]} and {value}; state it once")
        result[name] = value
    return result


def _has_precision(device: DeviceSpec, spec: PrecisionSpec) -> bool:
    # fp64 is offered for exact comparisons on a CPU only.
    from costmodel.runtimes.rules import device_supports

    return device_supports(device, spec) and (spec.compute != "fp64" or device.kind == "cpu")


def _optimizer(name: str, runtime: RuntimeProfile) -> OptimizerSpec:
    return OptimizerSpec.model_validate({"name": one_of("optimizer", name, runtime.optimizers)})


def one_of(what: str, value: str, choices: tuple[str, ...]) -> str:
    """The value itself, if it is one of the choices; raises InputError with the choices when it is not."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"unknown {what} {show_value(value)}; choose one of {', '.join(choices)}")
    return value

"""From what people state (names, words, numbers as text) to specs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from costmodel.specs import ClusterSpec, InputError, ModelSpec, OptimizerSpec, RuntimeProfile, TrainingSpec
from hardware_profiles.errors import explain_validation_error

if TYPE_CHECKING:
    from hardware_profiles.types import DeviceSpec

_SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_TOKENS = 10**18
# Beyond these no product of sizes stays exact in 64 bits; no training comes near them.
_MAX_BATCH = 10**6
_MAX_SEQUENCE = 10**7
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
) -> TrainingSpec:
    """What is trained in one step, with the number formats that the runtime uses for ``precision``.

    Args:
        cluster: gives the device whose precisions are offered.
        runtime: resolves the precision word into number formats.
        global_batch_size: sequences per optimizer step.
        sequence_length: tokens per sequence.
        precision: bf16, fp16, fp32 or fp64; None takes bf16 where the device has it, else fp16, and fp32 on a CPU.
        optimizer: ``adamw``, ``sgd`` or a full `OptimizerSpec`.
        attention: ``fused`` (no score matrix in memory) or ``unfused``.

    Raises:
        InputError: for a value outside its domain, or a precision that the device or the runtime lacks.
    """
    _check_number("global_batch_size", global_batch_size, _MAX_BATCH)
    _check_number("sequence_length", sequence_length, _MAX_SEQUENCE)
    content: dict[str, Any] = {
        "global_batch_size": global_batch_size,
        "sequence_length": sequence_length,
        "precision": runtime.precisions[choose_precision(cluster.device, runtime, precision)],
        "optimizer": optimizer if isinstance(optimizer, OptimizerSpec) else _optimizer(optimizer, runtime),
        "attention_implementation": _one_of("attention", attention, ("fused", "unfused")),
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
    offered = [word for word in runtime.precisions if _has_precision(device, word)]
    if precision is None:
        preferred = ("fp32", "bf16") if device.kind == "cpu" else ("bf16", "fp16", "fp32")
        found = next((word for word in preferred if word in offered), None)
        if found is None:
            raise InputError(f"runtime {runtime.name} and {device.name} have no training precision in common")
        return found
    if precision not in runtime.precisions:
        known = ", ".join(runtime.precisions)
        raise InputError(f"precision {precision!r} is not supported by runtime {runtime.name}; choose one of {known}")
    if precision not in offered:
        raise InputError(f"{device.name} does not support {precision} training; choose one of {', '.join(offered)}")
    return precision


def parse_tokens(tokens: int | float | str) -> int:
    """A number of training tokens: 300000000000, ``300e9``, ``300B`` or ``2T``.

    Raises:
        InputError: when it is no positive whole number.
    """
    needed = "needed a positive number of tokens, such as 300e9, 300B or 2T"
    match = _TOKENS.fullmatch(str(tokens).strip())
    if not match:
        raise InputError(f"tokens is {tokens!r}; {needed}")
    number = float(re.sub("[_,]", "", match[1])) * _SCALES[match[2].upper()]
    if not math.isfinite(number) or not 1 <= number <= _MAX_TOKENS:
        raise InputError(f"tokens is {tokens!r}; needed between 1 and {_MAX_TOKENS:.0e}")
    return round(number)


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


def _check_number(name: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise InputError(f"{name} is {value!r}; needed a whole number from 1 to {largest:,}")


def _has_precision(device: DeviceSpec, word: str) -> bool:
    # fp64 is offered for exact comparisons on a CPU only.
    return word in device.peak_flops_per_second and (word != "fp64" or device.kind == "cpu")


def _optimizer(name: str, runtime: RuntimeProfile) -> OptimizerSpec:
    return OptimizerSpec.model_validate({"name": _one_of("optimizer", name, runtime.optimizers)})


def _one_of(what: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InputError(f"unknown {what} {value!r}; choose one of {', '.join(choices)}")
    return value

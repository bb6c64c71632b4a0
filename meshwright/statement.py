"""What people state about a search, resolved to specs: the part that all questions share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from costmodel.specs import (
    ClusterSpec,
    MemoryLimit,
    ModelSpec,
    OptimizerSpec,
    RuntimeProfile,
    SiteProfile,
    TrainingSpec,
)
from meshwright.inputs import (
    make_training,
    parse_memory_limit,
    require_mapping,
    resolve_cluster,
    resolve_model,
    resolve_runtime,
)
from meshwright.sites import corrected_runtime


class Setting(TypedDict, total=False):
    """What may be stated beside model, cluster and batch; everything has a default.

    runtime: the training framework, a name of `costmodel.runtimes.loader.list_runtimes` or a profile ("torch").
    precision: bf16, fp16, fp32, fp64 or fp8; None takes bf16 where the device has it, else fp16, and fp32 on a cpu.
    optimizer: ``adamw``, ``sgd`` or a spec.
    attention: ``fused`` or ``unfused``.
    loss_chunks: parts of a sequence that head and loss work through one at a time, where the runtime can (1).
    site: corrections from the user's own runs, a spec or a file that `calibrate` wrote.
    max_memory_fraction: share of a device's memory that a plan may use: 0.9 or ``90%`` (all).
    reserve_memory: bytes of a device, or ``4 GiB``, that a plan leaves to others (0).
    fix: axis -> the one value to hold it at, such as ``{"tensor_parallel_size": 8}``.
    allow: axis -> the values to search.
    """

    runtime: RuntimeProfile | str
    precision: str | None
    optimizer: OptimizerSpec | str
    attention: str
    loss_chunks: int
    site: SiteProfile | str | Path | None
    max_memory_fraction: float | str | None
    reserve_memory: int | str | None
    fix: Mapping[str, Any] | None
    allow: Mapping[str, str | Sequence[Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The specs of what was stated; ``fix`` and ``allow`` in words."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    runtime: RuntimeProfile
    site: SiteProfile | None
    memory_limit: MemoryLimit | None
    fix: dict[str, str]
    allow: dict[str, str | list[str]]


def resolve_statement(
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    global_batch_size: int,
    sequence_length: int,
    **setting: Unpack[Setting],
) -> Statement:
    """Specs of what is stated.

    Raises:
        InputError: for a value that is wrong by itself, and a site of another device or runtime.
    """
    found, place = resolve_model(model), resolve_cluster(cluster)
    runtime = resolve_runtime(setting.get("runtime", "torch"))
    profile, corrections = corrected_runtime(runtime, place, setting.get("site"))
    training = make_training(
        place,
        profile,
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        precision=setting.get("precision"),
        optimizer=setting.get("optimizer", "adamw"),
        attention=setting.get("attention", "fused"),
        loss_chunks=setting.get("loss_chunks", 1),
    )
    fraction, reserve = setting.get("max_memory_fraction"), setting.get("reserve_memory")
    return Statement(
        model=found,
        cluster=place,
        training=training,
        runtime=profile,
        site=corrections,
        memory_limit=parse_memory_limit(place.device, fraction, reserve),
        fix=_fixed(setting.get("fix")),
        allow=_allowed(setting.get("allow")),
    )


def as_word(value: object) -> str:
    """A value of an axis as a person writes it."""
    if value is None:
        return "off"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(as_word(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fixed(fix: Mapping[str, Any] | None) -> dict[str, str]:
    """``fix`` in words."""
    stated = require_mapping("fix", fix, example="{'tensor_parallel_size': 8}")
    return {axis: as_word(value) for axis, value in stated.items()}


def _allowed(allow: Mapping[str, str | Sequence[Any]] | None) -> dict[str, str | list[str]]:
    """``allow`` in words."""
    stated = require_mapping("allow", allow, example="{'tensor_parallel_size': [4, 8]}")
    return {axis: _words(values) for axis, values in stated.items()}


def _words(values: object) -> str | list[str]:
    """The values of an axis; a single one may stand without a list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return as_word(values)
    return [as_word(value) for value in values]

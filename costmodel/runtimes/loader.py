"""Read runtime profiles: one YAML file per training framework, beside this module.

A file that ``extends`` another states only what differs; ``constants``, ``memory``, ``precisions`` and ``sources`` are merged
entry by entry, and an entry of ``null`` drops the inherited one. Below all profiles lie the constants that stacks have in
common, ``costmodel/constants/shared.yaml``.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel.specs import InputError, RuntimeProfile
from hardware_profiles.files import read_own_yaml

_FOLDER = Path(__file__).parent
_CONSTANTS = _FOLDER.parent / "constants"
_MERGED = ("constants", "memory", "precisions", "sources")


def list_runtimes() -> tuple[str, ...]:
    """Names of the supported training frameworks, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache(maxsize=32)
def load_runtime(name: str) -> RuntimeProfile:
    """The profile of one training framework.

    Args:
        name: one of `list_runtimes`.

    Raises:
        InputError: when there is no such profile; the message lists the supported ones.
    """
    supported = list_runtimes()
    if name not in supported:
        raise InputError(f"unknown runtime {name!r}; supported: {', '.join(supported)}")
    content = _content(name)
    shared = read_constants("shared")
    kernels = shared["kernels"]["eager"] | {f"fused_{key}": value for key, value in shared["kernels"]["fused"].items()}
    content["constants"] = shared["constants"] | kernels | content["constants"]
    return RuntimeProfile.model_validate(content)


@lru_cache(maxsize=8)
def read_constants(name: str) -> dict[str, Any]:
    """One file of ``costmodel/constants``."""
    return read_own_yaml(_CONSTANTS / f"{name}.yaml")


def _content(name: str) -> dict[str, Any]:
    """A profile's file over the one it extends."""
    own = read_own_yaml(_FOLDER / f"{name}.yaml")
    if "extends" not in own:
        return own
    base = _content(own.pop("extends"))
    merged = base | own
    for part in _MERGED:
        both: dict[str, Any] = base.get(part, {}) | own.get(part, {})
        merged[part] = {key: value for key, value in both.items() if value is not None}
    return merged

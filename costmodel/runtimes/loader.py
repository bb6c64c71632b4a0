"""Read runtime profiles: one YAML file per training framework, beside this module."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import yaml

from costmodel.specs import InputError, RuntimeProfile

_FOLDER = Path(__file__).parent


def list_runtimes() -> tuple[str, ...]:
    """Names of the supported training frameworks, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache(maxsize=8)
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
    content = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return RuntimeProfile.model_validate(content)

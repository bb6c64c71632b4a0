"""The models known by name: one YAML file per family in ``catalogue/``, a source beside each model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import JsonValue

from hardware_profiles.files import read_own_yaml

_FOLDER = Path(__file__).parent / "catalogue"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One model of the catalogue; ``config`` is its config.json, ``aliases`` are more names, the hub's among them."""

    name: str
    source: str
    config: dict[str, JsonValue]
    aliases: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def known_models() -> dict[str, KnownModel]:
    """All models by name, family by family, small to large."""
    found = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        for name, entry in read_own_yaml(path)["models"].items():
            found[name] = KnownModel(
                name=name,
                source=entry["source"],
                config=entry["config"],
                aliases=tuple(entry.get("aliases", ())),
            )
    return found


def find_model(name: str) -> KnownModel | None:
    """The model of this name or alias, ignoring case; None when there is none. The config is the caller's own copy."""
    folded = name.casefold()
    for model in known_models().values():
        if folded == model.name.casefold() or folded in (alias.casefold() for alias in model.aliases):
            return KnownModel(
                name=model.name, source=model.source, config=deepcopy(model.config), aliases=model.aliases
            )
    return None

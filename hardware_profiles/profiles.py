"""The profiles that come with the package: devices, nodes and networks, every number with its source.

In the files a number is written as ``{value: ..., source: ..., note: ...}``. Reading collapses it to the number
and collects ``dotted.path -> source`` in the spec's ``sources``, the note behind the source. A device that names a
``family`` (families/) takes from it what its own file does not state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from hardware_profiles.errors import dotted, explain_validation_error, unknown_name
from hardware_profiles.files import read_yaml_mapping
from hardware_profiles.spec import InputError, Spec
from hardware_profiles.types import DeviceSpec, NetworkSpec, NodeSpec

ProfileKind = Literal["device", "node", "network"]
SpecType = TypeVar("SpecType", bound=Spec)

_ROOT = Path(__file__).parent
_FOLDERS: dict[ProfileKind, Path] = {
    "device": _ROOT / "devices",
    "node": _ROOT / "nodes",
    "network": _ROOT / "networks",
}


def list_devices() -> tuple[str, ...]:
    """Names of all device profiles, sorted."""
    return list_profiles("device")


def list_nodes() -> tuple[str, ...]:
    """Names of all node profiles, sorted."""
    return list_profiles("node")


def list_networks() -> tuple[str, ...]:
    """Names of all network profiles, sorted."""
    return list_profiles("network")


@cache
def list_profiles(kind: ProfileKind) -> tuple[str, ...]:
    """Names of the profiles of one kind, sorted."""
    return tuple(sorted((path.stem for path in _FOLDERS[kind].glob("*.yaml")), key=str.casefold))


def resolve_name(kind: ProfileKind, text: str) -> str | None:
    """The profile that a name means: itself, ignoring case and separators, an alias, or the only one it begins.

    ``h100_sxm`` is H100-SXM; ``B200`` or ``V100`` are unambiguous beginnings; ``H100`` begins two and is None.
    """
    folded = _fold(text)
    names = {_fold(name): name for name in list_profiles(kind)}
    if folded in names:
        return names[folded]
    aliases = _aliases(kind)
    if folded in aliases:
        return aliases[folded]
    begun = begun_names(kind, text)
    return begun[0] if len(begun) == 1 else None


def begun_names(kind: ProfileKind, text: str) -> list[str]:
    """Profiles whose first words are the words of ``text``."""
    words = _words(text)
    return [name for name in list_profiles(kind) if words and _words(name)[: len(words)] == words]


def load_device(name: str) -> DeviceSpec:
    """A device profile by name or alias.

    Raises:
        InputError: an unknown name, or one that fits several devices; the message lists the valid names.
    """
    return _load("device", name, DeviceSpec)


def load_node(name: str) -> NodeSpec:
    """A node profile by name or alias.

    Raises:
        InputError: an unknown name; the message lists the valid names.
    """
    return _load("node", name, NodeSpec)


def load_network(name: str) -> NetworkSpec:
    """A network profile by name or alias.

    Raises:
        InputError: an unknown name; the message lists the valid names.
    """
    return _load("network", name, NetworkSpec)


def find_network(link_name: str) -> NetworkSpec | None:
    """The network profile whose link has that name, or None: a cluster keeps the link alone."""
    return next((found for name in list_networks() if (found := load_network(name)).link.name == link_name), None)


def default_nodes(device: str) -> tuple[str, ...]:
    """Node profiles that a device is sold in, smallest first; the first that is large enough is the default."""
    return tuple(_read("device", device)["nodes"])


def unknown_profile(kind: ProfileKind, name: object) -> str:
    """The message for a name that means no profile, or more than one."""
    several = begun_names(kind, str(name))
    if len(several) > 1:
        return f"{kind} {name!r} can be {' or '.join(several)}; write the full name"
    return unknown_name(kind, name, list_profiles(kind))


def collapse(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split profile content into plain values and ``dotted.path -> source``.

    Raises:
        InputError: a number without a source.
    """
    sources: dict[str, str] = {}
    return _collapse(content, (), sources), sources


def _collapse(content: Mapping[str, Any], keys: tuple[str, ...], sources: dict[str, str]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in content.items():
        here = (*keys, str(key))
        if isinstance(value, Mapping) and "value" in value:
            if not value.get("source"):
                raise InputError(f"{dotted(here)}: the number has no source")
            note = value.get("note")
            sources[dotted(here)] = f"{value['source']}. {note}" if note else str(value["source"])
            plain[key] = value["value"]
        elif isinstance(value, Mapping):
            plain[key] = _collapse(value, here, sources)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            raise InputError(f"{dotted(here)}: the number {value} has no source")
        else:
            plain[key] = value
    return plain


def _load(kind: ProfileKind, name: str, spec: type[SpecType]) -> SpecType:
    resolved = resolve_name(kind, name)
    if resolved is None:
        raise InputError(unknown_profile(kind, name))
    return _build(kind, resolved, spec)


def _build(kind: ProfileKind, name: str, spec: type[SpecType]) -> SpecType:
    content = dict(_read(kind, name))
    if (family := content.pop("family", None)) is not None:
        content = _read_family(family) | content
    plain, sources = collapse(content)
    plain.pop("nodes", None)
    try:
        return spec.model_validate({**plain, "name": name, "sources": sources})
    except ValidationError as error:
        raise InputError(explain_validation_error(error, f"{kind} profile {name}", spec)) from error


@cache
def _read(kind: ProfileKind, name: str) -> dict[str, Any]:
    return read_yaml_mapping(_FOLDERS[kind] / f"{name}.yaml", f"{kind} profile")


@cache
def _read_family(name: str) -> dict[str, Any]:
    """What the devices of one family have in common; a device's own file may state its own numbers."""
    return read_yaml_mapping(_ROOT / "families" / f"{name}.yaml", "family profile")


@cache
def _aliases(kind: ProfileKind) -> dict[str, str]:
    content = read_yaml_mapping(_ROOT / "aliases.yaml", "file")
    return {_fold(alias): name for alias, name in content[kind].items()}


def _words(text: str) -> list[str]:
    return text.casefold().replace("_", " ").replace("-", " ").split()


def _fold(text: str) -> str:
    return "".join(_words(text))

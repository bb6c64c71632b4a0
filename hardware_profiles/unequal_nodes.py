"""Refuse descriptions of clusters whose nodes are not all alike, with what to do instead.

Every rank of a plan does the same work, so a cluster is one kind of node, so many times. What people write for several kinds
is recognised before it fails as an unknown key or a wrong type: lists where one value is needed, a list of nodes, several
clusters in one file, several names in one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from hardware_profiles.errors import show_value
from hardware_profiles.spec import InputError

_ONE_VALUE = ("base", "device", "node", "network", "num_nodes", "devices_per_node", "node_link", "host")
_SEVERAL = ("nodes", "node_groups", "groups", "pools", "devices", "clusters", "hosts", "bases")
_LONGEST_NAME = 40
_BETWEEN_NAMES = re.compile(r"\s*(?:[,;+&]|\band\b)\s*")


def unequal_nodes(found: str, names: Iterable[str] = ()) -> str:
    """The refusal.

    Args:
        found: where the several kinds stand and what they are.
        names: the kinds that have a name that a cluster may have, for example 8xH100-SXM.
    """
    each = " and ".join(dict.fromkeys(names))
    return (
        f"{found}; the nodes of a cluster must be equal: one kind of device, as many in every node, the same links. Plan for "
        f"each kind of node as a cluster of its own{f' ({each})' if each else ''}, or describe all nodes as the weakest of them "
        "(its devices, the fewest in a node, the slowest link), which a plan then fits everywhere"
    )


def refuse_unequal_nodes(content: Any) -> None:
    """Look at what a cluster file holds before its keys and types are checked.

    Raises:
        InputError: when it describes nodes of several kinds.
    """
    if isinstance(content, list) and _differ(content):
        raise InputError(unequal_nodes(f"found a list of {len(content)} clusters", _names(content)))
    if not isinstance(content, dict):
        return
    for key in (*_ONE_VALUE, *_SEVERAL):
        values = content.get(key)
        if key in _SEVERAL and isinstance(values, dict):
            values = list(values.values())
        if isinstance(values, list) and _differ(values):
            raise InputError(unequal_nodes(f"{key}: found {show_value(content[key])}", _names(values)))
    levels = content.get("levels")
    for index, level in enumerate(levels if isinstance(levels, list) else ()):
        if isinstance(level, dict) and isinstance(level.get("size"), list) and _differ(level["size"]):
            raise InputError(unequal_nodes(f"levels.{index}.size: found {show_value(level['size'])}"))


def refuse_several_names(text: str, is_name: Callable[[str], bool]) -> None:
    """Refuse names joined by a comma, a plus or "and".

    Raises:
        InputError: when every part is a name of its own.
    """
    parts = _BETWEEN_NAMES.split(text.strip())
    if len(parts) > 1 and all(is_name(part) for part in parts):
        raise InputError(unequal_nodes(f"found {len(parts)} clusters", parts))


def is_written_twice(cause: BaseException | None) -> bool:
    """Whether a file is no YAML because it names a base twice, or holds several documents."""
    if not isinstance(cause, yaml.MarkedYAMLError):
        return False
    twice = cause.problem in {f"the key {key} stands twice" for key in ("base", "device", "node")}
    return twice or (cause.context or "").startswith("expected a single document")


def _differ(values: list[Any]) -> bool:
    """At least two values, not all the same."""
    return any(value != values[0] for value in values[1:])


def _names(values: list[Any]) -> list[str]:
    """The names among several descriptions: texts, or what they name as their base or device."""
    named = [value.get("base", value.get("device")) if isinstance(value, dict) else value for value in values]
    texts = [name for name in named if isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_NAME]
    return texts if len(texts) == len(named) else []

"""Values of a config file by key, each checked, with errors that name the key as the file spells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from costmodel.specs import InputError
from hardware_profiles.errors import show_value, unknown_name
from hardware_profiles.json_text import json_kind, parse_json
from meshwright.exporters.imported import whole_number

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


class Tree:
    """One mapping of a config.

    ``auto``: whether "auto", which frameworks fill in later, counts as not stated. ``words``: whether numbers and switches may
    stand as text, as in YAML that a tool wrote.
    """

    def __init__(self, content: Mapping[str, Any], path: str = "", *, words: bool = False, auto: bool = True) -> None:
        self.content, self.path, self.words, self.auto = content, path, words, auto
        self.read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.content.get(key) is not None

    def name(self, key: str) -> str:
        """The key with those above it."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """The value, or None where it is not stated or left to be filled in."""
        self.read.add(key)
        value = self.content.get(key)
        return None if self.auto and value == "auto" else value

    def whole(self, key: str, *, lowest: int = 1) -> int | None:
        """A whole number, or None."""
        value = self.get(key)
        if self.words and (number := whole_number(value)) is not None:
            value = number
        if isinstance(value, float) and value.is_integer():  # 5e8 is how people write buckets
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < lowest):
            raise InputError(f"{self.name(key)} is {show_value(value)}; needed a whole number of at least {lowest}")
        return value

    def number(self, key: str) -> float | None:
        """A finite number of at least 0, or None."""
        value = self.get(key)
        if isinstance(value, str):  # YAML reads 1e-8 as text, and DeepSpeed takes it
            try:
                value = float(value)
            except ValueError:
                value = None if value == "" else value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise InputError(f"{self.name(key)} is {show_value(value)}; needed a number of at least 0")
        return float(value)

    def switch(self, key: str) -> bool | None:
        """True or false, or None."""
        value = self.get(key)
        if self.words and isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
            return value.lower() in _TRUE
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{self.name(key)} is {show_value(value)}; needed true or false")
        return value

    def choice(self, key: str, allowed: Iterable[str]) -> str | None:
        """One of the words, or None."""
        value = self.get(key)
        if value is not None and value not in (known := tuple(allowed)):
            raise InputError(f"{self.name(key)} is {show_value(value)}; needed one of {', '.join(known)}")
        return None if value is None else str(value)

    def sub(self, key: str) -> Tree:
        """The mapping below a key, empty where there is none."""
        value = self.get(key)
        if value is None:
            return Tree({}, self.name(key), words=self.words, auto=self.auto)
        if not isinstance(value, dict):
            raise InputError(f"{self.name(key)} is {json_kind(value)}; needed an object with named fields")
        return Tree(value, self.name(key), words=self.words, auto=self.auto)

    def check_keys(self, known: Iterable[str], *, of: str) -> None:
        """Refuse a key that the framework does not read.

        Args:
            known: the keys that it reads.
            of: what has them, for the message ("DeepSpeed key").
        """
        names = tuple(known)
        for key in self.content:
            if key not in names:
                place = f" in {self.path}" if self.path else ""
                raise InputError(unknown_name(f"{of}{place}", str(key), sorted(names)))

    def ignored(self) -> tuple[str, ...]:
        """Keys that nobody asked for."""
        return tuple(self.name(key) for key in self.content if key not in self.read)


def read_json_object(text: str, name: str) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        InputError: when it holds none.
    """
    content = parse_json(text, name)
    if not isinstance(content, dict):
        raise InputError(f"{name} holds {json_kind(content)}; needed an object with named fields")
    return content


def try_json_object(text: str) -> dict[str, Any]:
    """The object, or an empty one where the text is something else."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        return read_json_object(text, "")
    except InputError:
        return {}

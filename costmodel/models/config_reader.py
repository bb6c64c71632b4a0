"""Read typed fields of a config.json; every refusal names the file, the field, the value found and the value needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from pydantic import JsonValue

from costmodel.specs import InputError

# Far above any real model, and low enough that bytes of state stay within 64-bit integers.
MAX_SIZE = 2**24
MAX_HIDDEN_SIZE = 2**20
MAX_HEADS = 2**14
MAX_HEAD_DIM = 2**12
MAX_TOKENS = 2**31 - 1
MAX_LAYERS = 1024  # the deepest transformer published has 1,000 (DeepNet, arXiv 2203.00555)
_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """A config.json and where it came from, for messages. ``null`` counts as a value: it is refused unless stated."""

    config: Mapping[str, JsonValue]
    where: str

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """An integer field; required when ``default`` is None.

        Raises:
            InputError: when it is missing, no integer (booleans and 64.0 are none) or out of bounds.
        """
        if name not in self.config:
            return self._missing(name) if default is None else default
        value = self.config[name]
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            self.refuse(name, f"an integer from {minimum:,} to {maximum:,}")
        return value

    def optional_integer(self, name: str, default: int | None, *, maximum: int = MAX_SIZE) -> int | None:
        """A positive integer field that may be null, which yields None.

        Raises:
            InputError: when it is neither null nor a positive integer within bounds.
        """
        if name not in self.config:
            return default
        if self.config[name] is None:
            return None
        return self.integer(name, maximum=maximum)

    def optional_positive(self, name: str, default: float | None) -> float | None:
        """A positive decimal number (transformers refuses integers here) that may be null, which yields None.

        Raises:
            InputError: see above.
        """
        value = self.config.get(name, default)
        if value is None:
            return None
        if not isinstance(value, float) or value <= 0:
            self.refuse(name, "null or a positive decimal number such as 30.0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean field.

        Raises:
            InputError: when it is anything but true or false.
        """
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """A text field with a closed set of values.

        Raises:
            InputError: when it is none of ``choices``.
        """
        value = self.config.get(name, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, f"one of {', '.join(choices)}")
        return value

    def check_positive(self, name: str) -> None:
        """Refuse a field that is present and no positive decimal number (transformers refuses integers here).

        Raises:
            InputError: see above.
        """
        value = self.config.get(name, 1.0)
        if not isinstance(value, float) or value <= 0:
            self.refuse(name, "a positive decimal number such as 1e-06")

    def check_fraction(self, name: str, *, nullable: bool = False) -> None:
        """Refuse a field that is present and no number from 0 to 1.

        Raises:
            InputError: see above.
        """
        value = self.config.get(name, 0)
        if nullable and value is None:
            return
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
            self.refuse(name, "a number from 0 to 1")

    def refuse(self, name: str, needed: str) -> NoReturn:
        """Raise the error for a field that is present with a wrong value."""
        raise InputError(f"{self.where}: {name}: found {show(self.config.get(name))}; needed {needed}")

    def _missing(self, name: str) -> NoReturn:
        fields = ", ".join(sorted(self.config)) or "none"
        raise InputError(f"{self.where} lacks the field {name!r}; fields found: {fields}")


def show(value: JsonValue) -> str:
    """A short JSON form of a value for messages."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


# The activation functions of transformers that hold no parameters.
ACTIVATIONS = (
    "gelu",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "silu",
    "swish",
    "mish",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "sigmoid",
    "tanh",
    "linear",
)

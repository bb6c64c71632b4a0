"""JSON that a user wrote, read strictly: what a person can have meant, or one sentence about what is wrong."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from hardware_profiles.spec import InputError

_KINDS = {list: "a list", dict: "an object", str: "text", bool: "true or false", type(None): "null"}
# What the parser raises beside JSONDecodeError, in the order to be asked for, and what it means.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (UnicodeEncodeError, "found half of a surrogate pair (\\ud800 to \\udfff alone); needed whole characters"),
    (RecursionError, "lists or objects are nested too deeply; needed at most a few hundred levels"),
    (ValueError, "found a number of thousands of digits; needed numbers of a sane size"),
)


def parse_json(text: str, name: str) -> Any:
    """The value that a JSON text holds.

    Args:
        text: the text, not empty.
        name: what is read, for the message; it starts the sentence.

    Raises:
        InputError: truncated, not JSON, a key that stands twice, NaN, an infinity, a number that overflows or has
            thousands of digits, nested too deeply, or text that UTF-8 cannot hold.
    """
    try:
        content = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_parse_float, object_pairs_hook=_unique_keys
        )
        json.dumps(content, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{name} is not valid JSON: {_explain(error, text)}") from error
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except (ValueError, RecursionError) as error:
        reason = next(words for kind, words in _REASONS if isinstance(error, kind))
        raise InputError(f"{name}: {reason}") from error
    return content


def json_kind(value: object) -> str:
    """What a JSON value is, in JSON's own words: ``a list``, ``an object``, ``text``, ``a number``, ``null``."""
    return _KINDS.get(type(value), "a number")


def _refuse_constant(word: str) -> NoReturn:
    raise InputError(f"found {word}, which is no number of JSON; needed a finite number")


def _parse_float(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise InputError(f"found the number {number[:30]}, which overflows; needed a finite number")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise InputError(f"the key {key!r} stands twice; needed each key once")
        content[key] = value
    return content


def _explain(error: json.JSONDecodeError, text: str) -> str:
    place = f"line {error.lineno}, column {error.colno}: "
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return f"{place}the text ends in the middle (is the file truncated?)"
    if error.msg == "Extra data":
        return f"{place}something follows the end of the document"
    return f"{place}{error.msg[0].lower()}{error.msg[1:]}"

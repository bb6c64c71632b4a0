"""One human sentence for what a schema refuses: dotted path, value found, value needed."""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

_MAX_VALUE_LENGTH = 60
_COMPARISONS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "of at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "of at most"),
}
_NEEDED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda _: "a whole number",
    "int_parsing": lambda _: "a whole number",
    "int_parsing_size": lambda _: f"a whole number below {2**63:.1e}",
    "int_from_float": lambda _: "a whole number",
    "float_type": lambda _: "a number",
    "float_parsing": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "string_type": lambda _: "text",
    "bool_type": lambda _: "true or false",
    "bool_parsing": lambda _: "true or false",
    "dict_type": lambda _: "a mapping of keys to values",
    "model_type": lambda _: "a mapping of keys to values",
    "model_attributes_type": lambda _: "a mapping of keys to values",
    "list_type": lambda _: "a list",
    "tuple_type": lambda _: "a list",
    "literal_error": lambda context: _one_of(str(context.get("expected", ""))),
    "none_required": lambda _: "null",
    "enum": lambda context: _one_of(str(context.get("expected", ""))),
    "too_short": lambda context: f"at least {context.get('min_length')} item(s)",
    "too_long": lambda context: f"at most {context.get('max_length')} item(s)",
    "string_too_short": lambda context: f"text of at least {context.get('min_length')} character(s)",
    "string_too_long": lambda context: f"text of at most {context.get('max_length')} character(s)",
    "string_pattern_mismatch": lambda context: f"text that matches {context.get('pattern')}",
}


def explain_validation_error(error: ValidationError, what: str, model: type[BaseModel] | None = None) -> str:
    """Say in one sentence what is wrong with the first refused value.

    Args:
        error: what pydantic raised.
        what: what was read, for example ``cluster file my.yaml``; it starts the sentence.
        model: the model that refused; with it an unknown key is answered with the valid keys at its place.

    Returns:
        ``{what}: {dotted.path}: found {value}; needed {description}``, and how many further problems there are.
    """
    return f"{what}: {explain_problem(error, model)}"


def explain_problem(error: ValidationError, model: type[BaseModel] | None = None, at: str = "") -> str:
    """The part of `explain_validation_error` behind ``what``, for content that stands at the dotted path ``at``."""
    problems = error.errors(include_url=False)
    first = problems[0]
    keys = [part for part in first["loc"] if not _is_marker(part)]
    path = dotted([at, *keys] if at else keys)
    sentence = _explain_one(first, keys, model)
    more = f" (and {len(problems) - 1} more problem{'s' if len(problems) > 2 else ''})" if len(problems) > 1 else ""
    return f"{path + ': ' if path else ''}{sentence}{more}"


def dotted(keys: Iterable[str | int]) -> str:
    """``("levels", 0, "link")`` -> ``levels.0.link``."""
    return ".".join(str(key) for key in keys)


def show_value(value: object) -> str:
    """A short, single-line form of a value for a message, in the words of a file: ``null``, ``true``, 2024-12-31."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value) if isinstance(value, datetime.date) else repr(value).replace("\n", " ")
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."


def show_path(path: Path) -> str:
    """A path as it is, or quoted where it holds characters that would break the line."""
    text = str(path)
    return text if text.isprintable() else show_value(text)


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> str:
    """``unknown {kind} {name}``, the closest valid names and the whole list."""
    names = list(valid)
    closest = close_matches(str(name), names)
    hint = f"did you mean {' or '.join(closest)}? " if closest else ""
    return f"unknown {kind} {show_value(name)}; {hint}valid: {', '.join(names)}"


def close_matches(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names that look like ``name``, ignoring case."""
    folded = {candidate.casefold(): candidate for candidate in names}
    return [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6)]


def _explain_one(problem: Mapping[str, Any], keys: list[str | int], model: type[BaseModel] | None) -> str:
    kind, value, context = problem["type"], problem["input"], problem.get("ctx") or {}
    if kind == "missing":
        return "missing; it is required"
    if kind == "extra_forbidden":
        return _explain_unknown_key(keys, model)
    if kind in ("value_error", "assertion_error"):
        return f"found {show_value(value)}; {str(context.get('error', problem['msg'])).removeprefix('Value error, ')}"
    if kind in _COMPARISONS:
        bound, words = _COMPARISONS[kind]
        return f"found {show_value(value)}; needed a number {words} {context[bound]:.15g}"
    if kind in _NEEDED:
        return f"found {show_value(value)}; needed {_NEEDED[kind](context)}"
    needed = str(problem["msg"]).replace("Input should be", "needed")
    return f"found {show_value(value)}; {needed[0].lower()}{needed[1:]}"


def _one_of(expected: str) -> str:
    """``'a', 'b' or 'c'`` as ``one of 'a', 'b', 'c'``; a value that is the only one is just named."""
    expected = expected.replace("None", "null")
    return f"one of {expected.replace(' or ', ', ')}" if " or " in expected else expected


def _explain_unknown_key(keys: list[str | int], model: type[BaseModel] | None) -> str:
    owner = None if model is None else _model_at(model, keys[:-1])
    if owner is None:
        return "unknown key"
    return unknown_name("key", keys[-1] if keys else "", owner.model_fields)


def _model_at(model: type[BaseModel], keys: list[str | int]) -> type[BaseModel] | None:
    current: Any = model
    for key in keys:
        found = find_model(current)
        if found is not None and key in found.model_fields:
            current = found.model_fields[str(key)].annotation
        elif not isinstance(key, int) and found is not None:
            return None
    return find_model(current)


def find_model(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as ``Spec | None`` or ``tuple[Spec, ...]``, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, list, dict, Union, UnionType):
        for part in get_args(annotation):
            found = find_model(part)
            if found is not None:
                return found
    return None


def _is_marker(part: str | int) -> bool:
    """Pydantic adds steps such as ``[key]`` or ``function-after[...]`` to a location; they are not keys."""
    return isinstance(part, str) and ("[" in part or "]" in part)

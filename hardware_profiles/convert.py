"""User content -> plain values for a spec: exact keys, strict units, no surprises left for the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from hardware_profiles.errors import explain_problem, find_model, show_value, unknown_name
from hardware_profiles.spec import InputError, Spec
from hardware_profiles.units import dimension_of, parse_quantity

SpecType = TypeVar("SpecType", bound=Spec)


def convert_mapping(
    model: type[Spec], content: object, path: str, *, forbidden: tuple[str, ...] = (), also: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Convert content that uses some or all keys of a spec.

    Args:
        model: the spec whose fields are the valid keys.
        content: what the user wrote.
        path: dotted path of the content; empty at the top of a file.
        forbidden: fields that the user may not set here.
        also: keys that are valid here and handled elsewhere; named in the message about an unknown key.

    Returns:
        The same keys with every quantity in SI. Missing keys stay missing; ranges are the schema's business.

    Raises:
        InputError: not a mapping, an unknown key, a value of the wrong type or with an unknown unit.
    """
    valid = [name for name in model.model_fields if name not in forbidden]
    mapping = require_mapping(content, path)
    require_keys(mapping, [*valid, *also], path)
    return {
        key: _convert(model.model_fields[key].annotation, value, join(path, key), dimension_of(key))
        for key, value in mapping.items()
        if key in valid
    }


def validate(model: type[SpecType], content: Mapping[str, Any], path: str) -> SpecType:
    """Build a spec from converted content.

    Raises:
        InputError: a value out of range or a missing key, with its dotted path.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InputError(explain_problem(error, model, path)) from error


def join(path: str, key: str) -> str:
    """``("host", "pcie")`` -> ``host.pcie``."""
    return f"{path}.{key}" if path else key


def require_mapping(content: object, path: str) -> Mapping[str, Any]:
    """The content itself, if it is a mapping with text keys."""
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: found {show_value(content)}; needed a mapping of keys to values")
    return content


def require_keys(content: Mapping[str, Any], valid: Sequence[str], path: str) -> None:
    """Refuse the first key that is not valid here, and list those that are."""
    for key in content:
        if key not in valid:
            raise InputError(f"{path + ': ' if path else ''}{unknown_name('key', key, valid)}")


def require_text(value: object, path: str) -> str:
    """The value itself, if it is text."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{path}: found {show_value(value)}; needed text")
    return value


def require_count(value: object, path: str, most: int) -> int:
    """The value itself, if it is a positive whole number of at most ``most``."""
    number = parse_quantity(value, None, path)
    if number != int(number) or not 1 <= number <= most:
        raise InputError(f"{path}: found {show_value(value)}; needed a whole number from 1 to {most}")
    return int(number)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, mapping by mapping."""
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return merged


def leaf_paths(content: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths of everything in nested mappings that is not a mapping itself."""
    paths: list[str] = []
    for key, value in content.items():
        paths += leaf_paths(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [f"{prefix}{key}"]
    return paths


def _convert(annotation: Any, value: object, path: str, dimension: str | None) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        if value is None and type(None) in arguments:
            return None
        annotation = next(argument for argument in arguments if argument is not type(None))
        return _convert(annotation, value, path, dimension)
    if origin is dict:
        return _convert_dict(arguments, value, path, dimension)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{path}: found {show_value(value)}; needed a list")
        return [_convert(arguments[0], item, f"{path}.{index}", None) for index, item in enumerate(value)]
    model = find_model(annotation)
    if model is not None and issubclass(model, Spec):
        return convert_mapping(model, value, path)
    return _convert_scalar(annotation, value, path, dimension)


def _convert_scalar(annotation: Any, value: object, path: str, dimension: str | None) -> Any:
    if get_origin(annotation) is Literal:
        choices = [str(choice) for choice in get_args(annotation)]
        if value not in choices:
            raise InputError(f"{path}: found {show_value(value)}; needed one of {', '.join(choices)}")
        return value
    kind = get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation
    return require_text(value, path) if kind is str else parse_quantity(value, dimension, path)


def _convert_dict(arguments: tuple[Any, ...], value: object, path: str, dimension: str | None) -> dict[str, Any]:
    key_type, value_type = arguments
    mapping = require_mapping(value, path)
    if get_origin(key_type) is Literal:
        require_keys(mapping, list(get_args(key_type)), path)
    return {str(key): _convert(value_type, item, f"{path}.{key}", dimension) for key, item in mapping.items()}

"""What several model families check in a config.json, as transformers does, and the layers that windows make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from pydantic import JsonValue

from costmodel.models.config_reader import ConfigReader, show
from costmodel.specs import AttentionSpec, FeedForwardSpec, InputError, LayerGroup

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def check_rotary(reader: ConfigReader, *, types: tuple[str, ...] = ROPE_TYPES, theta: str = "rope_theta") -> None:
    """Refuse rotary settings that transformers does not know; they do not change the cost.

    Args:
        reader: the config.
        types: values of ``rope_type`` that the model type takes.
        theta: what the model type calls its base at the top of the config.

    Raises:
        InputError: naming the field.
    """
    check_theta(reader, reader.config.get(theta), theta)
    for field in ("rope_parameters", "rope_scaling"):
        rope = reader.config.get(field)
        if rope is None:
            continue
        if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) not in types:
            reader.refuse(field, f"null or an object whose rope_type is one of {', '.join(types)}")
        check_theta(reader, rope.get("rope_theta"), f"{field}.rope_theta")


def check_theta(reader: ConfigReader, value: JsonValue, name: str) -> None:
    """Refuse a rotary base that is neither null nor a positive number.

    Raises:
        InputError: naming the field.
    """
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise InputError(f"{reader.where}: {name}: found {show(value)}; needed a positive number such as 10000.0")


def partial_rotary_factor(reader: ConfigReader, name: str, default: float) -> float:
    """The share of every head that rotary positions turn: field ``name``, unless the rotary object states it.

    Raises:
        InputError: when it is no number from 0 to 1.
    """
    rope = reader.config.get("rope_scaling") or reader.config.get("rope_parameters")
    value = reader.config.get(name, default)
    if isinstance(rope, dict) and "partial_rotary_factor" in rope:
        name, value = "partial_rotary_factor", rope["partial_rotary_factor"]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InputError(f"{reader.where}: {name}: found {show(value)}; needed a number from 0 to 1")
    return float(value)


def check_rotary_dims(reader: ConfigReader, head_dim: int, factor: float) -> None:
    """Refuse heads that rotary positions cannot turn pair by pair.

    Raises:
        InputError: when an odd number of dims is turned and no dim is left to complete the last pair.
    """
    turned = int(head_dim * factor)
    if turned + turned % 2 > head_dim:
        raise InputError(
            f"{reader.where}: head_dim is {head_dim}, of which rotary position embeddings turn {turned}; "
            "needed an even number"
        )


def check_padding_token(reader: ConfigReader, vocab_size: int) -> None:
    """Refuse a padding token outside the vocabulary.

    Raises:
        InputError: see above.
    """
    token = reader.config.get("pad_token_id")
    if token is None:
        return
    if not isinstance(token, int) or isinstance(token, bool) or not -vocab_size <= token < vocab_size:
        reader.refuse("pad_token_id", f"null or a token of the vocabulary, below vocab_size {vocab_size}")


def check_key_value_heads(reader: ConfigReader, heads: int, key_value_heads: int) -> None:
    """Refuse key-value heads that do not divide the query heads.

    Raises:
        InputError: see above.
    """
    if heads % key_value_heads:
        raise InputError(
            f"{reader.where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {key_value_heads}; "
            f"needed a number of key-value heads that divides {heads}"
            + ("" if "num_key_value_heads" in reader.config else " (the field is absent: this is its default)")
        )


def head_dim_of(reader: ConfigReader, hidden_size: int, heads: int) -> int:
    """hidden_size / num_attention_heads.

    Raises:
        InputError: when it is no whole number.
    """
    if hidden_size % heads:
        raise InputError(
            f"{reader.where}: hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}; "
            f"needed a hidden_size such as {max(heads, hidden_size // heads * heads)}"
        )
    return hidden_size // heads


def sliding_layers(reader: ConfigReader, num_layers: int, known: Mapping[str, bool]) -> list[bool]:
    """Which layers have a sliding window, from ``layer_types``.

    Args:
        reader: the config, with the field.
        num_layers: how many entries it needs.
        known: the valid entries -> whether they slide.

    Raises:
        InputError: when it is no list of ``num_layers`` known entries.
    """
    kinds = reader.config["layer_types"]
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in known for kind in kinds):
        reader.refuse("layer_types", f"a list with one of {', '.join(sorted(known))} for every layer")
    if len(kinds) != num_layers:
        raise InputError(f"{reader.where}: layer_types has {len(kinds)} entries; needed num_hidden_layers {num_layers}")
    return [known[str(kind)] for kind in kinds]


def window_groups(
    windows: Sequence[int | None], attention: AttentionSpec, feed_forward: FeedForwardSpec
) -> tuple[LayerGroup, ...]:
    """Groups of neighbouring layers that have the same window."""
    return tuple(
        LayerGroup(
            count=len(list(run)),
            attention=attention.model_copy(update={"window": window}),
            feed_forward=feed_forward,
        )
        for window, run in groupby(windows)
    )

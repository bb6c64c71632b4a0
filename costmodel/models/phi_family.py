"""phi3 (phi-3 mini and medium, phi-3.5-mini, phi-4): as llama, with fused query, key and value, and fused gate and up.

What a config.json leaves out takes the value that transformers 5.24 gives it (configuration_phi3.py), but for the sizes that
make the model. ``attention_bias``, which published files carry, is read by nothing. phi-3-small, phi-3.5-MoE and the models
with vision are other model types.
"""

from __future__ import annotations

from pydantic import JsonValue

from costmodel.models.config_checks import (
    check_key_value_heads,
    check_padding_token,
    check_rotary,
    check_rotary_dims,
    partial_rotary_factor,
    window_groups,
)
from costmodel.models.config_reader import (
    ACTIVATIONS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN_SIZE,
    MAX_LAYERS,
    MAX_TOKENS,
    ConfigReader,
)
from costmodel.specs import AttentionSpec, FeedForwardSpec, InputError, LayerGroup, ModelSpec

PHI3_DROPOUTS = ("attention_dropout", "embd_pdrop", "resid_pdrop")
_ROPE_TYPES = ("default", "longrope", "su", "yarn")  # su and yarn are older names of longrope
_FACTORS = ("short_factor", "long_factor")


def build_phi3(reader: ConfigReader, *, name: str) -> ModelSpec:
    """The ModelSpec of a config.json whose ``model_type`` is phi3.

    Raises:
        InputError: when a field is missing, of the wrong type or at odds with another one.
    """
    reader.check_positive("rms_norm_eps")
    for field in ("initializer_range", *PHI3_DROPOUTS):
        reader.check_fraction(field)
    check_rotary(reader, types=_ROPE_TYPES)
    hidden_size = reader.integer("hidden_size", maximum=MAX_HIDDEN_SIZE)
    vocab_size = reader.integer("vocab_size")
    check_padding_token(reader, vocab_size)
    return ModelSpec(
        name=name,
        family="phi",
        model_type="phi3",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        max_position_embeddings=reader.integer("max_position_embeddings", 4096, maximum=MAX_TOKENS),
        learned_position_embeddings=False,
        norm="rmsnorm",
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
        layers=_layers(reader, hidden_size),
        hf_config=dict(reader.config),
    )


def _layers(reader: ConfigReader, hidden_size: int) -> tuple[LayerGroup, ...]:
    heads = reader.integer("num_attention_heads", maximum=MAX_HEADS)
    key_value_heads = reader.optional_integer("num_key_value_heads", None, maximum=MAX_HEADS) or heads
    check_key_value_heads(reader, heads, key_value_heads)
    head_dim = reader.integer("head_dim", max(1, hidden_size // heads), maximum=MAX_HEAD_DIM)
    factor = partial_rotary_factor(reader, "partial_rotary_factor", 1.0)
    check_rotary_dims(reader, head_dim, factor)
    _check_longrope(reader, int(hidden_size // heads * factor) // 2)
    reader.integer("original_max_position_embeddings", 4096, maximum=MAX_TOKENS)
    attention = AttentionSpec(
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        partial_rotary_factor=factor,
    )
    feed_forward = FeedForwardSpec(
        gated=True,
        intermediate_size=reader.integer("intermediate_size"),
        activation=reader.choice("hidden_act", "silu", ACTIVATIONS),
    )
    num_layers = reader.integer("num_hidden_layers", maximum=MAX_LAYERS)
    window = reader.optional_integer("sliding_window", None, maximum=MAX_TOKENS)
    return window_groups([window] * num_layers, attention, feed_forward)


def _check_longrope(reader: ConfigReader, length: int) -> None:
    """Refuse scaling factors that are not one per pair of rotary dims."""
    field = "rope_scaling" if reader.config.get("rope_scaling") else "rope_parameters"
    rope = reader.config.get(field)
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) == "default":
        return
    for name in _FACTORS:
        values: JsonValue = rope.get(name)
        numbers = isinstance(values, list) and all(
            isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
        )
        if not isinstance(values, list) or not numbers or len(values) != length:
            found = f"{len(values)} entries" if isinstance(values, list) else "no list"
            raise InputError(f"{reader.where}: {field}.{name}: found {found}; needed a list of {length} numbers")

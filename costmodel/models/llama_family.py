"""llama, mistral, qwen2 and qwen3: RMSNorm, rotary positions, grouped-query attention, gated feed-forward.

What a config.json leaves out takes the value that transformers 5.24 gives it (its ``configuration_*.py`` and the
projections in its ``modeling_*.py``); the sizes that make the model are required all the same, because no published
config.json lacks them and a default would plan another model than the one meant.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.models.config_checks import (
    check_key_value_heads,
    check_padding_token,
    check_rotary,
    sliding_layers,
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

_LAYER_TYPES = {"full_attention": False, "attention": False, "sliding_attention": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """How one model type differs. ``num_key_value_heads`` None means as many as query heads."""

    max_position_embeddings: int
    num_key_value_heads: int | None = None
    num_key_value_heads_nullable: bool = True
    head_dim: int | None = None
    head_dim_nullable: bool = False
    qkv_bias: bool | None = None  # None: attention_bias decides, for the output projection too
    mlp_bias: bool = False  # whether the field is read at all
    qk_norm: bool = False
    hidden_size_divides: bool = False


_DEFAULTS = {
    "llama": _Defaults(max_position_embeddings=2048, head_dim_nullable=True, mlp_bias=True, hidden_size_divides=True),
    "mistral": _Defaults(
        max_position_embeddings=131072,
        num_key_value_heads=8,
        num_key_value_heads_nullable=False,
        head_dim_nullable=True,
        qkv_bias=False,
    ),
    "qwen2": _Defaults(max_position_embeddings=32768, num_key_value_heads=32, qkv_bias=True),
    "qwen3": _Defaults(max_position_embeddings=32768, num_key_value_heads=32, head_dim=128, qk_norm=True),
}
MODEL_TYPES = tuple(_DEFAULTS)


def build_llama_family(reader: ConfigReader, model_type: str, *, name: str) -> ModelSpec:
    """The ModelSpec of a config.json whose ``model_type`` is one of `MODEL_TYPES`.

    Raises:
        InputError: when a field is missing, of the wrong type or at odds with another one.
    """
    defaults = _DEFAULTS[model_type]
    _check_numerics(reader)
    hidden_size = reader.integer("hidden_size", maximum=MAX_HIDDEN_SIZE)
    vocab_size = reader.integer("vocab_size")
    check_padding_token(reader, vocab_size)
    return ModelSpec(
        name=name,
        family="llama",
        model_type=model_type,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        max_position_embeddings=reader.integer(
            "max_position_embeddings", defaults.max_position_embeddings, maximum=MAX_TOKENS
        ),
        learned_position_embeddings=False,
        norm="rmsnorm",
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
        layers=_layers(reader, model_type, hidden_size),
        hf_config=dict(reader.config),
    )


def _layers(reader: ConfigReader, model_type: str, hidden_size: int) -> tuple[LayerGroup, ...]:
    num_layers = reader.integer("num_hidden_layers", maximum=MAX_LAYERS)
    if model_type == "llama":
        windows: list[int | None] = [None] * num_layers
    elif model_type == "mistral":
        windows = [reader.optional_integer("sliding_window", 4096, maximum=MAX_TOKENS)] * num_layers
    else:
        windows = _qwen_windows(reader, num_layers)
    attention = _attention(reader, _DEFAULTS[model_type], hidden_size)
    feed_forward = FeedForwardSpec(
        gated=True,
        intermediate_size=reader.integer("intermediate_size"),
        activation=reader.choice("hidden_act", "silu", ACTIVATIONS),
        bias=_DEFAULTS[model_type].mlp_bias and reader.flag("mlp_bias", False),
    )
    return window_groups(windows, attention, feed_forward)


def _attention(reader: ConfigReader, defaults: _Defaults, hidden_size: int) -> AttentionSpec:
    heads = reader.integer("num_attention_heads", maximum=MAX_HEADS)
    if defaults.num_key_value_heads_nullable:
        key_value_heads = reader.optional_integer("num_key_value_heads", defaults.num_key_value_heads) or heads
    else:
        key_value_heads = reader.integer("num_key_value_heads", defaults.num_key_value_heads)
    check_key_value_heads(reader, heads, key_value_heads)
    bias = reader.flag("attention_bias", False) if defaults.qkv_bias is None else defaults.qkv_bias
    return AttentionSpec(
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=_head_dim(reader, defaults, hidden_size, heads),
        qkv_bias=bias,
        output_bias=bias and defaults.qkv_bias is None,
        qk_norm=defaults.qk_norm,
    )


def _head_dim(reader: ConfigReader, defaults: _Defaults, hidden_size: int, heads: int) -> int:
    if defaults.head_dim_nullable:
        head_dim = reader.optional_integer("head_dim", None, maximum=MAX_HEAD_DIM)
    elif "head_dim" in reader.config:
        head_dim = reader.integer("head_dim", maximum=MAX_HEAD_DIM)
    else:
        head_dim = defaults.head_dim
    if hidden_size % heads and (head_dim is None or defaults.hidden_size_divides):
        raise InputError(
            f"{reader.where}: hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}; "
            f"needed a hidden_size such as {max(heads, hidden_size // heads * heads)}"
        )
    head_dim = head_dim or hidden_size // heads
    if head_dim % 2:
        raise InputError(f"{reader.where}: head_dim is {head_dim}; rotary position embeddings need an even one")
    return head_dim


def _qwen_windows(reader: ConfigReader, num_layers: int) -> list[int | None]:
    """The window of every layer: ``layer_types`` where given, else sliding from ``max_window_layers`` on."""
    window = reader.optional_integer("sliding_window", 4096, maximum=MAX_TOKENS)
    if not reader.flag("use_sliding_window", False):
        window = None
    first = reader.integer("max_window_layers", 28, minimum=0, maximum=MAX_TOKENS)
    if reader.config.get("layer_types") is None:
        return [window if index >= first else None for index in range(num_layers)]
    sliding = sliding_layers(reader, num_layers, _LAYER_TYPES)
    if window is None and any(sliding):
        raise InputError(
            f"{reader.where}: layer_types names sliding_attention, but no window is set; "
            "needed use_sliding_window true and a positive sliding_window"
        )
    return [window if slides else None for slides in sliding]


def _check_numerics(reader: ConfigReader) -> None:
    """Refuse what transformers would refuse although it does not change the cost."""
    reader.check_positive("rms_norm_eps")
    reader.check_fraction("initializer_range")
    reader.check_fraction("attention_dropout", nullable=reader.config.get("model_type") == "llama")
    check_rotary(reader)

"""gemma2: RMSNorm before and after attention and feed-forward, capped scores and logits, windows in every other layer.

What a config.json leaves out takes the value that transformers 5.24 gives it (configuration_gemma2.py), but for the sizes
that make the model. ``hidden_act``, which published files carry beside ``hidden_activation``, is read by nothing.
"""

from __future__ import annotations

from costmodel.models.config_checks import (
    check_key_value_heads,
    check_padding_token,
    check_rotary,
    head_dim_of,
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

_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def build_gemma2(reader: ConfigReader, *, name: str) -> ModelSpec:
    """The ModelSpec of a config.json whose ``model_type`` is gemma2.

    Raises:
        InputError: when a field is missing, of the wrong type or at odds with another one.
    """
    reader.check_positive("rms_norm_eps")
    reader.check_fraction("initializer_range")
    reader.check_fraction("attention_dropout", nullable=True)
    check_rotary(reader)
    if reader.config.get("use_bidirectional_attention") not in (None, False):
        reader.refuse("use_bidirectional_attention", "null or false: only causal attention is supported")
    hidden_size = reader.integer("hidden_size", maximum=MAX_HIDDEN_SIZE)
    vocab_size = reader.integer("vocab_size")
    check_padding_token(reader, vocab_size)
    return ModelSpec(
        name=name,
        family="gemma",
        model_type="gemma2",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        max_position_embeddings=reader.integer("max_position_embeddings", 8192, maximum=MAX_TOKENS),
        learned_position_embeddings=False,
        norm="rmsnorm",
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
        final_logit_softcapping=reader.optional_positive("final_logit_softcapping", 30.0),
        layers=_layers(reader, hidden_size),
        hf_config=dict(reader.config),
    )


def _layers(reader: ConfigReader, hidden_size: int) -> tuple[LayerGroup, ...]:
    heads = reader.integer("num_attention_heads", maximum=MAX_HEADS)
    head_dim_of(reader, hidden_size, heads)  # refused by transformers although head_dim does not depend on it
    key_value_heads = reader.integer("num_key_value_heads", 4, maximum=MAX_HEADS)
    check_key_value_heads(reader, heads, key_value_heads)
    head_dim = reader.integer("head_dim", 256, maximum=MAX_HEAD_DIM)
    if head_dim % 2:
        raise InputError(f"{reader.where}: head_dim is {head_dim}; rotary position embeddings need an even one")
    reader.integer("query_pre_attn_scalar", 256)
    bias = reader.flag("attention_bias", False)
    attention = AttentionSpec(
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        qkv_bias=bias,
        output_bias=bias,
        attn_logit_softcapping=reader.optional_positive("attn_logit_softcapping", 50.0),
    )
    feed_forward = FeedForwardSpec(
        gated=True,
        intermediate_size=reader.integer("intermediate_size"),
        activation=reader.choice("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
    )
    return window_groups(_windows(reader), attention, feed_forward)


def _windows(reader: ConfigReader) -> list[int | None]:
    """The window of every layer: ``layer_types`` where given, else every other layer from the first one slides."""
    num_layers = reader.integer("num_hidden_layers", maximum=MAX_LAYERS)
    window = reader.optional_integer("sliding_window", 4096, maximum=MAX_TOKENS)
    if reader.config.get("layer_types") is None:
        sliding = [index % 2 == 0 for index in range(num_layers)]
    else:
        sliding = sliding_layers(reader, num_layers, _LAYER_TYPES)
    if window is None and any(sliding):
        raise InputError(
            f"{reader.where}: sliding_window is null, but layers slide; needed a positive sliding_window, or layer_types "
            "with full_attention for every layer"
        )
    return [window if slides else None for slides in sliding]

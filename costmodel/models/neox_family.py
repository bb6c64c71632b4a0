"""gpt_neox (GPT-NeoX-20B, Pythia): LayerNorm, partly rotary positions, fused query, key and value, parallel residual.

What a config.json leaves out takes the value that transformers 5.24 gives it (configuration_gpt_neox.py), but for the sizes
that make the model.
"""

from __future__ import annotations

from costmodel.models.config_checks import check_rotary, check_rotary_dims, head_dim_of, partial_rotary_factor
from costmodel.models.config_reader import (
    ACTIVATIONS,
    MAX_HEADS,
    MAX_HIDDEN_SIZE,
    MAX_LAYERS,
    MAX_TOKENS,
    ConfigReader,
)
from costmodel.specs import AttentionSpec, FeedForwardSpec, LayerGroup, ModelSpec

NEOX_DROPOUTS = ("attention_dropout", "hidden_dropout")


def build_gpt_neox(reader: ConfigReader, *, name: str) -> ModelSpec:
    """The ModelSpec of a config.json whose ``model_type`` is gpt_neox.

    Raises:
        InputError: when a field is missing, of the wrong type or at odds with another one.
    """
    reader.check_positive("layer_norm_eps")
    for field in ("initializer_range", *NEOX_DROPOUTS):
        reader.check_fraction(field)
    check_rotary(reader, theta="rotary_emb_base")
    hidden_size = reader.integer("hidden_size", maximum=MAX_HIDDEN_SIZE)
    vocab_size = reader.integer("vocab_size")
    return ModelSpec(
        name=name,
        family="neox",
        model_type="gpt_neox",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        max_position_embeddings=reader.integer("max_position_embeddings", 2048, maximum=MAX_TOKENS),
        learned_position_embeddings=False,
        norm="layernorm",
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
        use_parallel_residual=reader.flag("use_parallel_residual", True),
        layers=(_layer_group(reader, hidden_size),),
        hf_config=dict(reader.config),
    )


def _layer_group(reader: ConfigReader, hidden_size: int) -> LayerGroup:
    heads = reader.integer("num_attention_heads", maximum=MAX_HEADS)
    head_dim = head_dim_of(reader, hidden_size, heads)
    factor = partial_rotary_factor(reader, "rotary_pct", 0.25)
    check_rotary_dims(reader, head_dim, factor)
    bias = reader.flag("attention_bias", True)
    return LayerGroup(
        count=reader.integer("num_hidden_layers", maximum=MAX_LAYERS),
        attention=AttentionSpec(
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=head_dim,
            qkv_bias=bias,
            output_bias=bias,
            partial_rotary_factor=factor,
        ),
        feed_forward=FeedForwardSpec(
            gated=False,
            intermediate_size=reader.integer("intermediate_size"),
            activation=reader.choice("hidden_act", "gelu", ACTIVATIONS),
            bias=True,
        ),
    )

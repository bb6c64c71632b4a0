"""opt: LayerNorm, learned positions whose table has two rows more than positions, biases, ReLU.

What a config.json leaves out takes the value that transformers 5.24 gives it (configuration_opt.py), but for the sizes that
make the model. opt-350m is another architecture (norms after the residual additions, a narrower embedding) and refused, and
so are layer norms without parameters (Galactica) and models without a final norm.
"""

from __future__ import annotations

from costmodel.models.config_checks import check_padding_token, head_dim_of
from costmodel.models.config_reader import ACTIVATIONS, MAX_HEADS, MAX_HIDDEN_SIZE, MAX_LAYERS, ConfigReader
from costmodel.specs import AttentionSpec, FeedForwardSpec, LayerGroup, ModelSpec

OPT_DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.0, "layerdrop": 0.0}
_FIXED = {
    "do_layer_norm_before": (True, "norms after the residual additions, as in opt-350m, are not supported"),
    "_remove_final_layer_norm": (False, "a model without a final norm is not supported"),
    "layer_norm_elementwise_affine": (True, "layer norms without parameters are not supported"),
}


def build_opt(reader: ConfigReader, *, name: str) -> ModelSpec:
    """The ModelSpec of a config.json whose ``model_type`` is opt.

    Raises:
        InputError: when a field is missing, of the wrong type or at odds with another one, or the model is one of the
            variants that are not supported.
    """
    hidden_size = reader.integer("hidden_size", maximum=MAX_HIDDEN_SIZE)
    vocab_size = reader.integer("vocab_size")
    _check_variant(reader, hidden_size)
    for field in ("init_std", *OPT_DROPOUTS):
        reader.check_fraction(field)
    check_padding_token(reader, vocab_size)
    return ModelSpec(
        name=name,
        family="opt",
        model_type="opt",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        max_position_embeddings=reader.integer("max_position_embeddings", 2048),
        learned_position_embeddings=True,
        norm="layernorm",
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
        layers=(_layer_group(reader, hidden_size),),
        hf_config=dict(reader.config),
    )


def _check_variant(reader: ConfigReader, hidden_size: int) -> None:
    for field, (needed, reason) in _FIXED.items():
        if reader.flag(field, needed) is not needed:
            reader.refuse(field, f"{str(needed).lower()}: {reason}; opt-125m, opt-1.3b and larger ones are")
    if reader.optional_integer("word_embed_proj_dim", None, maximum=MAX_HIDDEN_SIZE) not in (None, hidden_size):
        reader.refuse(
            "word_embed_proj_dim",
            f"null or hidden_size {hidden_size}: an embedding of another width, as in opt-350m, is not supported; "
            "opt-125m, opt-1.3b and larger ones are",
        )


def _layer_group(reader: ConfigReader, hidden_size: int) -> LayerGroup:
    heads = reader.integer("num_attention_heads", maximum=MAX_HEADS)
    bias = reader.flag("enable_bias", True)
    return LayerGroup(
        count=reader.integer("num_hidden_layers", maximum=MAX_LAYERS),
        attention=AttentionSpec(
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=head_dim_of(reader, hidden_size, heads),
            qkv_bias=bias,
            output_bias=bias,
        ),
        feed_forward=FeedForwardSpec(
            gated=False,
            intermediate_size=reader.integer("ffn_dim"),
            activation=reader.choice("activation_function", "relu", ACTIVATIONS),
            bias=bias,
        ),
    )

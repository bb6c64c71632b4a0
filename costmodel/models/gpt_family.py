"""gpt2 from a config.json, and megatron-gpt by its dimensions: LayerNorm, learned positions, biases, GELU.

``megatron-gpt`` describes the GPT that Megatron-LM trains, which has GPT-2's parameters exactly. Its fields are
hidden_size, num_hidden_layers, num_attention_heads, max_position_embeddings and vocab_size, and optionally
padded_vocab_size (rows of the embedding table, default vocab_size), intermediate_size (default 4 x hidden_size),
tie_word_embeddings (default true), attention_dropout and hidden_dropout (default 0.1, Megatron-LM's own). It becomes a
gpt2 config.json with a table of padded_vocab_size rows, so that an executor can build it.
"""

from __future__ import annotations

from pydantic import JsonValue

from costmodel.models.config_reader import ACTIVATIONS, MAX_HEADS, MAX_HIDDEN_SIZE, MAX_LAYERS, ConfigReader, show
from costmodel.specs import AttentionSpec, FeedForwardSpec, InputError, LayerGroup, ModelSpec

GPT2_DEFAULT_DROPOUT = 0.1
GPT2_DROPOUTS = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
# transformers' GPT2Config.attribute_map: both spellings are one field.
_GPT2_SPELLINGS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_MEGATRON_FIELDS = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "vocab_size",
    "padded_vocab_size",
    "intermediate_size",
    "tie_word_embeddings",
    "attention_dropout",
    "hidden_dropout",
)


def build_gpt2(reader: ConfigReader, *, name: str) -> ModelSpec:
    """The ModelSpec of a config.json whose ``model_type`` is gpt2.

    Raises:
        InputError: when a field is missing, of the wrong type or at odds with another one.
    """
    config = reader.config
    reader = _one_spelling(reader)
    if reader.flag("add_cross_attention", False):
        reader.refuse("add_cross_attention", "false: only decoder-only models are supported")
    reader.check_positive("layer_norm_epsilon")
    for field in ("initializer_range", *GPT2_DROPOUTS):
        reader.check_fraction(field)
    hidden_size = reader.integer("n_embd", maximum=MAX_HIDDEN_SIZE)
    vocab_size = reader.integer("vocab_size")
    return ModelSpec(
        name=name,
        family="gpt",
        model_type="gpt2",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        max_position_embeddings=reader.integer("n_positions"),
        learned_position_embeddings=True,
        norm="layernorm",
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
        layers=(_layer_group(reader, hidden_size),),
        hf_config=dict(config),
    )


def build_megatron_gpt(reader: ConfigReader, *, name: str) -> ModelSpec:
    """The ModelSpec of a ``megatron-gpt`` description; its ``hf_config`` is the gpt2 config.json of the same model.

    Raises:
        InputError: when a field is unknown, missing, of the wrong type or at odds with another one.
    """
    unknown = sorted(set(reader.config) - set(_MEGATRON_FIELDS))
    if unknown:
        raise InputError(f"{reader.where}: unknown field {unknown[0]!r}; valid: {', '.join(_MEGATRON_FIELDS)}")
    vocab_size = reader.integer("vocab_size")
    padded_vocab_size = reader.integer("padded_vocab_size", vocab_size)
    if padded_vocab_size < vocab_size:
        reader.refuse("padded_vocab_size", f"at least vocab_size {vocab_size}")
    for field in ("attention_dropout", "hidden_dropout"):
        reader.check_fraction(field)
    hidden_dropout = reader.config.get("hidden_dropout", GPT2_DEFAULT_DROPOUT)
    config: dict[str, JsonValue] = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        # The tanh approximation of GELU, as Megatron-LM's fused bias and GELU computes it.
        "activation_function": "gelu_pytorch_tanh",
        "n_embd": reader.integer("hidden_size", maximum=MAX_HIDDEN_SIZE),
        "n_layer": reader.integer("num_hidden_layers", maximum=MAX_LAYERS),
        "n_head": reader.integer("num_attention_heads", maximum=MAX_HEADS),
        "n_inner": reader.optional_integer("intermediate_size", None),
        "n_positions": reader.integer("max_position_embeddings"),
        "vocab_size": padded_vocab_size,
        "bos_token_id": vocab_size - 1,
        "eos_token_id": vocab_size - 1,
        "attn_pdrop": reader.config.get("attention_dropout", GPT2_DEFAULT_DROPOUT),
        "embd_pdrop": hidden_dropout,
        "resid_pdrop": hidden_dropout,
        "tie_word_embeddings": reader.flag("tie_word_embeddings", True),
    }
    return build_gpt2(ConfigReader(config, reader.where), name=name).model_copy(update={"vocab_size": vocab_size})


def _layer_group(reader: ConfigReader, hidden_size: int) -> LayerGroup:
    heads = reader.integer("n_head", maximum=MAX_HEADS)
    if hidden_size % heads:
        raise InputError(
            f"{reader.where}: hidden size (n_embd) {hidden_size} is not a multiple of the attention heads (n_head) "
            f"{heads}; needed a hidden size such as {max(heads, hidden_size // heads * heads)}"
        )
    return LayerGroup(
        count=reader.integer("n_layer", maximum=MAX_LAYERS),
        attention=AttentionSpec(
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=hidden_size // heads,
            qkv_bias=True,
            output_bias=True,
        ),
        feed_forward=FeedForwardSpec(
            gated=False,
            intermediate_size=reader.optional_integer("n_inner", None) or 4 * hidden_size,
            activation=reader.choice("activation_function", "gelu_new", ACTIVATIONS),
            bias=True,
        ),
    )


def _one_spelling(reader: ConfigReader) -> ConfigReader:
    config = dict(reader.config)
    for alias, field in _GPT2_SPELLINGS.items():
        if alias not in config:
            continue
        value = config.pop(alias)
        if config.setdefault(field, value) != value:
            raise InputError(
                f"{reader.where}: {field} is {show(config[field])} and {alias}, its other spelling, is {show(value)}; "
                "needed one value"
            )
    return ConfigReader(config, reader.where)

"""The dimensions of a run's model -> ModelSpec."""

from __future__ import annotations

from pydantic import JsonValue

from costmodel.models.loader import build_model
from costmodel.specs import InputError, ModelSpec
from meshwright.validation.adapters.errors import UnsupportedRunError
from meshwright.validation.run_rows import ModelFields

_REQUIRED = ("n_layers", "hidden", "seq_len", "gated_mlp")
_HEAD_DIM = 128
_VOCABULARY = 51200


def build_model_spec(model: ModelFields) -> ModelSpec:
    """A llama-like model where the feed-forward is gated, else a GPT; a plan of it pads the vocabulary as its runtime does.

    What a row leaves out: heads of 128, as many key-value heads as heads, a feed-forward of 4 x hidden (GPT only),
    51,200 tokens, embeddings tied in a GPT and untied in a llama.

    Raises:
        UnsupportedRunError: a mixture of experts, or a dimension without which there is no model.
    """
    if model.moe is not None:
        raise UnsupportedRunError("mixture of experts")
    missing = [f"model.{name}" for name in _REQUIRED if getattr(model, name) is None]
    if model.gated_mlp and model.ffn_hidden is None:
        missing.append("model.ffn_hidden")
    if missing:
        raise UnsupportedRunError(f"the row lacks {', '.join(missing)}")
    try:
        spec = build_model(_config(model), name=model.name or "model")
    except InputError as error:
        raise UnsupportedRunError(str(error)) from error
    return _with_key_value_heads(spec, model)


def _config(model: ModelFields) -> dict[str, JsonValue]:
    heads = model.n_heads or max(1, (model.hidden or 1) // _HEAD_DIM)
    config: dict[str, JsonValue] = {
        "hidden_size": model.hidden,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": heads,
        "vocab_size": model.vocab or _VOCABULARY,
        "max_position_embeddings": model.seq_len,
        "tie_word_embeddings": (not model.gated_mlp) if model.tied_embeddings is None else model.tied_embeddings,
    }
    if model.gated_mlp:
        return {
            **config,
            "model_type": "llama",
            "num_key_value_heads": model.n_kv_heads or heads,
            "intermediate_size": model.ffn_hidden,
        }
    if model.ffn_hidden is not None:
        config["intermediate_size"] = model.ffn_hidden
    return {**config, "model_type": "megatron-gpt"}


def _with_key_value_heads(spec: ModelSpec, model: ModelFields) -> ModelSpec:
    """A GPT with fewer key-value heads than heads, which its config.json cannot say."""
    heads = model.n_kv_heads
    group = spec.layers[0]
    if heads is None or heads == group.attention.num_key_value_heads:
        return spec
    if group.attention.num_attention_heads % heads:
        raise UnsupportedRunError(
            f"model.n_kv_heads {heads} does not divide model.n_heads {group.attention.num_attention_heads}"
        )
    attention = group.attention.model_copy(update={"num_key_value_heads": heads})
    return spec.model_copy(update={"layers": (group.model_copy(update={"attention": attention}),)})

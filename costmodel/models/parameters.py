"""Every parameter tensor of a model: name, shape and how tensor parallelism cuts it.

The tensors are those that transformers builds from the model's ``hf_config``, under their fully qualified names and in
the order of ``model.parameters()``; a tied head is the token embedding and appears once, among the embedding's tensors.

Tensor parallelism is Megatron's column -> row split (arXiv 1909.08053, section 3): query, key, value, gate and up
projections are cut along their output, output and down projections along their input, and the bias of a row-wise
projection stays whole. ``tensor_parallel_dim`` is the dim *of the tensor as stored*: ``torch.nn.Linear`` stores
[out, in], GPT-2's ``Conv1D`` stores [in, out].

    (1) parameters of a gated layer without biases   = h a d + 2 h k d + a d h + 3 h f + 2 h
    (2) parameters of a GPT layer                    = 12 h^2 + 13 h              with f = 4 h and a d = k d = h

    h hidden size, a query heads, k key-value heads, d head size, f feed-forward size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from costmodel.specs import LayerGroup, ModelSpec

Family = Literal["llama", "gpt"]
Norm = Literal["rmsnorm", "layernorm"]


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """One parameter as transformers stores it.

    ``tensor_parallel_dim`` is the dim that tensor parallelism cuts, None where every rank holds the whole tensor.
    ``split_parts`` is the number of equal blocks along that dim that are each cut by themselves: 3 for GPT-2's fused
    query, key and value, so that every rank gets whole heads of all three.
    """

    name: str
    shape: tuple[int, ...]
    tensor_parallel_dim: int | None = None
    split_parts: int = 1

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)


def layer_tensors(model: ModelSpec, index: int) -> tuple[ParameterTensor, ...]:
    """Tensors of transformer layer ``index`` (0-based).

    Raises:
        IndexError: when the model has no such layer.
    """
    return _layer_tensors(model.family, model.norm, model.hidden_size, _group(model, index), index)


def embedding_tensors(model: ModelSpec) -> tuple[ParameterTensor, ...]:
    """The token embedding [padded vocabulary, h] and, where they are learned, the position embeddings [positions, h].

    The token embedding's ``tensor_parallel_dim`` is 0 (vocabulary); a runtime that cuts it otherwise overrides it with
    its own ``embedding_tensor_parallel``.
    """
    table = (model.padded_vocab_size, model.hidden_size)
    if model.family == "llama":
        return (ParameterTensor("model.embed_tokens.weight", table, 0),)
    tokens = ParameterTensor("transformer.wte.weight", table, 0)
    if not model.learned_position_embeddings:
        return (tokens,)
    return (tokens, ParameterTensor("transformer.wpe.weight", (model.max_position_embeddings, model.hidden_size)))


def head_tensors(model: ModelSpec) -> tuple[ParameterTensor, ...]:
    """The final norm and, unless it is tied to the token embedding, the head [padded vocabulary, h]."""
    norm = "model.norm" if model.family == "llama" else "transformer.ln_f"
    tensors = _norm(norm, model.norm, model.hidden_size)
    if model.tie_word_embeddings:
        return tensors
    return (*tensors, ParameterTensor("lm_head.weight", (model.padded_vocab_size, model.hidden_size), 0))


def model_tensors(model: ModelSpec) -> tuple[ParameterTensor, ...]:
    """All tensors in the order of ``model.parameters()``."""
    layers = (tensor for index in range(model.num_hidden_layers) for tensor in layer_tensors(model, index))
    return (*embedding_tensors(model), *layers, *head_tensors(model))


def num_layer_parameters(model: ModelSpec, index: int) -> int:
    """Parameters of layer ``index``, equations (1) and (2) and their variants with biases and query-key norms.

    Raises:
        IndexError: when the model has no such layer.
    """
    return _num_layer_parameters(model.family, model.norm, model.hidden_size, _group(model, index))


def num_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model; a tied head counts once."""
    layers = sum(
        group.count * _num_layer_parameters(model.family, model.norm, model.hidden_size, group)
        for group in model.layers
    )
    return layers + sum(tensor.num_elements for tensor in (*embedding_tensors(model), *head_tensors(model)))


def _group(model: ModelSpec, index: int) -> LayerGroup:
    if index < 0:
        raise IndexError(f"layers are counted from 0, found {index}")
    return model.layer(index)


@lru_cache(maxsize=4096)
def _layer_tensors(
    family: Family, norm: Norm, hidden_size: int, group: LayerGroup, index: int
) -> tuple[ParameterTensor, ...]:
    build = _llama_layer if family == "llama" else _gpt_layer
    return build(norm, hidden_size, group, index)


@lru_cache(maxsize=256)
def _num_layer_parameters(family: Family, norm: Norm, hidden_size: int, group: LayerGroup) -> int:
    return sum(tensor.num_elements for tensor in _layer_tensors(family, norm, hidden_size, group, 0))


def _llama_layer(norm: Norm, hidden_size: int, group: LayerGroup, index: int) -> tuple[ParameterTensor, ...]:
    attention, feed_forward = group.attention, group.feed_forward
    head_dim, width = attention.head_dim, feed_forward.intermediate_size
    query_size, key_size = attention.num_attention_heads * head_dim, attention.num_key_value_heads * head_dim
    layer = f"model.layers.{index}"
    attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    qk_norms = ("q_norm", "k_norm") if attention.qk_norm else ()
    up = ("gate_proj", "up_proj") if feed_forward.gated else ("up_proj",)
    return (
        *_column(f"{attn}.q_proj", hidden_size, query_size, bias=attention.qkv_bias),
        *_column(f"{attn}.k_proj", hidden_size, key_size, bias=attention.qkv_bias),
        *_column(f"{attn}.v_proj", hidden_size, key_size, bias=attention.qkv_bias),
        *_row(f"{attn}.o_proj", query_size, hidden_size, bias=attention.output_bias),
        *(ParameterTensor(f"{attn}.{name}.weight", (head_dim,)) for name in qk_norms),
        *(tensor for name in up for tensor in _column(f"{mlp}.{name}", hidden_size, width, bias=feed_forward.bias)),
        *_row(f"{mlp}.down_proj", width, hidden_size, bias=feed_forward.bias),
        *_norm(f"{layer}.input_layernorm", norm, hidden_size),
        *_norm(f"{layer}.post_attention_layernorm", norm, hidden_size),
    )


def _gpt_layer(norm: Norm, hidden_size: int, group: LayerGroup, index: int) -> tuple[ParameterTensor, ...]:
    attention, width = group.attention, group.feed_forward.intermediate_size
    query_size = attention.num_attention_heads * attention.head_dim
    fused_size = query_size + 2 * attention.num_key_value_heads * attention.head_dim
    layer = f"transformer.h.{index}"
    return (
        *_norm(f"{layer}.ln_1", norm, hidden_size),
        ParameterTensor(f"{layer}.attn.c_attn.weight", (hidden_size, fused_size), 1, split_parts=3),
        ParameterTensor(f"{layer}.attn.c_attn.bias", (fused_size,), 0, split_parts=3),
        ParameterTensor(f"{layer}.attn.c_proj.weight", (query_size, hidden_size), 0),
        ParameterTensor(f"{layer}.attn.c_proj.bias", (hidden_size,)),
        *_norm(f"{layer}.ln_2", norm, hidden_size),
        ParameterTensor(f"{layer}.mlp.c_fc.weight", (hidden_size, width), 1),
        ParameterTensor(f"{layer}.mlp.c_fc.bias", (width,), 0),
        ParameterTensor(f"{layer}.mlp.c_proj.weight", (width, hidden_size), 0),
        ParameterTensor(f"{layer}.mlp.c_proj.bias", (hidden_size,)),
    )


def _column(name: str, in_size: int, out_size: int, *, bias: bool) -> tuple[ParameterTensor, ...]:
    weight = ParameterTensor(f"{name}.weight", (out_size, in_size), 0)
    return (weight, ParameterTensor(f"{name}.bias", (out_size,), 0)) if bias else (weight,)


def _row(name: str, in_size: int, out_size: int, *, bias: bool) -> tuple[ParameterTensor, ...]:
    weight = ParameterTensor(f"{name}.weight", (out_size, in_size), 1)
    return (weight, ParameterTensor(f"{name}.bias", (out_size,))) if bias else (weight,)


def _norm(name: str, norm: Norm, size: int) -> tuple[ParameterTensor, ...]:
    weight = ParameterTensor(f"{name}.weight", (size,))
    return (weight, ParameterTensor(f"{name}.bias", (size,))) if norm == "layernorm" else (weight,)

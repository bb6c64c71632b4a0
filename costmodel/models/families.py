"""How transformers builds a layer of each model family: what is fused, how many norms, what the tensors are called.

Tensors stand in the order in which transformers registers them. Families:

    llama   llama, mistral, qwen2, qwen3: separate projections, a norm before attention and one before the feed-forward
    gpt     gpt2: fused query, key and value in ``Conv1D`` modules, which store [in, out]
    gemma   gemma2: as llama, with a norm after attention and after the feed-forward besides
    phi     phi3: as llama, with query, key and value fused, and gate and up
    neox    gpt_neox: query, key and value fused head by head, so that a plain cut gives whole heads
    opt     opt: separate projections with biases, learned positions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from costmodel.models.tensor import ParameterTensor
from costmodel.specs import LayerGroup

Norm = Literal["rmsnorm", "layernorm"]
Tensors = tuple[ParameterTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family.

    ``base`` holds everything but the head; ``layers``, ``tokens``, ``positions`` and ``norm`` are names inside it.
    ``position_offset`` are rows of the position table before that of position 0. ``wide_norm``: the norm multiplies by 1 +
    its weight in float32, before it returns to the compute format. ``norm_first``: the final norm is registered before the
    layers. ``join_accesses``: what backward moves per element of fused query, key and value to join their gradients.
    ``scales_queries``: queries are scaled in an operation of their own.
    """

    layer: Callable[[str, Norm, int, LayerGroup], Tensors]
    base: str
    layers: str
    tokens: str
    norm: str
    positions: str = ""
    position_offset: int = 0
    num_norms: int = 2
    fused_query_key_value: bool = False
    fused_gate: bool = False
    wide_norm: bool = False
    norm_first: bool = False
    join_accesses: float = 2.0
    scales_queries: bool = False

    @property
    def ends_in_norm(self) -> bool:
        """Whether a layer's last product is normalised: backward needs it, so a layer that is recomputed makes it again."""
        return self.num_norms > 2

    @property
    def cut_from_product(self) -> bool:
        """Whether v is a part of a fused product whose q and k are rotated into tensors of their own."""
        return self.fused_query_key_value and not self.positions


def _llama_layer(layer: str, norm: Norm, hidden_size: int, group: LayerGroup) -> Tensors:
    norms = ("input_layernorm", "post_attention_layernorm")
    return _separate_layer(layer, hidden_size, group) + _norms(layer, norms, norm, hidden_size)


def _gemma_layer(layer: str, norm: Norm, hidden_size: int, group: LayerGroup) -> Tensors:
    feed_forward_norms = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
    names = ("input_layernorm", "post_attention_layernorm", *feed_forward_norms)
    return _separate_layer(layer, hidden_size, group) + _norms(layer, names, norm, hidden_size)


def _separate_layer(layer: str, hidden_size: int, group: LayerGroup) -> Tensors:
    """Projections of their own for query, key, value, gate and up."""
    attention, feed_forward = group.attention, group.feed_forward
    query_size, key_size = _head_sizes(group)
    attn, mlp, width = f"{layer}.self_attn", f"{layer}.mlp", feed_forward.intermediate_size
    qk_norms = ("q_norm", "k_norm") if attention.qk_norm else ()
    up = ("gate_proj", "up_proj") if feed_forward.gated else ("up_proj",)
    return (
        *column(f"{attn}.q_proj", hidden_size, query_size, bias=attention.qkv_bias),
        *column(f"{attn}.k_proj", hidden_size, key_size, bias=attention.qkv_bias),
        *column(f"{attn}.v_proj", hidden_size, key_size, bias=attention.qkv_bias),
        *row(f"{attn}.o_proj", query_size, hidden_size, bias=attention.output_bias),
        *(ParameterTensor(f"{attn}.{name}.weight", (attention.head_dim,)) for name in qk_norms),
        *(tensor for name in up for tensor in column(f"{mlp}.{name}", hidden_size, width, bias=feed_forward.bias)),
        *row(f"{mlp}.down_proj", width, hidden_size, bias=feed_forward.bias),
    )


def _phi_layer(layer: str, norm: Norm, hidden_size: int, group: LayerGroup) -> Tensors:
    (query_size, key_size), width = _head_sizes(group), group.feed_forward.intermediate_size
    heads, halves = (query_size, key_size, key_size), (width, width)
    return (
        *row(f"{layer}.self_attn.o_proj", query_size, hidden_size, bias=False),
        *column(f"{layer}.self_attn.qkv_proj", hidden_size, sum(heads), bias=False, parts=heads),
        *column(f"{layer}.mlp.gate_up_proj", hidden_size, 2 * width, bias=False, parts=halves),
        *row(f"{layer}.mlp.down_proj", width, hidden_size, bias=False),
        *_norms(layer, ("input_layernorm", "post_attention_layernorm"), norm, hidden_size),
    )


def _gpt_layer(layer: str, norm: Norm, hidden_size: int, group: LayerGroup) -> Tensors:
    (query_size, key_size), width = _head_sizes(group), group.feed_forward.intermediate_size
    parts = (query_size, key_size, key_size)
    return (
        *_norms(layer, ("ln_1",), norm, hidden_size),
        ParameterTensor(f"{layer}.attn.c_attn.weight", (hidden_size, sum(parts)), 1, parts),
        ParameterTensor(f"{layer}.attn.c_attn.bias", (sum(parts),), 0, parts),
        ParameterTensor(f"{layer}.attn.c_proj.weight", (query_size, hidden_size), 0),
        ParameterTensor(f"{layer}.attn.c_proj.bias", (hidden_size,)),
        *_norms(layer, ("ln_2",), norm, hidden_size),
        ParameterTensor(f"{layer}.mlp.c_fc.weight", (hidden_size, width), 1),
        ParameterTensor(f"{layer}.mlp.c_fc.bias", (width,), 0),
        ParameterTensor(f"{layer}.mlp.c_proj.weight", (width, hidden_size), 0),
        ParameterTensor(f"{layer}.mlp.c_proj.bias", (hidden_size,)),
    )


def _neox_layer(layer: str, norm: Norm, hidden_size: int, group: LayerGroup) -> Tensors:
    attention, width = group.attention, group.feed_forward.intermediate_size
    attn, mlp = f"{layer}.attention", f"{layer}.mlp"
    return (
        *_norms(layer, ("input_layernorm", "post_attention_layernorm"), norm, hidden_size),
        *column(f"{attn}.query_key_value", hidden_size, 3 * hidden_size, bias=attention.qkv_bias),
        *row(f"{attn}.dense", hidden_size, hidden_size, bias=attention.output_bias),
        *column(f"{mlp}.dense_h_to_4h", hidden_size, width, bias=group.feed_forward.bias),
        *row(f"{mlp}.dense_4h_to_h", width, hidden_size, bias=group.feed_forward.bias),
    )


def _opt_layer(layer: str, norm: Norm, hidden_size: int, group: LayerGroup) -> Tensors:
    attention, feed_forward = group.attention, group.feed_forward
    names = (f"{layer}.self_attn.{part}_proj" for part in "kvq")
    return (
        *(tensor for name in names for tensor in column(name, hidden_size, hidden_size, bias=attention.qkv_bias)),
        *row(f"{layer}.self_attn.out_proj", hidden_size, hidden_size, bias=attention.output_bias),
        *_norms(layer, ("self_attn_layer_norm",), norm, hidden_size),
        *column(f"{layer}.fc1", hidden_size, feed_forward.intermediate_size, bias=feed_forward.bias),
        *row(f"{layer}.fc2", feed_forward.intermediate_size, hidden_size, bias=feed_forward.bias),
        *_norms(layer, ("final_layer_norm",), norm, hidden_size),
    )


def _head_sizes(group: LayerGroup) -> tuple[int, int]:
    """Elements of all queries, and of all keys, of one token."""
    attention = group.attention
    return attention.num_attention_heads * attention.head_dim, attention.num_key_value_heads * attention.head_dim


def column(name: str, in_size: int, out_size: int, *, bias: bool, parts: tuple[int, ...] = ()) -> Tensors:
    """A ``torch.nn.Linear`` cut along its output."""
    weight = ParameterTensor(f"{name}.weight", (out_size, in_size), 0, parts)
    return (weight, ParameterTensor(f"{name}.bias", (out_size,), 0, parts)) if bias else (weight,)


def row(name: str, in_size: int, out_size: int, *, bias: bool) -> Tensors:
    """A ``torch.nn.Linear`` cut along its input, whose bias stays whole."""
    weight = ParameterTensor(f"{name}.weight", (out_size, in_size), 1)
    return (weight, ParameterTensor(f"{name}.bias", (out_size,))) if bias else (weight,)


def norm_tensors(name: str, norm: Norm, size: int) -> Tensors:
    """Weight and, of a layer norm, bias."""
    weight = ParameterTensor(f"{name}.weight", (size,))
    return (weight, ParameterTensor(f"{name}.bias", (size,))) if norm == "layernorm" else (weight,)


def _norms(layer: str, names: tuple[str, ...], norm: Norm, size: int) -> Tensors:
    return tuple(tensor for name in names for tensor in norm_tensors(f"{layer}.{name}", norm, size))


FAMILIES: Mapping[str, Family] = {
    "llama": Family(layer=_llama_layer, base="model", layers="layers", tokens="embed_tokens", norm="norm"),
    "gpt": Family(
        layer=_gpt_layer,
        base="transformer",
        layers="h",
        tokens="wte",
        positions="wpe",
        norm="ln_f",
        fused_query_key_value=True,
    ),
    "gemma": Family(
        layer=_gemma_layer,
        base="model",
        layers="layers",
        tokens="embed_tokens",
        norm="norm",
        num_norms=4,
        wide_norm=True,
    ),
    "phi": Family(
        layer=_phi_layer,
        base="model",
        layers="layers",
        tokens="embed_tokens",
        norm="norm",
        fused_query_key_value=True,
        fused_gate=True,
        join_accesses=10.0,
    ),
    "neox": Family(
        layer=_neox_layer,
        base="gpt_neox",
        layers="layers",
        tokens="embed_in",
        norm="final_layer_norm",
        fused_query_key_value=True,
        join_accesses=4.0,
    ),
    "opt": Family(
        layer=_opt_layer,
        base="model.decoder",
        layers="layers",
        tokens="embed_tokens",
        positions="embed_positions",
        position_offset=2,
        norm="final_layer_norm",
        norm_first=True,
        scales_queries=True,
    ),
}

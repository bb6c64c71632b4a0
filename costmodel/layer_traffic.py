"""Bytes that everything but products and attention moves in one layer: norms, additions, rotary positions, activations, biases.

Elements per rank of a micro-batch with T tokens, T' between tensor-parallel blocks, tensor parallel size t, hidden size h,
a query and k key-value heads of size d, feed-forward size f, each times the runtime's accesses:

    (1) norms h T' each, query and key norms (a + k) d T / t
    (2) residual additions, 3 x 2 h T' in each direction
    (3) activation f T / t
    (4) rotary positions r (a + k) d T / t, r the share of a head that is turned
    (5) backward's sums of input gradients of separate projections, 3 h T each, or joining of the gradients of the parts of a
        fused one, j (a + 2 k) d T / t: j = 2 where autograd concatenates them, 4 where they are transposed too (gpt_neox),
        10 where each part is a slice written into zeros, and the three are added up (phi3); gate and up 4 f T / t
    (6) where q and k are parts of a fused product (phi3, gpt_neox): forward the concatenation of turned and other dims,
        2 (a + k) d T / t, and the copied output of attention, 2 a d T / t; backward slices and sums, 4 (a + k) d T / t,
        6 where r < 1; opt scales its q in a product of its own, 2 a d T / t in each direction
    (7) one read of every output that has a bias

Counted with a TorchDispatchMode on one layer, transformers 5.24.0, torch 2.13.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.compute import Column, Roofline
from costmodel.models.families import FAMILIES
from costmodel.specs import LayerGroup, ModelSpec
from costmodel.stack import Stack

if TYPE_CHECKING:
    from costmodel.layers import MicroBatch

CAP_ACCESSES = (6.0, 7.0)
"""Per capped score or logit, forward and backward: division, tanh and product are kernels of their own."""


def fuses_projections(model: ModelSpec, stack: Stack) -> bool:
    """Whether query, key and value are one product; some families' code always has it so."""
    return stack.fused_projections > 0 or FAMILIES[model.family].fused_query_key_value


def norm_bytes(model: ModelSpec, stack: Stack, *, elements: Column, element_bytes: int) -> tuple[Column, Column]:
    """Bytes moved by a norm over ``elements``, forward and backward; torch's layer norm is one kernel in each direction."""
    if model.norm == "layernorm":
        moved = stack.elementwise_traffic * elements * element_bytes
        return 2.0 * moved, 3.0 * moved
    moved = stack.elementwise_traffic * elements * max(stack.rmsnorm_least_bytes, element_bytes)
    return stack.rmsnorm_forward_accesses * moved, stack.rmsnorm_backward_accesses * moved


def moved_bytes(
    model: ModelSpec, group: LayerGroup, *, batch: MicroBatch, ceiling: Roofline, stack: Stack
) -> tuple[Column, Column]:
    """All of the module's bytes, forward and backward."""
    attention, feed_forward = group.attention, group.feed_forward
    share, hidden = batch.tokens / batch.tensor_parallel, float(model.hidden_size)
    heads = (attention.num_attention_heads + attention.num_key_value_heads) * attention.head_dim
    norms = FAMILIES[model.family].num_norms * hidden * batch.shard_tokens
    norms = norms + (heads * share if attention.qk_norm else 0.0)
    norm, norm_backward = norm_bytes(model, stack, elements=norms, element_bytes=ceiling.element_bytes)
    gates, (act, act_backward) = feed_forward.intermediate_size * share, _activation_accesses(group, stack)
    turned, turned_backward = _head_elements(model, group, stack)
    additions = 6.0 * hidden * batch.shard_tokens
    forward = additions + turned * share + act * gates
    backward = additions + turned_backward * share + act_backward * gates + _joins(model, group, batch, stack)
    backward = backward + _biased_outputs(model, group, batch)
    width = stack.elementwise_traffic * ceiling.element_bytes
    return norm + forward * width, norm_backward + backward * width


def _head_elements(model: ModelSpec, group: LayerGroup, stack: Stack) -> tuple[float, float]:
    """Elements per token of all ranks together, forward and backward, equations (4) and (6)."""
    attention, turned = group.attention, group.attention.partial_rotary_factor
    family, queries = FAMILIES[model.family], float(attention.num_attention_heads * attention.head_dim)
    if model.learned_position_embeddings:
        return 2.0 * queries * family.scales_queries, 2.0 * queries * family.scales_queries
    heads = queries + attention.num_key_value_heads * attention.head_dim
    forward, backward = stack.rotary_forward_accesses * turned, stack.rotary_backward_accesses * turned
    if not family.cut_from_product:
        return forward * heads, backward * heads
    return (forward + 2.0) * heads + 2.0 * queries, (backward + (4.0 if turned == 1.0 else 6.0)) * heads


def _joins(model: ModelSpec, group: LayerGroup, batch: MicroBatch, stack: Stack) -> Column:
    """Equation (5)."""
    attention, family = group.attention, FAMILIES[model.family]
    if not fuses_projections(model, stack):
        return (2.0 + group.feed_forward.gated) * 3.0 * model.hidden_size * batch.tokens
    heads = (attention.num_attention_heads + 2 * attention.num_key_value_heads) * attention.head_dim
    gates = 4.0 * group.feed_forward.intermediate_size * family.fused_gate
    return (family.join_accesses * heads + gates) * batch.tokens / batch.tensor_parallel


def _activation_accesses(group: LayerGroup, stack: Stack) -> tuple[float, float]:
    """Accesses per element of the feed-forward's activation, forward and backward; 2 and 3 in one kernel."""
    if group.feed_forward.gated:
        return stack.gate_forward_accesses, stack.gate_backward_accesses
    if group.feed_forward.activation == "gelu_new":
        return stack.new_gelu_forward_accesses, stack.new_gelu_backward_accesses
    return 2.0, 3.0


def _biased_outputs(model: ModelSpec, group: LayerGroup, batch: MicroBatch) -> Column:
    """Equation (7)."""
    attention, feed_forward = group.attention, group.feed_forward
    share = batch.tokens / batch.tensor_parallel
    heads = (attention.num_attention_heads + 2.0 * attention.num_key_value_heads) * attention.head_dim
    whole = (float(attention.output_bias) + float(feed_forward.bias)) * model.hidden_size * batch.shard_tokens
    return whole + (attention.qkv_bias * heads + feed_forward.bias * feed_forward.intermediate_size) * share

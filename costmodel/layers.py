"""What one rank computes for one micro-batch in one layer, in the embedding and in the head: seconds by kernel kind, FLOP.

Per rank, with tokens T = micro batch x sequence length s / context parallel size c, tensor parallel size t, hidden size h,
a query and k key-value heads of size d, feed-forward size f (g = 2 when gated, else 1), padded vocabulary V, T' = T / t
with sequence parallelism and T without:

    (1) projections: [T, h] x [h, (a + 2k) d / t], [T, a d / t] x [a d / t, h], [T, h] x [h, g f / t], [T, f / t] x [f / t, h]
    (2) scores of one sequence and head: s^2 unmasked, s^2 / 2 causal, w s - w^2 / 2 with a window w < s; a rank computes
        1 / c of them
    (3) attention FLOP forward: 4 d per score; unfused kernels compute all s^2, fused ones only the causal part and of that
        the window's. A fused kernel that is given the window as a mask tensor computes all s^2 too, at `flash_1_rate` on
        CUDA, and reads (1 + e) s^2 bytes of the mask's two formats first (e bytes per element)
    (4) elements moved by everything else: layer_traffic.py
    (5) gradient accumulation: reads and writes every gradient of the part once per micro-batch; a runtime that fuses it
        moves these bytes inside the weight-gradient products
    (6) head: [T, h] x [h, V / t] and the loss over T V / t logits (T V where the logits are gathered first); over n > 1
        chunks n products of T / n rows, and backward repeats the forward's products and loss

Projections in fp8 have ceilings of their own and cast their operands (fp8.py).

A backward multiplies twice for every forward product (input and weight gradient), each at the forward's cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import Column, Roofline, batched_matmul_seconds, matmul_seconds, stream_seconds
from costmodel.fp8 import cast_bytes
from costmodel.layer_traffic import CAP_ACCESSES, fuses_projections, moved_bytes, norm_bytes
from costmodel.specs import BYTES_PER_ELEMENT, AttentionSpec, LayerGroup, ModelSpec, TrainingSpec
from costmodel.stack import Stack


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One micro-batch as a rank sees it, in columns; ``sequence_length`` is the same everywhere.

    ``wrapped`` is 1 where layers are wrapped for data parallelism; ``*_collectives`` are the gathers and reductions of one
    layer's parameters in one pass. ``context_parallel`` devices share every sequence, by `CONTEXT_PARALLEL_METHODS`
    [``context_method``]. ``weight_casts``: how often a weight is cast to 8 bits, where it is.
    """

    sequences: Column
    sequence_length: int
    tensor_parallel: Column
    sequence_parallel: Column
    loss_parallel: Column
    wrapped: Column
    forward_collectives: Column
    backward_collectives: Column
    context_parallel: Column | float = 1.0
    context_method: NDArray[np.int64] | int = 0
    weight_casts: Column | float = 1.0

    @cached_property
    def tokens(self) -> Column:
        """T."""
        return self.sequences * float(self.sequence_length) / self.context_parallel

    @cached_property
    def shard_tokens(self) -> Column:
        """T': tokens outside the tensor-parallel blocks."""
        return self.tokens / np.where(self.sequence_parallel > 0, self.tensor_parallel, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """One pass of one part of the model through one rank: seconds by kind of kernel, and executed FLOP."""

    matmul: Column
    attention: Column
    stream: Column
    flops: Column


def causal_scores(length: int, window: int | None) -> float:
    """Scores of one sequence and head that a causal mask (and window) keeps, equation (2)."""
    if window is None or window >= length:
        return length * length / 2.0
    return window * length - window * window / 2.0


def projections(
    model: ModelSpec, group: LayerGroup, tensor_parallel: Column, *, fused: bool
) -> list[tuple[Column, Column]]:
    """(inner, outer) sizes of a layer's projections on one rank, equation (1); separate q, k, v and gate, up unless fused.

    Key-value heads fewer than tensor ranks are held by several of them.
    """
    attention, feed_forward = group.attention, group.feed_forward
    hidden = np.full(tensor_parallel.shape, float(model.hidden_size))
    query = attention.num_attention_heads * attention.head_dim / tensor_parallel
    key = np.maximum(1.0, attention.num_key_value_heads / tensor_parallel) * attention.head_dim
    width = feed_forward.intermediate_size / tensor_parallel
    gates = 2 if feed_forward.gated else 1
    first = [(hidden, query + 2 * key)] if fused else [(hidden, query), (hidden, key), (hidden, key)]
    up = [(hidden, gates * width)] if fused else [(hidden, width)] * gates
    return [*first, (query, hidden), *up, (width, hidden)]


def layer_passes(
    model: ModelSpec, group: LayerGroup, training: TrainingSpec, *, batch: MicroBatch, ceiling: Roofline, stack: Stack
) -> tuple[PassCost, PassCost, PassCost, PassCost]:
    """Forward, backward, the attention part of the forward alone, and the forward without attention and every second product.

    The last two are what ``core_attention`` and ``op_policy`` recomputation repeat.

    ``stream`` of the backward excludes separate gradient accumulation, see `accumulation_seconds`.
    """
    pairs = projections(model, group, batch.tensor_parallel, fused=fuses_projections(model, stack))
    inner, outer = (np.stack(column) for column in zip(*pairs, strict=True))
    costs = product_passes(
        training, rows=batch.tokens, sizes=(inner, outer), ceiling=ceiling.of_projections, stack=stack
    )
    products, products_backward, flops = (column.sum(axis=0) for column in costs)
    core, core_backward = _attention_passes(group.attention, training, batch=batch, ceiling=ceiling, stack=stack)
    moved, moved_backward = moved_bytes(model, group, batch=batch, ceiling=ceiling, stack=stack)
    casts, casts_backward = _cast_bytes(training, pairs, batch)
    moved, moved_backward = moved + casts, moved_backward + casts_backward
    again, _, flops_again = (column[1::2].sum(axis=0) for column in costs)
    policy = PassCost(matmul=again, attention=0.0 * again, stream=stream_seconds(ceiling, moved), flops=flops_again)
    forward = PassCost(
        matmul=products,
        attention=core.attention,
        stream=stream_seconds(ceiling, moved),
        flops=flops + core.flops,
    )
    backward = PassCost(
        matmul=products_backward,
        attention=core_backward.attention,
        stream=stream_seconds(ceiling, moved_backward),
        flops=2.0 * flops + core_backward.flops,
    )
    return forward, backward, core, policy


def product_passes(
    training: TrainingSpec, *, rows: Column, sizes: tuple[Column, Column], ceiling: Roofline, stack: Stack
) -> tuple[Column, Column, Column]:
    """Seconds of one product forward, of its two products backward, and its forward FLOP; sizes may stack products."""
    inner, outer = sizes
    product, flops = matmul_seconds(ceiling, rows=rows, inner=inner, outer=outer), 2.0 * rows * inner * outer
    if not stack.fused_accumulation:
        return product, product + product, flops
    accumulated = 2.0 * BYTES_PER_ELEMENT[training.precision.gradient] * inner * outer * stack.fused_accumulation
    weight_gradient = matmul_seconds(ceiling, rows=rows, inner=inner, outer=outer, extra_bytes=accumulated)
    return product, product + weight_gradient, flops


def _cast_bytes(
    training: TrainingSpec, pairs: list[tuple[Column, Column]], batch: MicroBatch
) -> tuple[Column | float, Column | float]:
    """Bytes that casting the operands of the projections to 8 bits moves, forward and backward; fp8.py, (2) and (3)."""
    if training.precision.fp8_recipe is None:
        return 0.0, 0.0
    inner, outer = (np.sum(column, axis=0) for column in zip(*pairs, strict=True))
    weights = batch.weight_casts * np.sum([size[0] * size[1] for size in pairs], axis=0)
    each = cast_bytes(training.precision.fp8_recipe)
    return each * (batch.tokens * inner + weights), each * batch.tokens * outer


def _attention_passes(
    attention: AttentionSpec, training: TrainingSpec, *, batch: MicroBatch, ceiling: Roofline, stack: Stack
) -> tuple[PassCost, PassCost]:
    """softmax(QK^T)V forward and backward, equation (3); an unfused one also moves the score matrix.

    Capped scores have no fused kernel.
    """
    maps = batch.sequences * attention.num_attention_heads / batch.tensor_parallel / batch.context_parallel
    length, zero = float(batch.sequence_length), np.zeros(maps.shape)
    capped = attention.attn_logit_softcapping is not None
    if training.attention_implementation == "fused" and not capped:
        return _fused_passes(attention, batch.sequence_length, maps=maps, ceiling=ceiling, stack=stack)
    flops = 4.0 * attention.head_dim * maps * length * length
    product = batched_matmul_seconds(ceiling, batch=maps, length=length, head_dim=attention.head_dim)
    scores = stream_seconds(ceiling, maps * length * length * stack.score_traffic_bytes)
    cap = stream_seconds(ceiling, maps * length * length * ceiling.element_bytes * stack.elementwise_traffic * capped)
    forward = PassCost(matmul=zero, attention=2.0 * product + scores + CAP_ACCESSES[0] * cap, stream=zero, flops=flops)
    backward_seconds = 4.0 * product + scores * stack.score_backward_ratio + CAP_ACCESSES[1] * cap
    return forward, PassCost(matmul=zero, attention=backward_seconds, stream=zero, flops=2.0 * flops)


def _fused_passes(
    attention: AttentionSpec, length: int, *, maps: Column, ceiling: Roofline, stack: Stack
) -> tuple[PassCost, PassCost]:
    """Fused attention over ``maps`` score matrices, which are not kept; equation (3)."""
    masked = bool(stack.masked_windows) and attention.slides_over(length)
    scores = float(length * length) if masked else causal_scores(length, attention.window)
    flops, zero = 4.0 * attention.head_dim * maps * scores, np.zeros(maps.shape)
    seconds = flops / (ceiling.attention_flops_per_second * _fused_rate(ceiling, stack, masked=masked))
    converted = stream_seconds(ceiling, zero + (1.0 + ceiling.element_bytes) * length * length) if masked else zero
    work, rate = stack.attention_backward_flops_ratio, stack.attention_backward_rate_ratio
    forward = PassCost(matmul=zero, attention=seconds + converted, stream=zero, flops=flops)
    return forward, PassCost(matmul=zero, attention=seconds * work / rate, stream=zero, flops=flops * work)


def _fused_rate(ceiling: Roofline, stack: Stack, *, masked: bool) -> float:
    """Rate of the stack's fused kernel over FlashAttention-2's; version 3 and cuDNN's gain exist on Hopper only.

    FlashAttention takes no mask. What torch runs instead on CUDA, CUTLASS's memory-efficient kernel, is as fast as version 1
    (arXiv 2307.08691, section 4.1); cuDNN's, which it prefers on Hopper and Blackwell, was not measured with a mask. A CPU has
    one kernel for both.
    """
    if stack.flash_version == 1 or (masked and ceiling.asynchronous):
        return stack.flash_1_rate
    return stack.flash_3_rate if stack.flash_version == 3 and ceiling.is_hopper else 1.0


def accumulation_seconds(training: TrainingSpec, *, parameters: Column, ceiling: Roofline) -> Column:
    """Adding one micro-batch's gradients to the accumulated ones in kernels of their own, equation (5)."""
    return stream_seconds(ceiling, 2.0 * BYTES_PER_ELEMENT[training.precision.gradient] * parameters)


def embedding_passes(model: ModelSpec, *, batch: MicroBatch, ceiling: Roofline) -> tuple[PassCost, PassCost]:
    """Embedding look-up forward; backward writes a dense gradient of the table besides reading the activations' one."""
    zero = np.zeros(batch.tokens.shape)
    rows = 2.0 * batch.tokens * model.hidden_size
    table = model.padded_vocab_size * model.hidden_size / batch.tensor_parallel
    forward = stream_seconds(ceiling, rows * ceiling.element_bytes)
    backward = stream_seconds(ceiling, (rows + table) * ceiling.element_bytes)
    return (
        PassCost(matmul=zero, attention=zero, stream=forward, flops=zero),
        PassCost(matmul=zero, attention=zero, stream=backward, flops=zero),
    )


def head_passes(
    model: ModelSpec, training: TrainingSpec, *, batch: MicroBatch, ceiling: Roofline, stack: Stack
) -> tuple[PassCost, PassCost]:
    """Final norm, head and loss, equation (6)."""
    zero = np.zeros(batch.tokens.shape)
    hidden, columns = np.full(zero.shape, float(model.hidden_size)), model.padded_vocab_size / batch.tensor_parallel
    chunks, again = float(training.loss_chunks), float(training.loss_chunks > 1)
    product, product_backward, flops = (
        chunks * each
        for each in product_passes(
            training, rows=batch.tokens / chunks, sizes=(hidden, columns), ceiling=ceiling, stack=stack
        )
    )
    logits = batch.tokens * np.where(batch.loss_parallel > 0, columns, float(model.padded_vocab_size))
    elements = batch.shard_tokens * model.hidden_size
    norm, norm_backward = norm_bytes(model, stack, elements=elements, element_bytes=ceiling.element_bytes)
    cap = ceiling.element_bytes * stack.elementwise_traffic * (model.final_logit_softcapping is not None)
    loss = logits * (stack.logits_forward_bytes + CAP_ACCESSES[0] * cap)
    loss_backward = logits * (stack.logits_backward_bytes + CAP_ACCESSES[1] * cap)
    forward = stream_seconds(ceiling, norm + loss)
    backward = stream_seconds(ceiling, norm_backward + loss_backward + again * loss)
    return (
        PassCost(matmul=product, attention=zero, stream=forward, flops=flops),
        PassCost(
            matmul=product_backward + again * product, attention=zero, stream=backward, flops=(2.0 + again) * flops
        ),
    )

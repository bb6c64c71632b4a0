"""Over how many devices a sequence is cut, and how: the context-parallel sizes and methods that are searched.

Sizes: 1, and where the runtime cuts sequences of fused attention the powers of two that leave each of c devices at least
`LEAST_TOKENS` of a sequence of s tokens, so that sequences below 8,192 tokens are not cut. A ring's message of T = s / c tokens
hides behind the attention beside it where

    2 T k d e / B <= 4 d a (T s / 2) / (c F), so T >= (k / a) e F / B                                               (1)

(k key-value and a query heads of size d, e bytes per element, B bytes and F FLOP per second): about 3,500 tokens for a device of
700 TFLOP/s behind 50 GB/s with 8 query heads to a key-value head, or behind NVLink where every head has its own. With less left
to each device attention is shared at the price of waiting, while tensor, pipeline and data parallelism share the same work.

Methods, of those that the runtime has:

    (2) all_gather never beats ring, which sends the same bytes forward and backward in as many or fewer phases, hides some of
        them, and holds 4 K for backward where all_gather holds 2 c K (costmodel/context_parallel.py, (2), (3) and (6)). It is
        searched where the runtime has no ring.
    (3) all_to_all joins ring where some layer's exchanges take less than what of its ring is exposed for certain: beside
        attention at the device's peak, of one sequence. That is a choice of what is declared, no bound: exchanges hold fewer
        buffers

Stated sizes and methods are not held to any of this.
"""

from __future__ import annotations

import numpy as np

from costmodel.collectives import group, network
from costmodel.compute import Column
from costmodel.context_parallel import ALL_GATHER, ALL_TO_ALL, RING, context_bytes, context_seconds
from costmodel.layer_kinds import layer_kinds
from costmodel.layers import MicroBatch, causal_scores
from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import BYTES_PER_ELEMENT, AttentionSpec

LEAST_TOKENS = 4096
_BACKWARD_PRODUCTS = 2.0
"""Attention's products backward, at least, over those forward."""


def why_not_cut(context: RuleContext) -> str | None:
    """Why no size but 1 is possible; None where others are."""
    if not context.runtime.context_parallel_methods:
        return f"runtime {context.runtime.name} has none"
    return None if context.training.attention_implementation == "fused" else "it needs fused attention"


def cuts_sequences(context: RuleContext) -> bool:
    """Whether any size but 1 is possible."""
    return why_not_cut(context) is None


def context_sizes(
    context: RuleContext, stated: tuple[int, ...] | None, methods: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Sizes to search.

    Args:
        context: model, cluster, training, runtime.
        stated: sizes that the user declared; None leaves them open.
        methods: methods that the user declared, as indices into `CONTEXT_PARALLEL_METHODS`; where all of them cut, 1 is left out.
    """
    if stated is not None:
        return stated
    must_cut = methods is not None and 0 not in methods
    if not cuts_sequences(context) or methods == (0,):
        return (2,) if must_cut else (1,)
    most = max(2, min(context.training.sequence_length // LEAST_TOKENS, context.cluster.num_devices))
    powers = tuple(2**k for k in range(most.bit_length()))
    if must_cut:
        return powers[1:]
    return powers if context.training.sequence_length >= 2 * LEAST_TOKENS else (1,)


def context_methods(
    context: RuleContext, stated: tuple[int, ...] | None, *, size: int, tensor: int, devices: int
) -> tuple[int, ...]:
    """Methods to search for candidates of these sizes, as indices into `CONTEXT_PARALLEL_METHODS`.

    Stated ones that make sense here, or all of them where none does, for a rule to refuse.
    """
    if stated is not None:
        return tuple(method for method in stated if (method > 0) == (size > 1)) or stated
    if size == 1:
        return (0,)
    known = undominated_methods(context)
    if RING in known and ALL_TO_ALL in known and not _exchanges_may_win(context, size, tensor, devices):
        return tuple(method for method in known if method != ALL_TO_ALL)
    return known or (0,)


def undominated_methods(context: RuleContext) -> tuple[int, ...]:
    """The runtime's methods but all_gather beside ring, (2), as indices into `CONTEXT_PARALLEL_METHODS`."""
    known = tuple(CONTEXT_PARALLEL_METHODS.index(method) for method in context.runtime.context_parallel_methods)
    return tuple(method for method in known if method != ALL_GATHER or RING not in known)


def _exchanges_may_win(context: RuleContext, size: int, tensor: int, devices: int) -> bool:
    """Condition (3)."""
    sizes, stride, everyone = (np.full(2, float(number)) for number in (size, tensor, devices))
    members = group(network(context.cluster), size=sizes, stride=stride, devices=everyone)
    batch = _one_sequence(context, sizes, stride)
    element_bytes = BYTES_PER_ELEMENT[context.training.precision.compute]
    for attention in {kind.group.attention for kind in layer_kinds(context.model)}:
        least = _least_attention_seconds(context, attention, batch)
        times = context_seconds(
            context_bytes(attention, batch=batch, element_bytes=element_bytes),
            batch=batch,
            members=members,
            asynchronous=context.cluster.device.kind == "cuda",
            forward_attention=least,
            backward_attention=_BACKWARD_PRODUCTS * least,
        )
        ring, exchanges = times.forward + times.backward
        if exchanges < ring:
            return True
    return False


def _one_sequence(context: RuleContext, sizes: Column, tensor: Column) -> MicroBatch:
    """A micro-batch of one sequence, cut by a ring and by exchanges."""
    none = np.zeros(2)
    return MicroBatch(
        sequences=np.ones(2),
        sequence_length=context.training.sequence_length,
        tensor_parallel=tensor,
        sequence_parallel=none,
        loss_parallel=none,
        wrapped=none,
        forward_collectives=none,
        backward_collectives=none,
        context_parallel=sizes,
        context_method=np.array([RING, ALL_TO_ALL]),
    )


def _least_attention_seconds(context: RuleContext, attention: AttentionSpec, batch: MicroBatch) -> Column:
    """A rank's attention forward at the device's peak; 0 where that is not known."""
    peak = context.cluster.device.peak_flops_per_second.get(context.training.precision.compute)
    maps = attention.num_attention_heads / batch.tensor_parallel / batch.context_parallel
    flops = 4.0 * attention.head_dim * maps * causal_scores(batch.sequence_length, attention.window)
    return np.asarray(flops / peak if peak else 0.0 * flops)

"""What context parallelism sends around attention, how much of it attention hides, and what it keeps in memory.

c devices share every sequence, each with the first and the last piece of those left, so that causal work is even. Per rank
and micro-batch, with T = b s / c tokens of its own, a query and k key-value heads of size d, tensor parallel size t, e bytes
per element and A the seconds of its attention in one direction:

    (1) queries Q = T a d e / t, as large as the output; keys and values K = 2 T max(1, k / t) d e
    (2) ring: c - 1 messages of K forward, c - 1 messages of 2 K (keys, values and their gradients) backward, each beside
        the attention of one of c parts: exposed = (c - 1) max(0, message / rate + latency - overlap A / c)
    (3) all_gather: all-gather of c K forward; all-gather and reduce-scatter of c K backward; nothing runs beside it
    (4) all_to_all: 4 all-to-alls in each direction, of queries, keys, values and output (or their gradients),
        2 Q + K' together; fewer key-value heads than c are copied first: K' = 2 T max(k / t, c) d e
    (5) attention that is recomputed repeats the forward's
    (6) backward's buffers: ring 4 K (two of each message), all_gather 2 c K; all_to_all keeps K' in place of K

Sources: arXiv 2310.01889 section 3 (ring), arXiv 2309.14509 section 3 (all-to-all), Transformer Engine
attention/dot_product_attention/context_parallel.py (messages and buffers), Megatron-core docs/api-guide/context_parallel.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.collectives import Group, all_gather_seconds, all_to_all_seconds, reduce_scatter_seconds
from costmodel.compute import Column
from costmodel.layers import MicroBatch
from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS, RECOMPUTE_KINDS, Grid, IntColumn
from costmodel.specs import BYTES_PER_ELEMENT, AttentionSpec, TrainingSpec

RING, ALL_GATHER, ALL_TO_ALL = (
    CONTEXT_PARALLEL_METHODS.index(method) for method in ("ring", "all_gather", "all_to_all")
)
EXCHANGES = 4.0
"""All-to-alls in one direction: queries, keys, values, output."""

REPEATS_ATTENTION = np.array([float(kind in ("core_attention", "full")) for kind in RECOMPUTE_KINDS])
"""1 for the recompute kinds that run attention again, with what is sent for it."""

RING_OVERLAP = 0.9
"""Share of attention that a message may hide behind: copies take memory bandwidth and multiprocessors from it (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBytes:
    """Bytes of one rank's tensors in one layer and micro-batch: K, and 2 Q + K' of equations (1) and (4)."""

    keys: Column
    exchanged: Column


@dataclass(frozen=True, slots=True)
class ContextTimes:
    """Seconds of one layer and micro-batch in each direction."""

    forward: Column
    forward_hidden: Column
    backward: Column
    backward_hidden: Column


def context_bytes(attention: AttentionSpec, *, batch: MicroBatch, element_bytes: int) -> ContextBytes:
    """Equations (1) and (4)."""
    row = batch.tokens * attention.head_dim * element_bytes
    queries = row * attention.num_attention_heads / batch.tensor_parallel
    heads = np.maximum(1.0, attention.num_key_value_heads / batch.tensor_parallel)
    copied = np.maximum(heads, batch.context_parallel)
    return ContextBytes(keys=2.0 * row * heads, exchanged=2.0 * queries + 2.0 * row * copied)


def context_seconds(
    sent: ContextBytes,
    *,
    batch: MicroBatch,
    members: Group,
    asynchronous: bool,
    forward_attention: Column,
    backward_attention: Column,
) -> ContextTimes:
    """Equations (2) to (4); 0 where sequences are not cut.

    Args:
        sent: of one layer.
        batch: one micro-batch.
        members: the context-parallel groups.
        asynchronous: whether messages run beside attention at all.
        forward_attention: A forward, a column.
        backward_attention: A backward, a column.
    """
    if (members.size == 1).all():
        return ContextTimes(*(np.zeros(members.size.shape) for _ in fields(ContextTimes)))
    ring = _ring_seconds(members, sent.keys), _ring_seconds(members, 2.0 * sent.keys)
    hidden = [
        np.minimum(seconds, RING_OVERLAP * asynchronous * attention * members.fraction) * (batch.context_method == RING)
        for seconds, attention in zip(ring, (forward_attention, backward_attention), strict=True)
    ]
    gather = all_gather_seconds(members, members.size * sent.keys)
    scatter = reduce_scatter_seconds(members, members.size * sent.keys)
    exchange = all_to_all_seconds(members, sent.exchanged, EXCHANGES)
    by_method = [batch.context_method == method for method in (RING, ALL_GATHER, ALL_TO_ALL)]
    return ContextTimes(
        forward=np.select(by_method, [ring[0], gather, exchange], 0.0) - hidden[0],
        forward_hidden=hidden[0],
        backward=np.select(by_method, [ring[1], gather + scatter, exchange], 0.0) - hidden[1],
        backward_hidden=hidden[1],
    )


def _ring_seconds(members: Group, message_bytes: Column) -> Column:
    """C - 1 messages to the next member: what a ring all-gather of c messages takes."""
    return all_gather_seconds(members, members.size * message_bytes)


def context_buffers(attention: AttentionSpec, training: TrainingSpec, grid: Grid) -> tuple[IntColumn, IntColumn]:
    """Bytes of one layer and micro-batch that are kept besides, and that its backward holds besides, equation (6)."""
    size, method = grid.context_parallel_size, grid.context_parallel_method
    if (size == 1).all():
        return np.zeros_like(size), np.zeros_like(size)
    element_bytes = BYTES_PER_ELEMENT[training.precision.compute]
    row = 2 * element_bytes * attention.head_dim * grid.micro_batch_size * -(-training.sequence_length // size)
    heads = np.maximum(1, attention.num_key_value_heads // grid.tensor_parallel_size)
    copies = row * np.maximum(size - heads, 0) * (method == ALL_TO_ALL)
    buffers = row * heads * np.select([method == RING, method == ALL_GATHER], [4, 2 * size], 0) * (size > 1)
    return np.asarray(copies), np.asarray(buffers)

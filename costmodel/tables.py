"""The table of passes: seconds of one layer, the embedding and the head, forward and backward, by part of the step.

Rows are candidates (tensor parallel size, sequence parallelism, micro batch, ...), one table serves a whole grid. A pass is
a vector over `PARTS`; the parts of one pass sum to its duration on the compute lane.

    (1) host time of a pass = operations x launch; launch part = smooth max(device time, host time) - device time on a
        device that runs behind its host, the host time itself on one that does not (cpu)
    (2) backward with full recomputation = backward + one more forward, its tensor- and context-parallel collectives
        included; with core_attention: + the attention part of the forward and its context-parallel collectives; with
        op_policy: + a forward without attention and every second product, whose inputs are gathered again under sequence
        parallelism
    (3) tensor-parallel collectives of a layer: 2 all-reduces of T h forward and 2 backward (arXiv 1909.08053, figure 4);
        with sequence parallelism each is an all-gather and a reduce-scatter of the same volume (arXiv 2205.05198, figure 5)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import Group, all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from costmodel.compute import Column, Roofline, smooth_maximum
from costmodel.context_parallel import REPEATS_ATTENTION, ContextTimes, context_bytes, context_seconds
from costmodel.layer_kinds import LayerKind, layer_kinds
from costmodel.layer_traffic import fuses_projections
from costmodel.layers import (
    MicroBatch,
    PassCost,
    accumulation_seconds,
    embedding_passes,
    head_passes,
    layer_passes,
    projections,
)
from costmodel.memo import Identical
from costmodel.models.families import FAMILIES
from costmodel.models.parameters import ParameterTensor, embedding_tensors, head_tensors, layer_tensors
from costmodel.runtimes.grid import RECOMPUTE_KINDS
from costmodel.specs import LayerGroup, ModelSpec, TrainingSpec
from costmodel.stack import Stack

PARTS = (
    "gemm",
    "attention",
    "memory_bound",
    "launch",
    "recompute",
    "tensor_parallel",
    "context_parallel",
    "zero_gather",
    "gradient",
    "message",
)
GEMM, ATTENTION, MEMORY, LAUNCH, RECOMPUTE, TENSOR, CONTEXT, GATHER, GRADIENT, MESSAGE = range(len(PARTS))

Cube = NDArray[np.float64]


class ParameterCount(NamedTuple):
    """Parameters of one part of the model: those that tensor parallelism cuts, and those that every rank holds whole."""

    cut: int
    whole: int

    def per_rank(self, tensor_parallel: Column) -> Column:
        """Parameters one tensor-parallel rank holds."""
        return self.cut / tensor_parallel + self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTable:
    """Rows n, layer kinds G, recompute kinds K, parts P. Seconds, FLOP per rank and micro-batch, parameters per rank.

    ``layer_backward_hidden`` are tensor-parallel collectives that run behind matmuls, ``layer_context_hidden``
    context-parallel ones that run behind attention, in both directions and what is recomputed.
    """

    layer_forward: Cube  # [n, G, P]
    layer_backward: Cube  # [n, G, K, P]
    layer_backward_hidden: Cube  # [n, G]
    layer_context_hidden: Cube  # [n, G, K]
    layer_forward_flops: Cube  # [n, G]
    layer_backward_flops: Cube  # [n, G, K]
    layer_parameters: Cube  # [n, G]
    embedding: Cube  # [n, 2, P]
    embedding_parameters: Column  # [n]
    head: Cube  # [n, 2, P]
    head_flops: Cube  # [n, 2]
    head_parameters: Column  # [n], a tied table not included
    layer_tensors: Column  # [G] parameter tensors of one layer


def count_parameters(tensors: tuple[ParameterTensor, ...]) -> ParameterCount:
    """Sum the tensors of one part."""
    cut = sum(tensor.num_elements for tensor in tensors if tensor.tensor_parallel_dim is not None)
    return ParameterCount(cut, sum(tensor.num_elements for tensor in tensors) - cut)


class _Counts(NamedTuple):
    embedding: ParameterCount
    head: ParameterCount
    layers: dict[int, ParameterCount]  # by the first layer of a kind


@lru_cache(maxsize=64)
def _counts(model: Identical[ModelSpec]) -> _Counts:
    """Parameters of every part of the model."""
    layers = {kind.first: count_parameters(layer_tensors(model.value, kind.first)) for kind in layer_kinds(model.value)}
    return _Counts(
        count_parameters(embedding_tensors(model.value)), count_parameters(head_tensors(model.value)), layers
    )


def pass_table(
    model: ModelSpec,
    training: TrainingSpec,
    *,
    batch: MicroBatch,
    ceiling: Roofline,
    tensor_group: Group,
    context_group: Group,
    stack: Stack,
) -> PassTable:
    """The passes of every part of the model for every row."""
    builder = _Builder(ceiling, training, batch, tensor_group, context_group, stack)
    layers = [builder.layer(model, kind) for kind in layer_kinds(model)]
    counts = _counts(Identical(model))
    embedding_count, head_count = (each.per_rank(batch.tensor_parallel) for each in (counts.embedding, counts.head))
    head, head_flops = builder.head(model, head_count)
    return PassTable(
        layer_forward=_beside([layer.forward for layer in layers]),
        layer_backward=_beside([layer.backward for layer in layers]),
        layer_backward_hidden=_beside([layer.hidden for layer in layers]),
        layer_context_hidden=_beside([layer.context_hidden for layer in layers]),
        layer_forward_flops=_beside([layer.forward_flops for layer in layers]),
        layer_backward_flops=_beside([layer.backward_flops for layer in layers]),
        layer_parameters=_beside([layer.parameters for layer in layers]),
        embedding=builder.embedding(model, embedding_count),
        embedding_parameters=embedding_count,
        head=head,
        head_flops=head_flops,
        head_parameters=head_count,
        layer_tensors=np.array([float(len(layer_tensors(model, kind.first))) for kind in layer_kinds(model)]),
    )


def _beside(columns: list[Cube]) -> Cube:
    """Stacked along the second axis; models have one kind of layer as a rule, which needs no copy."""
    return columns[0][:, None] if len(columns) == 1 else np.stack(columns, axis=1)


class _Layer(NamedTuple):
    forward: Cube
    backward: Cube
    hidden: Column
    context_hidden: Cube
    forward_flops: Column
    backward_flops: Cube
    parameters: Column


@dataclass(frozen=True, slots=True)
class _Builder:
    ceiling: Roofline
    training: TrainingSpec
    batch: MicroBatch
    tensor_group: Group
    context_group: Group
    stack: Stack

    def layer(self, model: ModelSpec, kind: LayerKind) -> _Layer:
        """One layer of a kind, equations (1) to (3)."""
        forward, backward, core, policy = layer_passes(
            model, kind.group, self.training, batch=self.batch, ceiling=self.ceiling, stack=self.stack
        )
        parameters = _counts(Identical(model)).layers[kind.first].per_rank(self.batch.tensor_parallel)
        accumulation = self._separate_accumulation(parameters)
        exposed, hidden = self._backward_collectives(model, backward.matmul)
        forwards, backwards = self._operations(model, kind.group)
        collectives, forward_hidden = self._forward_collectives(model, forward.matmul)
        context = self._context_seconds(kind.group, forward.attention, backward.attention)
        forward_parts = self._parts(forward, collectives, forwards, context=context.forward)
        backward_parts = self._parts(backward, exposed, backwards, extra_stream=accumulation, context=context.backward)
        gathers = 0.5 * collectives * (self.batch.sequence_parallel > 0)
        zero, wrapper = np.zeros(parameters.shape), np.full(parameters.shape, self.stack.recompute_operations)
        again = {
            "none": zero,
            "core_attention": sum(self._device_and_launch(core, zero, wrapper, context=context.forward)),
            "op_policy": sum(self._device_and_launch(policy, gathers, forwards + wrapper)),
            "full": sum(self._device_and_launch(forward, collectives, forwards + wrapper, context=context.forward)),
        }
        kinds = backward_parts[:, None, :].repeat(len(RECOMPUTE_KINDS), axis=1)
        for index, recompute in enumerate(RECOMPUTE_KINDS):
            kinds[:, index, RECOMPUTE] = again[recompute]
        unneeded, last_product = self._not_repeated(model, kind.group, core)
        more = {
            "none": 0.0 * core.flops,
            "core_attention": core.flops - unneeded,
            "op_policy": policy.flops,
            "full": forward.flops - last_product,
        }
        flops = np.stack([backward.flops + more[recompute] for recompute in RECOMPUTE_KINDS], axis=1)
        hidden = hidden + forward_hidden
        return _Layer(forward_parts, kinds, hidden, _context_hidden(context), forward.flops, flops, parameters)

    def _not_repeated(self, model: ModelSpec, group: LayerGroup, core: PassCost) -> tuple[Column, Column]:
        """FLOP that recomputation of attention and of a whole layer leave out, where it stops at the last tensor needed."""
        stops, batch = self.stack.recompute_early_stop, self.batch
        width = group.feed_forward.intermediate_size / batch.tensor_parallel
        capped = group.attention.attn_logit_softcapping is not None
        unfused = capped or self.training.attention_implementation == "unfused"
        last = 2.0 * batch.tokens * width * model.hidden_size * (not FAMILIES[model.family].ends_in_norm)
        return stops * 0.5 * unfused * core.flops, stops * last

    def embedding(self, model: ModelSpec, parameters: Column) -> Cube:
        """Both passes of the embedding; its output is reduced (or gathered) over the tensor group once."""
        forward, backward = embedding_passes(model, batch=self.batch, ceiling=self.ceiling)
        accumulation = accumulation_seconds(self.training, parameters=parameters, ceiling=self.ceiling)
        zero = np.zeros(parameters.shape)
        return np.stack(
            [
                self._parts(forward, self.block_seconds(model, 1.0), self._end_operations(1.0 / 3.0)),
                self._parts(backward, zero, self._end_operations(2.0 / 3.0), extra_stream=accumulation),
            ],
            axis=1,
        )

    def head(self, model: ModelSpec, parameters: Column) -> tuple[Cube, Cube]:
        """Both passes of final norm, head and loss, and their FLOP; every chunk of the loss adds to the head's gradient."""
        chunks, loss = self.training.loss_chunks, self._loss_seconds(model)
        forward, backward = head_passes(model, self.training, batch=self.batch, ceiling=self.ceiling, stack=self.stack)
        accumulation = chunks * self._separate_accumulation(parameters)
        collectives = self.block_seconds(model, 1.0) + loss * (chunks > 1)
        passes = [
            self._parts(forward, loss + self._head_input_seconds(model), self._end_operations(1.0 / 3.0)),
            self._parts(backward, collectives, self._end_operations(2.0 / 3.0), extra_stream=accumulation),
        ]
        return np.stack(passes, axis=1), np.stack([forward.flops, backward.flops], axis=1)

    def block_seconds(self, model: ModelSpec, blocks: float) -> Column:
        """Collectives of ``blocks`` tensor-parallel blocks in one direction, equation (3)."""
        total = blocks * self.batch.tokens * model.hidden_size * self.ceiling.element_bytes
        reduced = all_reduce_seconds(self.tensor_group, total, blocks)
        sharded = all_gather_seconds(self.tensor_group, total, blocks) + reduce_scatter_seconds(
            self.tensor_group, total, blocks
        )
        return np.where(self.batch.sequence_parallel > 0, sharded, reduced)

    def _forward_collectives(self, model: ModelSpec, matmul: Column) -> tuple[Column, Column]:
        """Exposed and hidden seconds of one forward."""
        seconds = self.block_seconds(model, 2.0)
        hidden = np.minimum(self.stack.tensor_parallel_forward_overlap * seconds, matmul)
        return seconds - hidden, hidden

    def _backward_collectives(self, model: ModelSpec, matmul: Column) -> tuple[Column, Column]:
        """Exposed and hidden seconds; at most the weight gradients (half of the matmuls) hide collectives."""
        gathers = self.stack.sequence_parallel_extra_gathers
        total = gathers * self.batch.tokens * model.hidden_size * self.ceiling.element_bytes
        extra = all_gather_seconds(self.tensor_group, total, gathers) * (self.batch.sequence_parallel > 0)
        seconds = self.block_seconds(model, 2.0) + extra
        hidden = np.minimum(self.stack.tensor_parallel_backward_overlap * seconds, 0.5 * matmul)
        return seconds - hidden, hidden

    def _context_seconds(self, group: LayerGroup, forward: Column, backward: Column) -> ContextTimes:
        """Context-parallel collectives of a layer beside its attention of ``forward`` and ``backward`` seconds."""
        return context_seconds(
            context_bytes(group.attention, batch=self.batch, element_bytes=self.ceiling.element_bytes),
            batch=self.batch,
            members=self.context_group,
            asynchronous=self.ceiling.asynchronous,
            forward_attention=forward,
            backward_attention=backward,
        )

    def _separate_accumulation(self, parameters: Column) -> Column:
        """Gradient accumulation outside the weight-gradient products."""
        if self.stack.fused_accumulation > 0:
            return np.zeros(parameters.shape)
        return accumulation_seconds(self.training, parameters=parameters, ceiling=self.ceiling)

    def _loss_seconds(self, model: ModelSpec) -> Column:
        """Loss parallel: maximum, sum and target logit of every token; else the logits are gathered. Chunk by chunk."""
        tokens, chunks = self.batch.tokens, float(self.training.loss_chunks)
        parallel = all_reduce_seconds(self.tensor_group, 3.0 * 4.0 * tokens, 3.0 * chunks)
        logits = tokens * model.padded_vocab_size * self.ceiling.element_bytes
        gathered = all_gather_seconds(self.tensor_group, logits, chunks)
        return np.where(self.batch.loss_parallel > 0, parallel, gathered)

    def _head_input_seconds(self, model: ModelSpec) -> Column:
        """With sequence parallelism the head's input is gathered first."""
        block = self.batch.tokens * model.hidden_size * self.ceiling.element_bytes
        return np.where(self.batch.sequence_parallel > 0, all_gather_seconds(self.tensor_group, block), 0.0)

    def _operations(self, model: ModelSpec, group: LayerGroup) -> tuple[Column, Column]:
        """Operations the host issues for one layer, forward and backward; a third of what comes in pairs is forward."""
        stack, batch = self.stack, self.batch
        forward, backward = stack.layer_operations(model.family)
        products = len(projections(model, group, batch.tensor_parallel, fused=fuses_projections(model, stack)))
        pairs = (
            products * stack.projection_operations * (batch.tensor_parallel > 1)
            + stack.sequence_operations * (batch.sequence_parallel > 0)
            + stack.sharding_operations * batch.wrapped
        )
        return (
            forward + pairs / 3.0 + stack.collective_operations * batch.forward_collectives,
            backward + pairs * 2.0 / 3.0 + stack.collective_operations * batch.backward_collectives,
        )

    def _end_operations(self, share: float) -> Column:
        """Operations of the embedding or the head; a device that runs behind its host hides them behind the layers."""
        count = 0.0 if self.ceiling.asynchronous else share * self.stack.end_operations
        return np.full(self.batch.tokens.shape, count)

    def _parts(
        self,
        cost: PassCost,
        collectives: Column,
        operations: Column,
        *,
        extra_stream: Column | float = 0.0,
        context: Column | float = 0.0,
    ) -> Cube:
        """One pass as a vector over `PARTS`."""
        parts = np.zeros((*cost.matmul.shape, len(PARTS)))
        parts[:, GEMM], parts[:, ATTENTION] = cost.matmul, cost.attention
        parts[:, MEMORY], parts[:, TENSOR] = cost.stream + extra_stream, collectives
        parts[:, CONTEXT] = context
        _, parts[:, LAUNCH] = self._device_and_launch(
            cost, collectives, operations, context=context, extra_stream=extra_stream
        )
        return parts

    def _device_and_launch(
        self,
        cost: PassCost,
        collectives: Column,
        operations: Column,
        *,
        extra_stream: Column | float = 0.0,
        context: Column | float = 0.0,
    ) -> tuple[Column, Column]:
        """Device time of one pass, and its launch part, equation (1)."""
        device = cost.matmul + cost.attention + (cost.stream + extra_stream) + collectives + context
        host = operations * self.stack.host_operations * self.ceiling.launch_seconds
        if not self.ceiling.asynchronous:
            return device, host
        return device, smooth_maximum(device, host, self.stack.launch_sharpness) - device


def _context_hidden(context: ContextTimes) -> Cube:
    """Hidden seconds of both directions by recompute kind [n, K]; what repeats attention repeats its collectives."""
    once = context.forward_hidden + context.backward_hidden
    return np.asarray(once[:, None] + REPEATS_ATTENTION * context.forward_hidden[:, None])

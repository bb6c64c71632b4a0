"""What one pipeline rank of runtime ``torch`` holds of every kind: the quantities that torch_memory.py adds up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.activation_memory import Tokens, norm_gradients
from costmodel.frequency import is_wrapped, reduces_every_micro_batch
from costmodel.in_flight import grid_micro_batches_per_round, runs_breadth_first
from costmodel.layer_backward import LayerBackward
from costmodel.rank_totals import Inputs, RankTotals, reshards_chunks
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.placement import ROUND_SCHEDULES, V_SCHEDULES
from costmodel.runtimes.rules_core import schedule_is
from costmodel.shard_sizes import Column, Sizes
from costmodel.split_in_flight import splits_backward
from costmodel.state_memory import ADAM_STEP_BYTES


@dataclass(frozen=True)
class TorchRank:
    """One pipeline rank per row, with equations (6) to (9) of torch_memory.py."""

    inputs: Inputs
    totals: RankTotals

    @property
    def grid(self) -> Grid:
        """The candidates."""
        return self.inputs.grid

    @cached_property
    def pipeline(self) -> Column:
        """1 where there is one."""
        return np.asarray(self.grid.pipeline_parallel_size > 1, dtype=np.int64)

    @cached_property
    def wrapped(self) -> Column:
        """1 where FSDP2 holds the parameters."""
        return is_wrapped(self.grid, self.inputs.training).astype(np.int64)

    @cached_property
    def reduced_each(self) -> Column:
        """1 where every micro-batch reduces its gradients."""
        return reduces_every_micro_batch(self.grid).astype(np.int64)

    @cached_property
    def alone(self) -> NDArray[np.bool_]:
        """Where a chunk's backward is over before another chunk's has begun."""
        rounds = self.grid.num_micro_batches // grid_micro_batches_per_round(self.grid)
        looped = schedule_is(self.grid, *ROUND_SCHEDULES) & (rounds == 1)
        return np.asarray((looped | runs_breadth_first(self.grid)) & (self.grid.num_model_chunks > 1))

    @cached_property
    def split(self) -> NDArray[np.bool_]:
        """Where the backward is split; not with layers that are recomputed as a whole."""
        return np.asarray(splits_backward(self.grid) & (self.grid.num_model_chunks > self.totals.whole))

    @cached_property
    def starts_full(self) -> Column:
        """1 where a pipeline has all of several micro-batches in flight when its first backward begins."""
        return self.pipeline * (1 - self.totals.earlier) * (self.totals.in_flight > self.totals.micro_batch)

    @property
    def optimizer_state(self) -> Column:
        """The moments, and AdamW's step counters."""
        optimizer, sizes = self.inputs.training.optimizer, self.totals.sizes
        moments = optimizer.num_moments * self.inputs.bytes_of("state") * sizes.own
        return moments + ADAM_STEP_BYTES * sizes.tensors * (optimizer.name == "adamw")

    @cached_property
    def shards(self) -> Column:
        """Reduced gradients."""
        return self.totals.sizes.padded * self.inputs.bytes_of("gradient")

    @cached_property
    def early_shards(self) -> Column:
        """Those of earlier micro-batches."""
        return self.shards * self.wrapped * self.reduced_each * self.totals.earlier

    @cached_property
    def nothing(self) -> Column:
        """0 bytes."""
        return np.zeros_like(self.shards)

    @property
    def after_step(self) -> Column:
        """Gradients in the optimizer step."""
        return np.where(self.wrapped == 1, self.shards, self.unreduced)

    @cached_property
    def unreduced(self) -> Column:
        """Whole gradients in the reduction's format."""
        return self.totals.sizes.local * self.inputs.bytes_of("reduce")

    def accumulated(self, sizes: Sizes) -> Column:
        """Gradients of ``sizes`` from earlier micro-batches."""
        shards = sizes.padded * self.inputs.bytes_of("gradient")
        held = np.where(self.reduced_each == 1, shards, sizes.local * self.inputs.bytes_of("reduce"))
        return held * self.totals.earlier

    @cached_property
    def earlier_gradients(self) -> Column:
        """Gradients of all chunks from earlier micro-batches."""
        everything, last = self.accumulated(self.totals.sizes), self.accumulated(self.totals.last.total)
        return np.where(self.alone, last, everything)

    def forming(self, sizes: Sizes) -> Column:
        """Gradients of ``sizes`` as autograd makes them, unless they are added in place to earlier ones."""
        return sizes.local * self.inputs.bytes_of("compute") * self.fresh

    @cached_property
    def fresh(self) -> Column:
        """0 where gradients are added in place to earlier ones."""
        in_place = self.inputs.bytes_of("compute") == self.inputs.bytes_of("reduce")
        return 1 - self.totals.earlier * (1 - self.reduced_each) * in_place

    def formed(self, layer: LayerBackward) -> Column:
        """Gradients of a layer's weights at the widest point of its backward."""
        return layer.formed * self.fresh

    @cached_property
    def head_side(self) -> Sizes:
        """Final norm, head and a tied table of the chunk whose backward comes first."""
        return self.totals.last.head_side + self.totals.last.tied

    def finished(self, sizes: Sizes) -> Column:
        """Gradients of ``sizes`` when the step's backward is over."""
        whole = (self.pipeline == 1) | (self.wrapped == 0)
        reduced = sizes.padded * self.inputs.bytes_of("gradient")
        return np.where(whole, sizes.local * self.inputs.bytes_of("reduce"), reduced)

    @cached_property
    def boundary(self) -> Column:
        """Bytes of one micro-batch's hidden states between stages."""
        tokens = Tokens.of(self.inputs.training, self.grid).between
        return tokens * self.inputs.model.hidden_size * self.inputs.bytes_of("compute")

    @cached_property
    def receive_buffers(self) -> Column:
        """Equation (9) without the outputs in flight."""
        tensors = (self.totals.received + self.totals.sent) * self.grid.num_micro_batches
        return self.pipeline * tensors * self.boundary

    @cached_property
    def pipeline_buffers(self) -> Column:
        """Equation (9)."""
        norm_keeps_input = self.inputs.model.norm == "layernorm" or self.inputs.bytes_of("compute") >= 4
        totals, count = self.totals, self.grid.num_micro_batches
        several, alternates = self.grid.num_model_chunks > 1, schedule_is(self.grid, "1f1b")
        warmup = totals.sent * alternates * (totals.sent_in_flight > 1) * (count > 2 * totals.sent_in_flight - 2)
        sent = np.where(several, (totals.sent - self.neighbours) * count, totals.sent_in_flight + warmup)
        unfinished = totals.received_in_flight - totals.received_waiting
        gradients = np.maximum((totals.received - self.neighbours) * count - unfinished, 0)
        gradients = np.where(alternates, np.minimum(gradients, 1), gradients)
        tensors = sent - (totals.received_in_flight if norm_keeps_input else totals.received_kept) + gradients
        return np.asarray(self.receive_buffers + self.pipeline * tensors * self.boundary)

    @cached_property
    def final_buffers(self) -> Column:
        """Equation (9) when no micro-batch is in flight any more."""
        one_message = schedule_is(self.grid, "1f1b")
        both = self.totals.received + self.totals.sent - 2 * self.neighbours
        tensors = np.where(one_message, self.totals.received, both * self.grid.num_micro_batches)
        return np.asarray(self.receive_buffers + self.pipeline * tensors * self.boundary)

    @cached_property
    def neighbours(self) -> Column:
        """1 where two chunks of the rank are neighbours in the model: nothing is sent between them, buffers are their tensors."""
        last = self.totals.rank == self.grid.pipeline_parallel_size - 1
        return np.asarray(last & schedule_is(self.grid, *V_SCHEDULES), dtype=np.int64)

    @cached_property
    def split_working_set(self) -> Column:
        """The widest gradients once those of all outputs are kept: a norm's in float32, or an elementary activation's."""
        model, compute = self.inputs.model, self.inputs.bytes_of("compute")
        tokens = Tokens.of(self.inputs.training, self.grid).between
        norm = norm_gradients(model, compute, tokens)
        widest = norm if model.norm == "rmsnorm" else self.totals.widest.backward
        unsplit = self.totals.widest.backward * (self.totals.whole > 0)
        return np.maximum(widest, unsplit) + self.inputs.end.probabilities * (self.totals.head_kept > 0)

    @cached_property
    def reshards(self) -> NDArray[np.bool_]:
        """Where layers are freed after their forward: ZeRO 3 with one chunk, unless hpZ keeps them whole."""
        kept = self.grid.hierarchical_partition_size == 1
        return np.asarray((self.grid.zero_stage == 3) & (self.grid.num_model_chunks == 1) & ~kept)

    @cached_property
    def reshards_chunks(self) -> NDArray[np.bool_]:
        """Where several chunks are freed after their forward."""
        return reshards_chunks(self.grid)

    def gathered(self, layers: int, resharded: NDArray[np.bool_] | None = None) -> Column:
        """Equation (6): the root group and one or two layers where layers are freed, else everything.

        Of several chunks under ZeRO 3 those that are whole, and of the one in backward as much, or all if not ``resharded``.
        """
        last, begun = self.totals.last, layers - 1 if resharded is None else -1
        resharded = self.reshards if resharded is None else resharded
        some = last.root.gathered + np.minimum(layers * last.last_layer.gathered, last.layers.gathered)
        elements = np.where(resharded, some, self.totals.gathered)
        if self.reshards_chunks.any():
            elements = np.where(self.reshards_chunks, self.totals.regathered[begun], elements)
        return elements * self.wrapped * self.inputs.bytes_of("compute")

    @cached_property
    def prefetched(self) -> Column:
        """The part of a second gathered layer that a gather's buffer holds."""
        sharded = self.wrapped * (self.grid.shard_group_size > 1) * self.inputs.bytes_of("compute")
        return np.asarray(sharded * self.totals.last.last_layer.gathered * self.reshards)

    @cached_property
    def second_shards(self) -> Column:
        """Equation (7)."""
        size = self.grid.hierarchical_partition_size
        copy = self.totals.layer_sizes.gathered * self.inputs.bytes_of("compute") // np.maximum(size, 1)
        return copy * ((size > 1) & (size < self.grid.shard_group_size))

    @cached_property
    def head(self) -> Column:
        """1 where the rank holds the head."""
        return (self.totals.head_kept > 0).astype(np.int64)

    @cached_property
    def last_root_tensor(self) -> Column:
        """Elements of the last tensor of the largest root group: the head, or an embedding without one."""
        model, held = self.inputs.model, self.totals
        tied = int(model.tie_word_embeddings)
        alone = (
            (held.last.head_side.tensors == 0) & (held.first.root.tensors > 0) & (not model.learned_position_embeddings)
        )
        head = (held.last.head_side.tensors > 0) & ((tied == 0) | (self.pipeline == 1))
        return np.asarray(self.inputs.sizes.token_embedding.local * (alone | head))

    @cached_property
    def roots(self) -> Sizes:
        """The root groups of all chunks; at most one holds anything, unless embedding and head are on one rank."""
        return self.totals.sizes - self.totals.layer_sizes

    def reduction_input(self, sizes: Sizes) -> Column:
        """Equation (8): the flat input of a group's reduction."""
        return sizes.gathered * self.wrapped * self.inputs.bytes_of("reduce")

    def reduction_output(self, sizes: Sizes) -> Column:
        """Equation (8): its output."""
        copies = np.where((self.inputs.device.kind == "cpu") & (self.grid.shard_group_size > 1), 2, 1)
        return np.asarray(copies * sizes.padded * self.wrapped * self.inputs.bytes_of("reduce"))

    @cached_property
    def retained(self) -> Column:
        """The last reduction's input of an earlier micro-batch, which FSDP2 keeps until its next reduction or the last."""
        return self.reduction_input(self.totals.last.root) * self.reduced_each * self.totals.earlier

    @cached_property
    def accumulates(self) -> Column:
        """1 where gradients are added up whole before they are reduced."""
        several = (self.pipeline == 1) | ((self.reduced_each == 0) & (self.grid.num_micro_batches > 1))
        return np.asarray(several, dtype=np.int64)

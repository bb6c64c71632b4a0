"""Memory of one device under runtime ``torch``, term by term, as columns over candidates.

Bytes per element as in state_memory.py; K_c, A_c from rank_totals.py; W the widest gradients of one layer's backward, B
what recomputation makes again of it (activation_memory.py). The peak of forward and backward is the largest of

    (1) loss              sum K_c A_c kept, the head's logits; gradients of earlier micro-batches. A loss over chunks goes
                          backward chunk by chunk: one chunk's logits, beside the head side's gradient
    (2) first backward    sum K_c A_c + B + W; (1)'s gradients + those of the head side and a tied table
    (3) first reduction   sum K_c A_c less one layer; (2)'s gradients + the last layer's, unless they were merged into
                          whole ones of earlier micro-batches; its reduce-scatter
    (4) last backward     one micro-batch of the last chunk less but its first layer, + B + W; gradients of all other
                          layers, the root group's as in (2); the previous layer's reduce-scatter
    (5) last reduction    no activations, all gradients; the largest group's reduce-scatter and whole gradients

Gradients of earlier micro-batches (if m v > K): G padded where they are reduced as they come (ZeRO 2 and 3 without a
pipeline), else R local. Those that form are in the compute format and count only where they are not added to them in
place. Finished ones: G padded, under a pipeline or without a wrapper R local. Interleaving in a single round (m < 2 p)
finishes the last chunk's backward before another chunk's begins, so only that chunk has whole gradients.

    (6) gathered copies, C per gathered element (none without a wrapper). At (1) to (3): everything; under ZeRO 3 with
        one chunk the root group and two layers (current and prefetched). At (4), where the last micro-batch frees as it
        goes: the root group and one layer; under a pipeline everything, as torch's schedules free nothing after backward.
        Everything of a rank with more than three chunks: of the three that torch has gathered (unshards.py)
    (7) hpZ: at (1) to (3) the layers' gathered copies / k; k = 1 keeps everything gathered, k of all devices is ZeRO 3
    (8) reduce-scatter input, R per gathered element of its group, under a pipeline only at (5); without a pipeline and
        over more than one device its output, R per padded element (twice on a CPU, where gloo works in a copy), since it
        is added to a gradient that exists. Else the output becomes the gradient, or takes the place of a whole one
    (9) receive buffers of a pipeline, m per direction and chunk, kept over steps; outputs sent: of the micro-batches in flight,
        with several chunks of all, since torch waits for their messages at the end of the step; gradients of received inputs,
        kept to the end of the step. A received input that a layer keeps counts once, and so does what neighbours hand over

Phases init and optimizer hold parameters, the latter also gradients and optimizer state: the optimizer is fused.
What the allocator reserves for FSDP2's own streams beside all this: stream_pools.py.

Sources: torch 2.13.0 torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives}.py (one group prefetched,
one reduce-scatter input in flight), torch/distributed/pipelining/stage.py (`_create_act_recv_info`). Which storages are
alive when was followed operation by operation; tests/costmodel/test_memory_torch.py holds measured peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from costmodel.activation_memory import Tokens, torch_end_bytes, torch_layer_bytes
from costmodel.frequency import is_wrapped, reduces_every_micro_batch
from costmodel.in_flight import grid_micro_batches_per_round, runs_breadth_first
from costmodel.rank_totals import (
    Inputs,
    PhaseTerms,
    RankMemory,
    RankTotals,
    Terms,
    gather_inputs,
    rank_totals,
    total,
)
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.placement import ROUND_SCHEDULES, V_SCHEDULES
from costmodel.runtimes.rules_core import schedule_is
from costmodel.shard_sizes import Column, Sizes
from costmodel.specs import DeviceSpec, ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.split_in_flight import splits_backward
from costmodel.stage_contents import RankContents
from costmodel.state_memory import ADAM_STEP_BYTES
from costmodel.stream_pools import Instant, pooled_bytes


def torch_inputs(
    model: ModelSpec, training: TrainingSpec, runtime: RuntimeProfile, device: DeviceSpec, grid: Grid
) -> Inputs:
    """The tables of a grid."""
    return gather_inputs(
        model,
        training,
        runtime,
        device,
        grid,
        layer_model=partial(torch_layer_bytes, fusion=runtime.kernel_fusion),
        end_model=partial(torch_end_bytes, accounting=runtime.memory, fusion=runtime.kernel_fusion),
    )


def torch_rank_memory(inputs: Inputs, contents: RankContents) -> RankMemory:
    """Terms of every phase for one pipeline rank per row; forward_backward at instants (1) to (5)."""
    rank = _Rank(inputs, rank_totals(inputs, contents))
    parameters = {"parameters": rank.totals.sizes.padded * inputs.bytes_of("parameter")}
    optimizer_state = {"optimizer_state": rank.optimizer_state}
    buffers = {"pipeline_buffers": rank.receive_buffers}
    instants = [
        rank.loss(),
        rank.first_backward(),
        rank.first_reduction(),
        rank.last_backward(),
        rank.last_reduction(),
    ]
    step = {**parameters, "gradients": rank.after_step, **optimizer_state, **buffers}
    phases: PhaseTerms = {
        "init": [parameters],
        "forward_backward": [{**parameters, **optimizer_state, **terms} for terms in instants],
        "optimizer": [step],
    }
    lasting = total({**parameters, **optimizer_state})
    pooled = rank.pooled([total(terms) + lasting for terms in instants], total(step))
    has_pools = inputs.accounting.stream_pools and inputs.device.kind != "cpu"
    return RankMemory(phases, pooled if has_pools else np.zeros_like(pooled))


@dataclass(frozen=True)
class _Rank:
    """One pipeline rank per row, with the equations of the module."""

    inputs: Inputs
    totals: RankTotals

    @property
    def grid(self) -> Grid:
        return self.inputs.grid

    @cached_property
    def pipeline(self) -> Column:
        return np.asarray(self.grid.pipeline_parallel_size > 1, dtype=np.int64)

    @cached_property
    def wrapped(self) -> Column:
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

    @property
    def optimizer_state(self) -> Column:
        optimizer, sizes = self.inputs.training.optimizer, self.totals.sizes
        moments = optimizer.num_moments * self.inputs.bytes_of("state") * sizes.own
        return moments + ADAM_STEP_BYTES * sizes.tensors * (optimizer.name == "adamw")

    @cached_property
    def shards(self) -> Column:
        """Reduced gradients."""
        return self.totals.sizes.padded * self.inputs.bytes_of("gradient")

    @property
    def after_step(self) -> Column:
        """Gradients in the optimizer step."""
        return np.where(self.wrapped == 1, self.shards, self.unreduced)

    @cached_property
    def unreduced(self) -> Column:
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
        in_place = self.inputs.bytes_of("compute") == self.inputs.bytes_of("reduce")
        fresh = 1 - self.totals.earlier * (1 - self.reduced_each) * in_place
        return sizes.local * self.inputs.bytes_of("compute") * fresh

    @cached_property
    def head_side(self) -> Sizes:
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
        sent = np.where(self.grid.num_model_chunks > 1, (totals.sent - self.neighbours) * count, totals.sent_in_flight)
        unfinished = totals.received_in_flight - totals.received_waiting
        gradients = np.maximum((totals.received - self.neighbours) * count - unfinished, 0)
        tensors = sent - (totals.received_in_flight if norm_keeps_input else totals.received_kept) + gradients
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
        wide = max(4, compute)
        norm = 4 * wide + (compute if compute < wide else 0)
        tokens = Tokens.of(self.inputs.training, self.grid).between
        widest = tokens * model.hidden_size * norm if model.norm == "rmsnorm" else self.totals.backward
        unsplit = self.totals.backward * (self.totals.whole > 0)
        return np.maximum(widest, unsplit) + self.inputs.end.probabilities * (self.totals.head_kept > 0)

    @cached_property
    def reshards(self) -> NDArray[np.bool_]:
        """Where layers are freed after their forward: ZeRO 3 with one chunk, unless hpZ keeps them whole."""
        kept = self.grid.hierarchical_partition_size == 1
        return np.asarray((self.grid.zero_stage == 3) & (self.grid.num_model_chunks == 1) & ~kept)

    @cached_property
    def gathered(self) -> Column:
        """Equation (6), at (1) to (3)."""
        return self._gathered(2, self.reshards)

    def _gathered(self, layers: int, resharded: NDArray[np.bool_]) -> Column:
        last = self.totals.last
        some = last.root.gathered + np.minimum(layers * last.last_layer.gathered, last.layers.gathered)
        elements = np.where(resharded, some, self.totals.gathered)
        return elements * self.wrapped * self.inputs.bytes_of("compute")

    @cached_property
    def second_shards(self) -> Column:
        """Equation (7)."""
        size = self.grid.hierarchical_partition_size
        copy = self.totals.layer_sizes.gathered * self.inputs.bytes_of("compute") // np.maximum(size, 1)
        return copy * ((size > 1) & (size < self.grid.shard_group_size))

    def scatter(self, sizes: Sizes) -> Column:
        """Equation (8)."""
        copies = 2 if self.inputs.device.kind == "cpu" else 1
        outputs = np.where((self.grid.shard_group_size > 1) & (self.pipeline == 0), copies, 0)
        return np.asarray((sizes.gathered + outputs * sizes.padded) * self.wrapped * self.inputs.bytes_of("reduce"))

    def loss(self) -> Terms:
        """Equation (1)."""
        chunked = self.inputs.training.loss_chunks > 1
        return {
            "gradients": self.earlier_gradients + self.forming(self.head_side) * chunked,
            "activations": self.totals.in_flight,
            "logits": self.totals.logits,
            "gathered_parameters": self.gathered,
            "hierarchical_shards": self.second_shards,
            "pipeline_buffers": self.pipeline_buffers,
        }

    def first_backward(self) -> Terms:
        """Equation (2)."""
        return {
            "gradients": self.earlier_gradients + self.forming(self.head_side),
            "activations": self.totals.in_flight + np.where(self.split, self.totals.split, -self.totals.head_kept),
            "recompute_working_set": self.totals.recomputed,
            "backward_working_set": np.where(self.split, self.split_working_set, self.totals.backward),
            "gathered_parameters": self.gathered,
            "hierarchical_shards": self.second_shards,
            "pipeline_buffers": self.pipeline_buffers,
        }

    def first_reduction(self) -> Terms:
        """Equation (3)."""
        last = self.totals.last
        merged = self.totals.earlier * (1 - self.reduced_each)
        layer = last.last_layer.local * self.inputs.bytes_of("compute") * (1 - merged)
        return {
            "gradients": self.earlier_gradients + self.forming(self.head_side) + layer,
            "activations": self.totals.in_flight - self.totals.head_kept - self.totals.layer,
            "gathered_parameters": self.gathered,
            "hierarchical_shards": self.second_shards,
            "communication_buffers": self.scatter(last.last_layer) * (1 - self.pipeline),
            "pipeline_buffers": self.pipeline_buffers,
        }

    def last_backward(self) -> Terms:
        """Equation (4)."""
        last, totals = self.totals.last, self.totals
        layers = np.where(self.alone, self.finished(last.layers), self.finished(totals.layer_sizes))
        root = np.where(self.pipeline == 1, self.finished(last.root), self.accumulated(last.root))
        return {
            "gradients": layers - self.finished(last.last_layer) + root + self.forming(self.head_side),
            "activations": totals.in_flight - totals.micro_batch + totals.layer,
            "recompute_working_set": totals.recomputed,
            "backward_working_set": totals.backward,
            "gathered_parameters": self._gathered(1, self.pipeline == 0),
            "communication_buffers": self.scatter(last.last_layer) * (1 - self.pipeline),
            "pipeline_buffers": self.pipeline_buffers,
        }

    def last_reduction(self) -> Terms:
        """Equation (5); a group is resharded before it is reduced, under a pipeline the others are not."""
        last, totals = self.totals.last, self.totals
        whole = np.maximum(last.root.local, last.last_layer.local) * self.inputs.bytes_of("compute")
        elsewhere = (totals.sizes.padded - last.total.padded) * self.inputs.bytes_of("gradient")
        gradients = np.where(self.alone, self.finished(last.total) + elsewhere, self.finished(totals.sizes))
        layers = np.where(self.alone, last.layers.gathered, totals.layer_sizes.gathered) * self.pipeline
        return {
            "gradients": gradients + whole * self.wrapped * (1 - self.pipeline),
            "gathered_parameters": layers * self.wrapped * self.inputs.bytes_of("compute"),
            "communication_buffers": np.maximum(self.scatter(last.root), self.scatter(last.last_layer)),
            "pipeline_buffers": self.receive_buffers,
        }

    def pooled(self, instants: list[Column], step: Column) -> Column:
        """stream_pools.py (3); ``instants``: bytes at (1) to (5), ``step``: in the optimizer step.

        Of the gathered layers in (6), the prefetched one is a gather's buffer. Under a pipeline gradients are whole until (5).
        """
        last, compute, none = self.totals.last, self.inputs.bytes_of("compute"), np.zeros_like(step)
        shards, reduced = (
            self.shards * self.wrapped,
            self.wrapped * (1 - self.pipeline) * self.inputs.bytes_of("gradient"),
        )
        early = shards * self.reduced_each * self.totals.earlier
        layers = self.totals.layer_sizes.padded - last.last_layer.padded
        late = reduced * (layers + last.root.padded * self.reduced_each * self.totals.earlier)
        sharded = self.wrapped * (self.grid.shard_group_size > 1) * compute
        gather = sharded * np.maximum(last.root.gathered, last.last_layer.gathered)
        two = self.reshards & (last.layers.gathered > last.last_layer.gathered)
        prefetched = sharded * last.last_layer.gathered * two
        held = [(early, prefetched)] * 3 + [(late, none), (reduced * self.totals.sizes.padded, none)]
        parts = [Instant(size, *part) for size, part in zip(instants, held, strict=True)]
        return pooled_bytes([*parts, Instant(step, shards, none)], gradients=shards, gather=gather)

"""Memory of one device under runtime ``torch``, term by term, as columns over candidates.

Bytes per element as in state_memory.py; K_c, A_c from rank_totals.py; W the widest gradients of one layer's backward, B what
recomputation makes again of it (activation_memory.py). The peak of forward and backward is the largest of four instants:

    (1) loss: sum K_c A_c is kept and the head's logits live
    (2) first backward: sum K_c A_c + B + W; the last layer's gradients form
    (3) last backward: one micro-batch of the last chunk less but its first layer, + B + W; all gradients exist
    (4) reduction of the root FSDP group (embedding, final norm, head) or, under a pipeline, of the largest group

Gradients at (1) are those of earlier micro-batches, if any: G padded where they are reduced as they come (ZeRO 2 and 3
without a pipeline), else R local; (2) adds those of the last layer and the head side in the compute format, unless they are
accumulated in place; (3) and (4) hold G padded, under a pipeline R local, + those of one layer or of the root.

    (5) gathered copies, C per gathered element (none without a wrapper): ZeRO 0 to 2: everything. ZeRO 3: the root group and
        two layers (current and prefetched), one at (3); with several chunks, and at (3) under any pipeline, everything,
        because torch's schedules do not free what backward gathered
    (6) hpZ: at (1) and (2) the layers' gathered copies / k
    (7) a reduce-scatter's input, R per gathered element of its group: at (3) the previous layer's, as far as it exceeds what
        that layer's backward has freed also at (2); at (4) the group's
    (8) receive buffers of a pipeline, m per direction and chunk, kept over steps, and the outputs sent but not yet gone
        backward; a received input that the first layer keeps is counted once

Phases init and optimizer hold parameters, the latter also gradients (G padded) and optimizer state: the optimizer is fused.

Sources: torch 2.13.0 torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives}.py (one group prefetched, one
reduce-scatter input in flight), torch/distributed/pipelining/stage.py (`_create_act_recv_info`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.activation_memory import Tokens, torch_end_bytes, torch_layer_bytes
from costmodel.rank_totals import (
    FULL_RECOMPUTE,
    Inputs,
    PhaseTerms,
    RankTotals,
    Terms,
    gather_inputs,
    largest,
    rank_totals,
)
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column
from costmodel.specs import ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.stage_contents import RankContents
from costmodel.state_memory import ADAM_STEP_BYTES


def torch_inputs(model: ModelSpec, training: TrainingSpec, runtime: RuntimeProfile, grid: Grid) -> Inputs:
    """The tables of a grid."""
    return gather_inputs(model, training, runtime, grid, layer_model=torch_layer_bytes, end_model=torch_end_bytes)


def torch_rank_memory(inputs: Inputs, contents: RankContents) -> PhaseTerms:
    """Terms of every phase for one pipeline rank per row; forward_backward at its largest instant."""
    rank = _Rank(inputs, rank_totals(inputs, contents))
    parameters = {"parameters": rank.totals.sizes.padded * inputs.bytes_of("parameter")}
    optimizer_state = {"optimizer_state": rank.optimizer_state}
    buffers = {"pipeline_buffers": rank.receive_buffers}
    peak = largest([rank.loss(), rank.first_backward(), rank.last_backward(), rank.reduction()])
    return {
        "init": parameters,
        "forward_backward": {**parameters, **optimizer_state, **peak},
        "optimizer": {**parameters, "gradients": rank.shards, **optimizer_state, **buffers},
    }


@dataclass(frozen=True, slots=True)
class _Rank:
    """One pipeline rank per row, with the equations of the module."""

    inputs: Inputs
    totals: RankTotals

    @property
    def grid(self) -> Grid:
        return self.inputs.grid

    @property
    def pipeline(self) -> Column:
        return np.asarray(self.grid.pipeline_parallel_size > 1, dtype=np.int64)

    @property
    def wrapped(self) -> Column:
        mixed = self.inputs.bytes_of("compute") != self.inputs.bytes_of("parameter")
        return np.asarray((self.grid.data_parallel_size > 1) | mixed, dtype=np.int64)

    @property
    def reduced_each(self) -> Column:
        """1 where every micro-batch reduces its gradients."""
        return np.asarray((self.grid.zero_stage >= 2) & (self.pipeline == 0), dtype=np.int64)

    @property
    def optimizer_state(self) -> Column:
        optimizer, sizes = self.inputs.training.optimizer, self.totals.sizes
        moments = optimizer.num_moments * self.inputs.bytes_of("state") * sizes.own
        return moments + ADAM_STEP_BYTES * sizes.tensors * (optimizer.name == "adamw")

    @property
    def shards(self) -> Column:
        """Reduced gradients."""
        return self.totals.sizes.padded * self.inputs.bytes_of("gradient")

    @property
    def unreduced(self) -> Column:
        return self.totals.sizes.local * self.inputs.bytes_of("reduce")

    @property
    def forming(self) -> Column:
        """Gradients of the last layer and the head side as autograd makes them."""
        last = self.totals.last
        return (last.head_side.local + last.last_layer.local) * self.inputs.bytes_of("compute")

    @property
    def layer_gradients(self) -> Column:
        return self.totals.last.last_layer.local * self.inputs.bytes_of("compute")

    @property
    def accumulated(self) -> Column:
        """Gradients of earlier micro-batches."""
        held = np.where(self.reduced_each == 1, self.shards, self.unreduced)
        return held * self.totals.earlier

    @property
    def finished(self) -> Column:
        """Gradients when the step's backward is over but for one group."""
        kept = (self.pipeline == 1) | (self.wrapped == 0)
        return np.where(kept, self.unreduced, self.shards)

    @property
    def boundary(self) -> Column:
        """Bytes of one micro-batch's hidden states between stages."""
        tokens = Tokens.of(self.inputs.training, self.grid).between
        return tokens * self.inputs.model.hidden_size * self.inputs.bytes_of("compute")

    @property
    def receive_buffers(self) -> Column:
        """Equation (8) without the outputs in flight."""
        tensors = (self.totals.received + self.totals.sent) * self.grid.num_micro_batches
        return self.pipeline * tensors * self.boundary

    def pipeline_buffers(self) -> Column:
        """Equation (8)."""
        norm_keeps_input = self.inputs.model.norm == "layernorm" or self.inputs.bytes_of("compute") == 4
        shared = (self.grid.recompute == FULL_RECOMPUTE) | norm_keeps_input
        tensors = self.totals.sent_in_flight - shared * self.totals.received_in_flight
        return np.asarray(self.receive_buffers + self.pipeline * tensors * self.boundary)

    def gathered(self, layers: int) -> Column:
        """Equation (5) with the root group and ``layers`` layers gathered under ZeRO 3."""
        last = self.totals.last
        some = last.root.gathered + np.minimum(layers * last.last_layer.gathered, last.layers.gathered)
        resharded = (self.grid.zero_stage == 3) & (self.grid.num_model_chunks == 1)
        if layers == 1:
            resharded &= self.pipeline == 0
        elements = np.where(resharded, some, self.totals.sizes.gathered)
        return elements * self.wrapped * self.inputs.bytes_of("compute")

    def second_shards(self) -> Column:
        """Equation (6)."""
        groups = np.maximum(self.grid.hierarchical_partition_size, 1)
        copy = self.totals.layer_sizes.gathered * self.inputs.bytes_of("compute") // groups
        return copy * (self.grid.hierarchical_partition_size > 0)

    def scatter_input(self, elements: Column) -> Column:
        """Equation (7)."""
        return elements * self.wrapped * self.inputs.bytes_of("reduce")

    def loss(self) -> Terms:
        """Equation (1)."""
        return {
            "gradients": self.accumulated,
            "activations": self.totals.in_flight,
            "logits": self.totals.logits,
            "gathered_parameters": self.gathered(2),
            "hierarchical_shards": self.second_shards(),
            "pipeline_buffers": self.pipeline_buffers(),
        }

    def first_backward(self) -> Terms:
        """Equation (2)."""
        in_place = self.inputs.bytes_of("compute") == self.inputs.bytes_of("reduce")
        fresh = 1 - self.totals.earlier * (1 - self.reduced_each) * in_place
        scattered = self.scatter_input(self.totals.last.last_layer.gathered) * (1 - self.pipeline)
        return {
            "gradients": self.accumulated + self.forming * fresh,
            "activations": self.totals.in_flight,
            "recompute_working_set": self.totals.recomputed,
            "backward_working_set": self.totals.backward,
            "gathered_parameters": self.gathered(2),
            "hierarchical_shards": self.second_shards(),
            "communication_buffers": np.maximum(scattered - self.totals.layer, 0),
            "pipeline_buffers": self.pipeline_buffers(),
        }

    def last_backward(self) -> Terms:
        """Equation (3)."""
        scattered = self.scatter_input(self.totals.last.last_layer.gathered) * (1 - self.pipeline)
        return {
            "gradients": self.finished + self.layer_gradients * self.wrapped,
            "activations": self.totals.in_flight - self.totals.micro_batch + self.totals.layer,
            "recompute_working_set": self.totals.recomputed,
            "backward_working_set": self.totals.backward,
            "gathered_parameters": self.gathered(1),
            "communication_buffers": scattered,
            "pipeline_buffers": self.pipeline_buffers(),
        }

    def reduction(self) -> Terms:
        """Equation (4); the root group is resharded before it is reduced, the layers only without a pipeline."""
        last, totals = self.totals.last, self.totals
        group = np.maximum(last.root.gathered, last.last_layer.gathered * self.pipeline)
        root = last.root.local * self.inputs.bytes_of("compute") * (1 - self.pipeline)
        layers = totals.layer_sizes.gathered * self.inputs.bytes_of("compute") * self.pipeline
        return {
            "gradients": self.finished + root * self.wrapped,
            "gathered_parameters": layers * self.wrapped,
            "communication_buffers": self.scatter_input(group),
            "pipeline_buffers": self.receive_buffers,
        }

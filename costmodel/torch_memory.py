"""Memory of one device under runtime ``torch``, term by term, as columns over candidates.

Bytes per element as in state_memory.py; K_c, A_c from rank_totals.py; W the widest gradients of one layer's backward, B
what recomputation makes again of it (activation_memory.py). The peak of forward and backward is the largest of

    (0) start             under ZeRO 3 without a pipeline: the root group and a layer being gathered, X
    (1) loss              sum K_c A_c kept, the head's logits; gradients of earlier micro-batches; X. A loss over chunks goes
                          backward chunk by chunk: one chunk's logits, beside the head side's gradient
        before it         under ZeRO 3 the root group is gathered again, without a head a layer at the same time
    (2) first backward    sum K_c A_c + B + W; (1)'s gradients + those of the head side and a tied table; X
        second            where no backward is over by (1), the same with one micro-batch less and the gradients of one
    (3) first reduction   sum K_c A_c less one layer; (2)'s gradients + the last layer's; its reduce-scatter, or X before it
        later             where gradients are added up whole: all of them beside those of the root group that just formed
    (4) second layer      without a pipeline: (2) less a layer, + its reduced gradients and its reduce-scatter
        last backward     one micro-batch of the last chunk less but its first layer, + B + W; gradients of all other
                          layers, the root group's as in (2); the previous layer's reduce-scatter
    (5) last reduction    no activations, all gradients; the root group's (or a layer's) reduce-scatter and whole gradients.
                          Under ZeRO 2 also in an earlier micro-batch, beside all gathered copies

Gradients of earlier micro-batches (if m v > K): G padded where they are reduced as they come (ZeRO 2 and 3 without a
pipeline), else R local. Those that form are in the compute format and count only where they are not added to them in
place. Finished ones: G padded, under a pipeline or without a wrapper R local. Interleaving in a single round (m < 2 p)
finishes the last chunk's backward before another chunk's begins, so only that chunk has whole gradients.

    (6) gathered copies, C per gathered element (none without a wrapper). Under ZeRO 3 with one chunk the root group, at (1),
        (3) and (4) a layer and at (2) two (current and prefetched); while a group is gathered its flat buffer lives beside
        its copies. Else everything, but at (4) without a pipeline, where the last micro-batch frees as it goes; torch's
        schedules free nothing after backward, and at (5) the root group. Everything of a rank with more than three chunks:
        of the three that torch has gathered (unshards.py). Several chunks under ZeRO 3: the chunks that are whole (same
        place), and the one in backward as above until its first backward ends; a forward ends with a layer and its buffer
    (7) hpZ: at (1) to (3) the layers' gathered copies / k; k = 1 keeps everything gathered, k of all devices is ZeRO 3
    (8) reduction of a group: its whole gradients and the flat input, R per gathered element; then the input, the output, R per
        padded element (twice on a CPU, where gloo works in a copy), and the group's last tensor, which a loop variable of
        FSDP2 still holds. X: that input of the root group, kept from an earlier micro-batch until the next reduction
    (9) receive buffers of a pipeline, m per direction and chunk, kept over steps; outputs sent: of the micro-batches in flight,
        with several chunks of all, since torch keeps their messages, which hold them, to the end of the step; gradients of
        received inputs likewise, gpipe too. 1f1b keeps the last message only: one gradient, and the last warm-up forward's
        output until no forward is left. A received input that a layer keeps counts once, and so does what neighbours hand over

Phases init and optimizer hold parameters, the latter also gradients and optimizer state: the optimizer is fused. Masks of
sliding windows are held from the first forward on (attention_memory.py).
What the allocator reserves for FSDP2's own streams beside all this: stream_pools.py.

Sources: torch 2.13.0 torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives}.py (one group prefetched,
one reduce-scatter input in flight), torch/distributed/pipelining/stage.py (`_create_act_recv_info`). Which storages are
alive when was followed operation by operation; tests/costmodel/test_memory_torch.py holds measured peaks, and
`meshwright verify` follows the executor itself at any size.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from costmodel.activation_memory import torch_end_bytes, torch_layer_bytes
from costmodel.attention_memory import stage_masks
from costmodel.rank_totals import (
    Inputs,
    PhaseTerms,
    RankMemory,
    Terms,
    gather_inputs,
    rank_totals,
    total,
)
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column, Sizes
from costmodel.specs import DeviceSpec, ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.stage_contents import RankContents
from costmodel.stream_pools import Instant, pooled_bytes
from costmodel.torch_rank import TorchRank


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
        layer_model=partial(torch_layer_bytes, fusion=runtime.kernel_fusion, windows=runtime.windowed_attention),
        end_model=partial(torch_end_bytes, accounting=runtime.memory, fusion=runtime.kernel_fusion),
    )


class Moment(NamedTuple):
    """Terms at an instant, and what of them lies in the pools of the reduce-scatter and the all-gather stream."""

    terms: Terms
    gradients: Column
    gather: Column


def torch_rank_memory(inputs: Inputs, contents: RankContents) -> RankMemory:
    """Terms of every phase for one pipeline rank per row; forward_backward at instants (0) to (5)."""
    rank = _Instants(inputs, rank_totals(inputs, contents))
    parameters = {"parameters": rank.totals.sizes.padded * inputs.bytes_of("parameter")}
    optimizer_state = {"optimizer_state": rank.optimizer_state}
    buffers = {"pipeline_buffers": rank.receive_buffers}
    windows = stage_masks(inputs.model, inputs.training.sequence_length, contents.chunks)
    masks = {"attention_masks": windows * (inputs.windows == "full_scores")}
    moments = rank.all()
    lasting = {**parameters, **optimizer_state, **masks}
    step = {**parameters, "gradients": rank.after_step, **optimizer_state, **masks, **buffers}
    phases: PhaseTerms = {
        "init": [parameters],
        "forward_backward": [{**lasting, **each.terms} for each in moments],
        "optimizer": [step],
    }
    held, stepping = total(lasting), total(step)
    sums = [total(each.terms) + held for each in moments]
    peak = reduce(np.maximum, [*sums, stepping])
    if inputs.accounting.stream_pools and inputs.device.kind != "cpu":
        return RankMemory(phases, peak, rank.pooled(moments, sums, stepping))
    return RankMemory(phases, peak, np.zeros_like(peak))


class _Instants(TorchRank):
    """The instants of forward and backward, equations (0) to (5)."""

    def all(self) -> list[Moment]:
        """Every instant that may be the peak of some row."""
        piped, single = self.pipeline.any(), not self.pipeline.all()
        loss, backward = self.loss(), self.first_backward()
        moments = [loss]
        moments += [self.start(), self.regather()] if self.reshards.any() else []
        moments += [self.forward()] if self.reshards_chunks.any() else []
        moments += [backward, self.first_reduction()]
        moments += [self._second(loss), self._second(backward)] if self.starts_full.any() else []
        moments += [self.second_layer()] if single else []
        moments += [self.merge()] if self.accumulates.any() else []
        moments.append(self.last_backward())
        moments += self._last_reductions() if single else []
        return moments + self._pipeline_reductions() if piped else moments

    def _second(self, moment: Moment) -> Moment:
        """The same of the second micro-batch where all are in flight at the first: one less, beside the first's gradients."""
        totals, applies = self.totals, self.starts_full
        whole = np.where(self.alone, totals.last.total.local, totals.sizes.local) * self.inputs.bytes_of("reduce")
        terms = dict(moment.terms)
        terms["activations"] = np.maximum(0, terms["activations"] - totals.micro_batch)
        terms["gradients"] = terms["gradients"] + whole
        again = self.reshards_chunks
        if again.any():
            terms["gathered_parameters"] = np.where(again, self.gathered(1, again), terms["gathered_parameters"])
        return Moment(
            {name: term * applies for name, term in terms.items()}, moment.gradients * applies, moment.gather * applies
        )

    def _moment(
        self, *, before: bool, prefetched: Column | None = None, late: Column | None = None, **terms: Column
    ) -> Moment:
        """Terms, with what lies in the pools of stream_pools.py; ``before``: no gradient of this micro-batch is reduced."""
        reduced = self.early_shards if before else late
        nothing = self.nothing
        return Moment(terms, nothing if reduced is None else reduced, nothing if prefetched is None else prefetched)

    def start(self) -> Moment:
        """Equation (0)."""
        applies = self.reshards & (self.pipeline == 0)
        return self._moment(
            before=True,
            prefetched=self.prefetched,
            gradients=self.earlier_gradients,
            gathered_parameters=2 * self.gathered(1) * applies,
            communication_buffers=self.retained,
        )

    def forward(self) -> Moment:
        """Equation (1), before it: under ZeRO 3 with several chunks a forward ends beside chunks that a backward left whole."""
        applies = self.reshards_chunks * self.wrapped
        return self._moment(
            before=True,
            gradients=self.earlier_gradients * applies,
            activations=self.totals.in_flight * applies,
            gathered_parameters=self.totals.forward_gathered * self.inputs.bytes_of("compute") * applies,
            pipeline_buffers=self.pipeline_buffers * applies,
        )

    def regather(self) -> Moment:
        """Equation (1), before it: under ZeRO 3 backward gathers the root group, without a head in the same breath a layer."""
        twice = np.where(self.head == 1, 0, self.totals.last.last_layer.gathered) + self.totals.last.root.gathered
        return self._moment(
            before=True,
            gradients=self.earlier_gradients,
            activations=self.totals.in_flight,
            gathered_parameters=2 * twice * self.reshards * self.wrapped * self.inputs.bytes_of("compute"),
            hierarchical_shards=self.second_shards,
            communication_buffers=self.retained,
            pipeline_buffers=self.pipeline_buffers,
        )

    def loss(self) -> Moment:
        """Equation (1)."""
        chunked = self.inputs.training.loss_chunks > 1
        return self._moment(
            before=True,
            prefetched=self.prefetched,
            gradients=self.earlier_gradients + self.forming(self.head_side) * chunked,
            gathered_parameters=self.gathered(1),
            hierarchical_shards=self.second_shards,
            communication_buffers=self.retained,
            activations=self.totals.in_flight,
            pipeline_buffers=self.pipeline_buffers,
            logits=self.totals.logits,
        )

    def first_backward(self) -> Moment:
        """Equation (2)."""
        widest = self.totals.widest
        freed = self.totals.head_kept + widest.freed + widest.behind
        formed, backward = self.formed(widest), widest.backward
        if self.split.any():
            freed = np.where(self.split, -self.totals.split, freed)
            formed, backward = formed * ~self.split, np.where(self.split, self.split_working_set, backward)
        return self._moment(
            before=True,
            prefetched=self.prefetched,
            gradients=self.earlier_gradients + self.forming(self.head_side) + formed,
            activations=np.maximum(0, self.totals.in_flight - freed),
            recompute_working_set=widest.recomputed,
            backward_working_set=backward,
            gathered_parameters=self.gathered(2),
            hierarchical_shards=self.second_shards,
            communication_buffers=self.retained,
            pipeline_buffers=self.pipeline_buffers,
        )

    def first_reduction(self) -> Moment:
        """Equation (3)."""
        layer = self.totals.last.last_layer
        reduces = 1 - self.accumulates
        first = self.accumulates * (1 - self.totals.earlier)
        whole = np.where(first == 1, layer.local * self.inputs.bytes_of("reduce"), self.forming(layer))
        return self._moment(
            before=True,
            prefetched=self.prefetched,
            gradients=self.earlier_gradients + self.forming(self.head_side) + whole,
            activations=np.maximum(0, self.totals.in_flight - self.totals.head_kept - self.totals.layer),
            gathered_parameters=self.gathered(1),
            hierarchical_shards=self.second_shards,
            communication_buffers=np.maximum(self.retained, self.reduction_input(layer) * reduces),
            pipeline_buffers=self.pipeline_buffers,
        )

    def second_layer(self) -> Moment:
        """Equation (4) of the layer before the last, without a pipeline."""
        totals, layer, widest = self.totals, self.totals.last.last_layer, self.totals.widest
        applies = (1 - self.pipeline) * (totals.last.layers.tensors > layer.tensors)
        reduced, behind = self.finished(layer) - self.accumulated(layer), np.maximum(totals.layer, widest.behind)
        again = self.reshards | ((self.grid.zero_stage == 2) & (self.grid.num_micro_batches > 2))
        gathered = self.gathered(2) - np.where(again, 0, layer.gathered) * self.wrapped * self.inputs.bytes_of(
            "compute"
        )
        terms = {
            "gradients": self.earlier_gradients + reduced + self.forming(self.head_side) + self.formed(widest),
            "activations": np.maximum(0, self.totals.in_flight - totals.head_kept - widest.freed - behind),
            "recompute_working_set": widest.recomputed,
            "backward_working_set": widest.backward,
            "gathered_parameters": gathered,
            "hierarchical_shards": self.second_shards,
            "communication_buffers": self.reduction_input(layer),
        }
        early = self.shards * self.reduced_each * totals.earlier + reduced
        return self._moment(
            before=False,
            prefetched=self.prefetched,
            late=early * self.wrapped * applies,
            **{name: term * applies for name, term in terms.items()},
        )

    def merge(self) -> Moment:
        """Equation (3), later: the root group's gradients of a micro-batch beside all accumulated ones."""
        totals, compute = self.totals, self.inputs.bytes_of("compute")
        in_place = compute == self.inputs.bytes_of("reduce")
        forming = np.where(self.alone, totals.last.root.local, self.roots.local)
        fresh = self.last_root_tensor if in_place else forming
        held = np.where(self.alone, totals.last.total.local, totals.sizes.local) * self.inputs.bytes_of("reduce")
        return self._moment(
            before=True,
            gradients=(held + fresh * compute) * self.accumulates,
            activations=np.maximum(0, totals.in_flight - totals.micro_batch) * self.accumulates,
            gathered_parameters=self.gathered(1, np.zeros_like(self.reshards)) * self.accumulates,
            pipeline_buffers=self.pipeline_buffers * self.accumulates,
        )

    def last_backward(self) -> Moment:
        """Equation (4)."""
        last, totals, first = self.totals.last, self.totals, self.totals.first_layer
        layers = np.where(self.alone, self.finished(last.layers), self.finished(totals.layer_sizes))
        own, root = (
            np.where(self.pipeline == 1, self.finished(part) * totals.earlier, self.accumulated(part))
            for part in (last.last_layer, last.root)
        )
        reduced = self.wrapped * (1 - self.pipeline) * self.inputs.bytes_of("gradient")
        late = totals.layer_sizes.padded - last.last_layer.padded
        return self._moment(
            before=False,
            late=reduced * (late + last.root.padded * self.reduced_each * totals.earlier),
            gradients=layers
            - self.finished(last.last_layer)
            + own
            + root
            + self.forming(self.head_side)
            + self.formed(first),
            activations=np.maximum(0, totals.in_flight - totals.micro_batch + first.kept - first.freed),
            recompute_working_set=first.recomputed,
            backward_working_set=first.backward,
            gathered_parameters=self.gathered(1, self.pipeline == 0),
            communication_buffers=self.reduction_input(last.last_layer) * (1 - self.pipeline),
            pipeline_buffers=self.pipeline_buffers,
        )

    def _last_reductions(self) -> list[Moment]:
        """Equation (5) without one: the root group's; of ZeRO 2 also an earlier micro-batch's, which frees no gathered copies."""
        single = 1 - self.pipeline
        totals, root = self.totals, self.totals.last.root
        held = np.where(self.accumulates == 1, self.inputs.bytes_of("reduce"), self.inputs.bytes_of("compute"))
        earlier = root.padded * self.inputs.bytes_of("gradient") * self.reduced_each * totals.earlier
        whole, buffers = self._reduction(root, held)
        reduced = self.wrapped * self.inputs.bytes_of("gradient")
        gradients = self.finished(totals.layer_sizes) + earlier
        plain = (self.finished(totals.sizes) - gradients) * (1 - self.wrapped)
        late = reduced * totals.sizes.padded
        again = (self.grid.zero_stage == 2) & (self.grid.num_micro_batches > 1) & (self.pipeline == 0)
        return [
            self._moment(
                before=False,
                late=late * single,
                gradients=(gradients + whole + plain) * single,
                communication_buffers=buffers * single,
            ),
            self._moment(
                before=False,
                late=late * again,
                gradients=(gradients + whole) * again,
                communication_buffers=buffers * again,
                gathered_parameters=self.gathered(1, np.zeros_like(self.reshards)) * again,
            ),
        ]

    def _reduction(self, sizes: Sizes, held: Column) -> tuple[Column, Column]:
        """Equation (8): gradients, whole ones of ``held`` bytes per element or reduced ones, and the input, at most."""
        tensor = self.last_root_tensor * held * (self.grid.shard_group_size > 1) * self.wrapped
        first, output = sizes.local * held * self.wrapped, self.reduction_output(sizes)
        return np.maximum(first, tensor + output), self.reduction_input(sizes)

    def _pipeline_reductions(self) -> list[Moment]:
        """Equation (5) under a schedule: of a chunk alone, and of everything (or the last chunk, beside reduced ones)."""
        totals, compute = self.totals, self.inputs.bytes_of("compute")
        wide = np.full_like(self.shards, self.inputs.bytes_of("reduce"))
        moments = []
        ends = [(totals.last, True), (totals.first, False)]
        for chunk, alone in ends if self.alone.any() else ends[1:]:
            root = chunk.root if alone else self.roots
            group = np.where(root.tensors > 0, 1, 0)
            whole, buffers = self._reduction(root, wide)
            layer = self.reduction_input(chunk.last_layer)
            others = (totals.sizes.padded - chunk.total.padded) * self.inputs.bytes_of("gradient")
            single = chunk.layers.local * wide + (0 if alone else others)
            both = np.where(self.alone, single, totals.layer_sizes.local * wide)
            kept = (totals.in_flight - self.grid.num_micro_batches * totals.micro_batch) * alone
            applies = self.pipeline * (self.alone if alone else np.ones_like(self.alone))
            gathered = np.where(self.alone & ~np.bool_(alone), chunk.layers.gathered, totals.layer_sizes.gathered)
            plain = root.local * wide * (1 - self.wrapped)
            moments.append(
                self._moment(
                    before=False,
                    gradients=(both + whole + plain) * applies,
                    activations=np.maximum(kept, 0) * applies,
                    gathered_parameters=gathered * self.wrapped * compute * applies,
                    communication_buffers=np.where(group == 1, buffers, layer) * applies,
                    pipeline_buffers=(self.pipeline_buffers if alone else self.final_buffers) * applies,
                )
            )
        return moments

    def pooled(self, moments: list[Moment], sums: list[Column], step: Column) -> Column:
        """stream_pools.py (3).

        Args:
            moments: of forward and backward.
            sums: bytes at each of them.
            step: bytes in the optimizer step.
        """
        last, compute = self.totals.last, self.inputs.bytes_of("compute")
        shards = self.shards * self.wrapped
        sharded = self.wrapped * (self.grid.shard_group_size > 1) * compute
        gather = sharded * np.maximum(last.root.gathered, last.last_layer.gathered)
        parts = [Instant(allocated, each.gradients, each.gather) for allocated, each in zip(sums, moments, strict=True)]
        return pooled_bytes([*parts, Instant(step, shards, np.zeros_like(step))], gradients=shards, gather=gather)

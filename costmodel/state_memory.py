"""Bytes of parameters, gradients and optimizer state, exactly, for every global rank at three instants.

Letters: elements of one device (shard_sizes.py): ``local`` after tensor parallelism, ``padded`` its ZeRO shard with
FSDP2's padding, ``own`` without; the sharding group is dp_shard x cp. Bytes per element (PrecisionSpec): P parameter,
C compute, R reduce, G gradient, S state, M master (0 when the parameter is the master). m micro-batches. Sums run over the
tensors of the rank's pipeline stages; a tied table counts once per stage that holds it.

Runtime ``torch`` (sharding ``fsdp2``). *Plain*: one data-parallel replica and C = P, no wrapper. *Wrapped*: otherwise.

    parameters, at every instant
      (1) plain                                                P local
      (2) wrapped                                              P padded          (ZeRO 0: one shard, padded = local)
    gradients
      (3) after_init                                           0
      (4) before_reduction, plain                              G local           (after the last micro-batch's backward)
      (5) before_reduction, wrapped, no pipeline: the first group to reduce is the last layer's. Its gradients and those of
          the head side (final norm and head) are whole, unsharded, in the compute format; a tied table has none yet, as
          autograd first sums its two uses:
              current = C (local of the last layer + local of the head side)
          m = 1                                                current
          m > 1, ZeRO 0 or 1, C = R                            C local           (accumulated in place)
          m > 1, ZeRO 0 or 1, C != R                           R local + current (accumulated apart, in the reduce format)
          m > 1, ZeRO 2 or 3                                   G padded + current
      (6) before_reduction, wrapped, pipeline: torch reduces once per step, stage by stage (REDUCE_GRAD)
          R local of the chunks that have gradients by then: one chunk alone; the last of a looped_bfs or of a single round
      (7) after_step                                           G local (plain), G padded (wrapped: views of one flat
                                                               reduce-scatter output per FSDP group)
    optimizer state
      (8) after_init                                           0
      (9) later                                                k S own + 4 t     k moments; t tensors with AdamW (its ``step``
                                                               is a 4-byte tensor per parameter), t = 0 with SGD

    Gathered copies, hpZ's per-group copies and collectives' buffers are working memory (stage_memory.py), not state.

Runtime ``megatron`` (sharding ``flat``): buffers live from initialisation on; the distributed optimizer is ZeRO 1 over d
devices. A state that a ZeRO stage shards has ceil(local / d) elements: optimizer state from stage 1, gradients from 2,
parameters from 3.

     (10) parameters P local; gradients G local; optimizer state M ceil(local / d), after the first step (M + k S) of it

Sources: torch 2.13.0 torch/distributed/fsdp/_fully_shard/{_fsdp_param,_fsdp_param_group,_fsdp_collectives}.py,
torch/distributed/pipelining/{stage,schedules}.py; Megatron-LM docs/source/api-guide/dist_optimizer.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from costmodel.frequency import is_wrapped
from costmodel.runtimes.grid import Grid
from costmodel.schedules import Kind, rank_operations
from costmodel.shard_sizes import Column, Cut, ModelSizes, Sizes, model_sizes
from costmodel.specs import (
    BYTES_PER_ELEMENT,
    InputError,
    Instant,
    ModelSpec,
    OptimizerSpec,
    Plan,
    PrecisionSpec,
    RuntimeProfile,
)
from costmodel.stage_contents import Chunks, plan_contents

ADAM_STEP_BYTES = 4
MAIN_GRADIENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Storage bytes on one device at one instant."""

    parameters: int
    gradients: int
    optimizer_state: int


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Sizes of one model chunk.

    ``root``: embedding, final norm and head, the root FSDP group. ``head_side``: final norm and untied head, ``tied``: the
    token embedding where it is the head. ``layers``: all layers; ``last_layer``: one layer like its last.
    """

    root: Sizes
    head_side: Sizes
    tied: Sizes
    layers: Sizes
    last_layer: Sizes

    @property
    def total(self) -> Sizes:
        """Everything in the chunk."""
        return self.root + self.layers


def chunk_sizes(model: ModelSpec, sizes: ModelSizes, chunk: Chunks) -> ChunkSizes:
    """Sizes of the tensors of chunks [n] or [v, n]; a stage with a tied head but no embedding holds its own copy of the table."""
    head_side = sizes.head.times(chunk.head)
    tied = sizes.token_embedding.times(chunk.head * int(model.tie_word_embeddings))
    root = sizes.embedding.times(chunk.embedding) + head_side + tied.times(1 - chunk.embedding)
    layers = [size.times(count) for size, count in zip(sizes.layers, chunk.layers, strict=True)]
    has_layers = chunk.num_layers > 0
    last = [size.times((chunk.last_kind == kind) & has_layers) for kind, size in enumerate(sizes.layers)]
    return ChunkSizes(root, head_side, tied, reduce(Sizes.__add__, layers), reduce(Sizes.__add__, last))


def rank_sizes(model: ModelSpec, sizes: ModelSizes, chunks: Chunks) -> tuple[Sizes, Sizes]:
    """Sizes of everything in the chunks of a rank, and of their layers: `chunk_sizes` summed, with one product a part."""
    layers, ends = _parts(model, sizes, chunks)
    layer_sizes, total = (
        reduce(Sizes.__add__, (size.times(count.sum(axis=0)) for size, count in parts)) for parts in (layers, ends)
    )
    return layer_sizes + total, layer_sizes


def gathered_elements(model: ModelSpec, sizes: ModelSizes, chunks: Chunks) -> Column:
    """`chunk_sizes` of chunks [v, n], the gathered elements of their totals alone."""
    layers, ends = _parts(model, sizes, chunks)
    return reduce(np.add, (size.gathered * count for size, count in (*layers, *ends)))


def _parts(
    model: ModelSpec, sizes: ModelSizes, chunks: Chunks
) -> tuple[list[tuple[Sizes, Column]], list[tuple[Sizes, Column]]]:
    """Parts of the model and how many of each a chunk holds: layers of every kind, and the ends of the model."""
    ends = [(sizes.embedding, chunks.embedding), (sizes.head, chunks.head)]
    if model.tie_word_embeddings:
        ends.append((sizes.token_embedding, chunks.head * (1 - chunks.embedding)))
    return list(zip(sizes.layers, chunks.layers, strict=True)), ends


def state_bytes(plan: Plan, runtime: RuntimeProfile, rank: int) -> dict[Instant, StateBytes]:
    """Equations (1) to (10) for one global rank.

    Args:
        plan: a complete plan; ``rank`` is row-major over its ``axis_order``.
        runtime: the profile the plan is meant for.
        rank: global rank, 0 to the number of devices used less one.

    Raises:
        InputError: when the plan has no such rank.
    """
    place = coordinates(plan, rank)
    cut = Cut(
        tensor_parallel_size=np.array([plan.parallel.tensor_parallel_size]),
        shard_size=Grid.from_plan(plan).shard_group_size,
        tensor_parallel_index=place["tp"],
        shard_index=_shard_index(plan, place),
    )
    sizes = model_sizes(plan.model, runtime, cut)
    held = plan_contents(plan, [place["pp"]]).chunks
    chunks = [chunk_sizes(plan.model, sizes, held.pick(np.array([index]))) for index in range(len(held.exists))]
    if runtime.sharding == "flat":
        return _flat_state(plan, chunks, runtime)
    return _fsdp2_state(plan, chunks, place["pp"])


def _shard_index(plan: Plan, place: dict[str, int]) -> int:
    """Place in the sharding group, dp_shard x cp where ZeRO shards."""
    if plan.parallel.zero_stage == 0:
        return place["dp_shard"]
    return place["dp_shard"] * plan.parallel.context_parallel_size + place["cp"]


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """Place of a global rank on every mesh axis; the last axis of ``axis_order`` varies fastest.

    Raises:
        InputError: when the plan has no such rank.
    """
    if not 0 <= rank < plan.num_devices_used:
        raise InputError(f"rank {rank} is not in the plan; it uses ranks 0 to {plan.num_devices_used - 1}")
    parallel = plan.parallel
    sizes = {
        "pp": parallel.pipeline_parallel_size,
        "dp_replicate": parallel.data_parallel_replicate_size,
        "dp_shard": parallel.data_parallel_shard_size,
        "cp": parallel.context_parallel_size,
        "tp": parallel.tensor_parallel_size,
    }
    place: dict[str, int] = {}
    for axis in reversed(plan.axis_order):
        rank, place[axis] = divmod(rank, sizes[axis])
    return place


def _fsdp2_state(plan: Plan, chunks: list[ChunkSizes], rank: int) -> dict[Instant, StateBytes]:
    training = plan.training
    precision, optimizer = training.precision, training.optimizer
    total = reduce(Sizes.__add__, (chunk.total for chunk in chunks))
    wrapped = bool(is_wrapped(Grid.from_plan(plan), training)[0])
    held = int((total.padded if wrapped else total.local)[0])
    parameters = held * BYTES_PER_ELEMENT[precision.parameter]
    state = int(total.own[0]) * optimizer.num_moments * BYTES_PER_ELEMENT[precision.state]
    state += ADAM_STEP_BYTES * int(total.tensors[0]) * (optimizer.name == "adamw")
    gradients = held * BYTES_PER_ELEMENT[precision.gradient]
    before = _before_reduction(plan, chunks, rank) if wrapped else gradients
    return {
        "after_init": StateBytes(parameters, 0, 0),
        "before_reduction": StateBytes(parameters, before, state),
        "after_step": StateBytes(parameters, gradients, state),
    }


def _chunks_with_gradients(plan: Plan, rank: int) -> set[int]:
    """Chunks of pipeline rank ``rank`` that have gradients when the first of them has all of its own."""
    parallel, counts = plan.parallel, Counter[int]()
    order = rank_operations(
        parallel.pipeline_schedule,
        rank=rank,
        num_ranks=parallel.pipeline_parallel_size,
        num_chunks=parallel.num_model_chunks,
        num_micro_batches=parallel.num_micro_batches,
    )
    for operation in order:
        if operation.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            counts[operation.chunk] += 1
            if counts[operation.chunk] == parallel.num_micro_batches:
                break
    return set(counts)


def _before_reduction(plan: Plan, chunks: list[ChunkSizes], rank: int) -> int:
    """Gradients of a wrapped plan, cases (5) and (6)."""
    parallel, precision = plan.parallel, plan.training.precision
    reduce_bytes, compute_bytes = BYTES_PER_ELEMENT[precision.reduce], BYTES_PER_ELEMENT[precision.compute]
    if parallel.pipeline_parallel_size > 1:
        begun = _chunks_with_gradients(plan, rank)
        return reduce_bytes * sum(int(chunks[index].total.local[0]) for index in begun)
    (chunk,) = chunks
    current = compute_bytes * int((chunk.head_side + chunk.last_layer).local[0])
    if parallel.num_micro_batches == 1:
        return current
    if parallel.zero_stage >= 2:
        return BYTES_PER_ELEMENT[precision.gradient] * int(chunk.total.padded[0]) + current
    accumulated = reduce_bytes * int(chunk.total.local[0])
    return accumulated if precision.compute == precision.reduce else accumulated + current


def flat_state_bytes(
    elements: int, shards: int, zero_stage: int, *, precision: PrecisionSpec, optimizer: OptimizerSpec
) -> StateBytes:
    """Equation (10) after the first step, for any ZeRO stage.

    Args:
        elements: parameters of one device before sharding.
        shards: d, devices that share the state.
        zero_stage: 0 to 3; arXiv 1910.02054 figure 1 calls 1 to 3 P_os, P_os+g and P_os+g+p.
        precision: number formats.
        optimizer: AdamW or SGD.
    """
    shard = -(-elements // shards)
    held = [shard if zero_stage >= stage else elements for stage in (3, 2, 1)]
    master = BYTES_PER_ELEMENT[precision.master] if precision.master else 0
    return StateBytes(
        parameters=held[0] * BYTES_PER_ELEMENT[precision.parameter],
        gradients=held[1] * BYTES_PER_ELEMENT[precision.gradient],
        optimizer_state=held[2] * (master + optimizer.num_moments * BYTES_PER_ELEMENT[precision.state]),
    )


def _flat_state(plan: Plan, chunks: list[ChunkSizes], runtime: RuntimeProfile) -> dict[Instant, StateBytes]:
    """Equation (10), and the runtime's own copies beside the gradients."""
    parallel, precision = plan.parallel, plan.training.precision
    elements = int(reduce(Sizes.__add__, (chunk.total for chunk in chunks)).local[0])
    shards, stage = int(Grid.from_plan(plan).shard_group_size[0]), parallel.zero_stage
    optimizer = plan.training.optimizer
    without_moments = OptimizerSpec(name="sgd", momentum=0.0)
    held = -(-elements // shards) if stage >= 2 else elements
    copies = held * runtime.memory.state_bytes.get(precision.compute, 0)
    before, after = (
        flat_state_bytes(elements, shards, stage, precision=precision, optimizer=each)
        for each in (without_moments, optimizer)
    )
    before, after = (replace(each, gradients=each.gradients + copies) for each in (before, after))
    return {"after_init": before, "before_reduction": after, "after_step": after}

"""Contiguous pipeline stages: which layers each model chunk holds.

Virtual stages follow the model; runtimes/placement.py says which rank holds which. Virtual stage 0 holds the embedding, the last
one the final norm and head.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from costmodel.runtimes.grid import RecomputeKind
from costmodel.runtimes.placement import place
from costmodel.specs import InputError, ModelSpec, PipelineSchedule, RecomputeSpec, StageCosts, StageSpec


def even_split(num_layers: int, num_virtual_stages: int) -> tuple[int, ...]:
    """Layers per virtual stage, differing by at most one.

    What is left over goes to the inner stages first, then to the first and at the very end to the last
    stage: the ends already carry the embedding and the head.

    Raises:
        InputError: when there are fewer layers than virtual stages.
    """
    if num_layers < num_virtual_stages:
        raise InputError(
            f"{num_layers} layers cannot fill {num_virtual_stages} pipeline stages "
            f"(pipeline_parallel_size x num_model_chunks): every stage needs at least one layer; use at most {num_layers}"
        )
    base, extra = divmod(num_layers, num_virtual_stages)
    order = [*range(1, num_virtual_stages - 1), 0, num_virtual_stages - 1][:extra]
    return tuple(base + (index in order) for index in range(num_virtual_stages))


def split_by_cost(model: ModelSpec, costs: StageCosts, num_stages: int) -> tuple[int, ...]:
    """Layers per stage where a stack deals its modules front to back: a stage ends once it has its share of all costs.

    Args:
        model: its layers cost 1 each.
        costs: what embedding and head cost.
        num_stages: pipeline stages.

    Returns:
        Layers of every stage, at least one.
    """
    group = model.layers[-1]
    attention, hidden = group.attention, model.hidden_size
    projections = hidden * attention.head_dim * 2 * (attention.num_attention_heads + attention.num_key_value_heads)
    feed_forward = hidden * group.feed_forward.intermediate_size * (3 if group.feed_forward.gated else 2)
    head = costs.head
    weight = model.padded_vocab_size * hidden / (projections + feed_forward) if head == "parameters" else float(head)
    share = (costs.embedding + model.num_hidden_layers + weight) / num_stages
    ends = [math.ceil(round(share * (stage + 1) - costs.embedding, 9)) for stage in range(num_stages - 1)]
    depth = model.num_hidden_layers
    bounded = [min(max(end, stage + 1), depth - num_stages + stage + 1) for stage, end in enumerate(ends)]
    return tuple(end - start for start, end in itertools.pairwise([0, *bounded, depth]))


Recomputation = RecomputeKind | RecomputeSpec | Sequence[RecomputeSpec]


def _recompute_by_stage(recompute: Recomputation, num_stages: int) -> Sequence[RecomputeSpec]:
    """What every virtual stage recomputes.

    Raises:
        InputError: when the list has another length.
    """
    if isinstance(recompute, str):
        recompute = RecomputeSpec(kind=recompute)
    if isinstance(recompute, RecomputeSpec):
        return [recompute] * num_stages
    if len(recompute) != num_stages:
        raise InputError(
            f"recompute lists {len(recompute)} stages; needed {num_stages} (pipeline_parallel_size x num_model_chunks), or one "
            "kind for all of them"
        )
    return recompute


def make_stages(
    num_layers: int,
    pipeline_parallel_size: int,
    num_model_chunks: int = 1,
    *,
    schedule: PipelineSchedule = "none",
    recompute: Recomputation = "none",
    layers_per_stage: tuple[int, ...] | None = None,
) -> tuple[StageSpec, ...]:
    """Stages of a plan in virtual-stage order.

    Args:
        num_layers: layers of the model.
        pipeline_parallel_size: pipeline ranks.
        num_model_chunks: chunks per rank.
        schedule: decides which rank holds which stage.
        recompute: of all stages alike, or of every virtual stage.
        layers_per_stage: layers of every virtual stage; None splits evenly.

    Raises:
        InputError: when the stages do not sum to the model or a stage is empty.
    """
    virtual = pipeline_parallel_size * num_model_chunks
    counts = even_split(num_layers, virtual) if layers_per_stage is None else layers_per_stage
    if len(counts) != virtual or sum(counts) != num_layers or min(counts) < 1:
        raise InputError(
            f"layers per stage {list(counts)}: found {len(counts)} stages with {sum(counts)} layers; needed {virtual} stages "
            f"(pipeline_parallel_size {pipeline_parallel_size} x num_model_chunks {num_model_chunks}) of at least one layer "
            f"with {num_layers} layers in total"
        )
    stages, start = [], 0
    modes = _recompute_by_stage(recompute, virtual)
    for index, count in enumerate(counts):
        rank, chunk = place(schedule, index, pipeline_parallel_size)
        stages.append(
            StageSpec(
                rank=rank,
                chunk=chunk,
                start=start,
                stop=start + count,
                embedding=index == 0,
                head=index == virtual - 1,
                recompute=modes[index],
            )
        )
        start += count
    return tuple(stages)

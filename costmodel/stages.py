"""Contiguous pipeline stages: which layers each model chunk holds.

Virtual stages follow the model; runtimes/placement.py says which rank holds which. Virtual stage 0 holds the embedding, the last
one the final norm and head.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.runtimes.grid import RecomputeKind
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.placement import place
from costmodel.specs import InputError, PipelineSchedule, RecomputeSpec, StageSpec

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

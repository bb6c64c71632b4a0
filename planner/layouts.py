"""Which candidates are the same answer, and how much machinery one needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.runtimes.grid import Grid, group_rows

Index = NDArray[np.int64]


def complexity_columns(grid: Grid) -> list[Index]:
    """How much machinery a candidate needs, most important first: axes in use, then kinds of machinery, then sizes."""
    axes = (grid.tensor_parallel_size, grid.context_parallel_size, grid.pipeline_parallel_size, grid.data_parallel_size)
    return [
        sum(((size > 1).astype(np.int64) for size in axes), np.zeros(len(grid), dtype=np.int64)),
        grid.zero_stage,
        (grid.hierarchical_partition_size > 0).astype(np.int64),
        grid.axis_order,
        grid.num_model_chunks,
        grid.pipeline_schedule,
        grid.sequence_parallel,
        (grid.recompute > 0).astype(np.int64),
        grid.pipeline_parallel_size,
        grid.num_micro_batches,
    ]


def layouts(grid: Grid) -> Index:
    """Equal for candidates that are the same answer: they differ in schedule, batch and recompute details only; [n].

    Under a pipeline gradients are reduced once per step, so ZeRO stages 1 and 2 are one answer.
    """
    same_stage = (grid.pipeline_parallel_size > 1) & (grid.zero_stage == 2)
    return group_rows(
        (
            grid.tensor_parallel_size,
            grid.context_parallel_size,
            grid.pipeline_parallel_size,
            grid.data_parallel_replicate_size,
            grid.data_parallel_shard_size,
            np.where(same_stage, 1, grid.zero_stage),
        )
    )

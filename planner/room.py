"""Whether the ranks of a pipeline of one chunk a rank may have room for all layers, however they are split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodel.completions import CompletionBytes, StageColumns
from costmodel.layer_kinds import models_of_one_kind
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.layer_split import even_split
from costmodel.setting import Problem

Mask = NDArray[np.bool_]


def has_room(problem: Problem, grid: Grid, capacity_bytes: float) -> Mask:
    """Whether the ranks may have room for all layers if each held as many as fit with all of them recomputed, [n].

    Bytes of a rank are convex in its layers, being the largest of sums: they grow by no less than just before any number. Of
    several kinds of layer the leanest counts.
    """
    depth, ranks = problem.model.num_hidden_layers, int(grid.pipeline_parallel_size[0])
    layers = np.broadcast_to(np.array(even_split(depth, ranks)), (len(grid), ranks))
    last = np.minimum(np.maximum(2, layers), depth - 1)
    recomputes = (grid.recompute > 0)[:, None]
    models = models_of_one_kind(problem.model)
    if models is None:
        return np.ones(len(grid), dtype=bool)
    needed, more = np.full(last.shape, np.inf), np.full(last.shape, np.inf)
    for model in models:
        price = CompletionBytes(replace(problem, model=model), grid)
        before, here = (
            price.of(StageColumns(starts=np.zeros_like(count), layers=count, recomputed=np.where(recomputes, count, 0)))
            for count in (last - 1, last)
        )
        needed, more = np.minimum(needed, here), np.minimum(more, here - before)
    room = np.floor(last + (capacity_bytes - needed) / np.maximum(1.0, more))
    return np.asarray(np.clip(room, 0, depth - ranks + 1).sum(axis=1) >= depth)

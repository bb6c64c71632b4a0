"""The cheapest lower bound on a candidate's step time: what its devices compute, whatever data parallelism costs beside it.

W is the time of one micro-batch, forward and backward without recomputation, were the whole model on one tensor-parallel group:
computation, host time and collectives of the tensor- and the context-parallel group, as in relaxed.py. It depends on few columns
of a grid, so it is computed once for each of their values. Everything else adds to the passes of some stage or comes beside them.

    (1) T >= m W / p. Ranks compute W together, so the busiest takes at least W / p of every micro-batch; and T >= m W without
        overlap of stages (none, naive)
    (2) one chunk a rank: T >= (1 + C) W of relaxed.py, whatever the boundaries
    (3) several chunks that lie in a loop, evenly split: T >= m W / p + (p - 1) a / 2 and T >= (m v + p - 1) a, with a the least
        time of a virtual stage. Stage r of rank r comes after the forwards of r stages, and its last backward, which is the
        rank's last operation, before r backwards: T >= m t_r + r a. The mean over the ranks gives the former, the last rank the
        latter
    (4) whole backwards: T >= W + (m - 1) a. The first micro-batch comes to the last stage through all others, that stage takes at
        least a for each, and the last backward goes back through all others; a is 0 where boundaries are open
    (5) where at least x layers are recomputed, x_0 of them by rank 0, W has the least time that this takes besides, and
        T >= m (v a + x_0 times that of one layer)
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from costmodel.bounds import ROUNDING
from costmodel.compute import Column
from costmodel.relaxed import pipeline_factors
from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid, distinct_rows
from costmodel.setting import Matrix, Problem, Setting, mean_stage, prepare
from costmodel.split_in_flight import splits_backward
from costmodel.stack import read_stack
from costmodel.step import slowest_of_all
from costmodel.tables import ATTENTION, GEMM, MEMORY, RECOMPUTE
from costmodel.vocabulary import padded_models

_NONE = SCHEDULES.index("none")
_WORKED_ON = (
    "tensor_parallel_size", "sequence_parallel", "loss_parallel", "micro_batch_size", "context_parallel_size",
    "context_parallel_method",
)  # fmt: skip


def work_bound(
    problem: Problem,
    grid: Grid,
    *,
    layers_per_stage: tuple[int, ...] | None = None,
    recomputed: tuple[Column, Column] | None = None,
) -> Column:
    """Equations (1) to (5) for every row [n], in seconds.

    Args:
        problem: what is trained on what.
        grid: n candidates.
        layers_per_stage: stated boundaries, which all completions of all candidates share; None leaves them open where a rank
            has one chunk, and is an even split elsewhere.
        recomputed: layers that all ranks together recompute at least [n], and rank 0 [n]; None leaves recomputation out.

    Raises:
        InputError: as `costmodel.bounds.step_time_lower_bound`.
    """
    kinds, index = distinct_rows([getattr(grid, name) for name in _WORKED_ON])
    stack = read_stack(problem.runtime)
    slower = slowest_of_all(problem.cluster, stack, grid.num_devices)
    work = _work(problem, grid.take(kinds))
    layer, again = work.layer[index] * slower, work.again[index, grid.recompute] * slower
    of_all, of_first = recomputed or (np.zeros(len(grid)), np.zeros(len(grid)))
    whole = work.whole[index] * slower + of_all * again
    ranks, chunks = grid.pipeline_parallel_size, grid.num_model_chunks
    alone = grid.num_micro_batches * whole / ranks
    least = problem.model.num_hidden_layers // (ranks * chunks) if layers_per_stage is None else min(layers_per_stage)
    whole_backwards = ~splits_backward(grid)
    looped = (chunks > 1) & whole_backwards
    stage = np.where(chunks > 1, least, 0) * layer
    first_and_last = np.where(looped, (ranks - 1) * stage, 0.0)
    bounds = (
        alone + first_and_last / 2,
        grid.num_micro_batches * chunks * stage + np.maximum(first_and_last, grid.num_micro_batches * of_first * again),
        pipeline_factors(grid) * whole,
        (whole + (grid.num_micro_batches - 1) * stage) * whole_backwards,
    )
    return np.asarray(np.maximum.reduce(bounds) * (1.0 - ROUNDING))


def compute_seconds(problem: Problem, grid: Grid) -> Column:
    """Seconds that a device of every candidate [n] computes for one micro-batch, forward and backward, if its tensor-parallel
    group held the whole model: products, attention and memory-bound work, without communication and recomputation.

    Args:
        problem: what is trained on what.
        grid: n candidates without a pipeline.
    """
    return _work(problem, grid, parts=(GEMM, ATTENTION, MEMORY)).whole * (1.0 - ROUNDING)


class _Work(NamedTuple):
    """Seconds of one micro-batch: ``whole`` W [n], ``layer`` of the fastest kind [n], ``again`` what recomputation of a layer
    adds at least [n, K].
    """

    whole: Column
    layer: Column
    again: Matrix


def _work(problem: Problem, grid: Grid, parts: tuple[int, ...] | None = None) -> _Work:
    """Some parts of passes or all, of one pipeline stage and one data-parallel device; weights are cast once in as many
    micro-batches as any candidate has.
    """
    one, zero = np.ones(len(grid), dtype=np.int64), np.zeros(len(grid), dtype=np.int64)
    alone = replace(
        grid,
        pipeline_parallel_size=one,
        pipeline_schedule=np.full(len(grid), _NONE),
        num_model_chunks=one,
        data_parallel_replicate_size=one,
        data_parallel_shard_size=one,
        zero_stage=zero,
        hierarchical_partition_size=zero,
        num_micro_batches=one * problem.training.global_batch_size,
        axis_order=zero,
        recompute=zero,
    )
    found = _Work(np.zeros(len(grid)), np.zeros(len(grid)), np.zeros((len(grid), len(RECOMPUTE_KINDS))))
    for model, rows in padded_models(problem.model, problem.runtime, alone):
        part = alone if rows is None else alone.take(rows)
        setting = prepare(replace(problem, model=model), part, mean_stage(model, 1))
        for column, seconds in zip(found, _of_table(setting, parts), strict=True):
            column[slice(None) if rows is None else rows] = seconds
    return found


def _of_table(setting: Setting, parts: tuple[int, ...] | None) -> _Work:
    table, count = setting.table, setting.contents.by_kind[:, 0]
    chosen = list(parts) if parts is not None else slice(None)
    layers = (table.layer_forward + table.layer_backward[:, :, 0])[..., chosen].sum(axis=-1)
    ends = (table.embedding + table.head)[..., chosen].sum(axis=(1, 2))
    again = table.layer_backward[..., RECOMPUTE].min(axis=1)
    return _Work((layers * count).sum(axis=1) + ends, layers.min(axis=1), again)

"""Step times of whole grids without estimating plan by plan: a lower bound, and the longest path itself.

Rows that share a pipeline shape are computed together: durations from one table of passes (step.py), then the ends of the
ranks' last backwards, from explicit paths (paths.py, a bound) or from the longest path (pipeline.py, exact). Both go through
equation (5) of step.py, which is monotone in the ends, so the bound holds for the whole step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodel.compute import Column
from costmodel.in_flight import rows_by_value
from costmodel.paths import Paths
from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.placement import stages_of_ranks
from costmodel.setting import Matrix, Problem, grid_contents, prepare
from costmodel.specs import ClusterSpec, ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.steady_state import Shape, pipeline_ends
from costmodel.step import StepTimes, step_times
from costmodel.vocabulary import padded_models

ROUNDING = 1e-11
"""Relative slack for the order of summation: a path's length by formula and node by node differ by about 1e-13."""


def step_time_lower_bound(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    grid: Grid,
    *,
    layers_per_stage: tuple[int, ...] | None = None,
) -> Column:
    """A lower bound on the step time of every row's plan.

    Args:
        model: the model.
        cluster: the machine.
        training: batch, sequence, precision.
        runtime: the framework.
        grid: n candidates.
        layers_per_stage: layers of every virtual stage, the same for all rows; None splits evenly.

    Returns:
        Seconds [n], at most `costmodel.estimate.estimate` of the row's plan.

    Raises:
        InputError: when the device cannot compute in the training precision, a row has more virtual stages than layers, or
            the runtime lacks a constant.
    """
    problem = Problem(model=model, cluster=cluster, training=training, runtime=runtime)
    shape = ("pipeline_schedule", "pipeline_parallel_size", "num_model_chunks")
    return by_shape(problem, grid, shape, _split_as_stated(layers_per_stage, bound_ends))


def step_time_column(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    grid: Grid,
    *,
    layers_per_stage: tuple[int, ...] | None = None,
) -> Column:
    """The exact step time of every row's plan: the longest path, vectorised over equal topologies.

    Arguments, result and errors as `step_time_lower_bound`.
    """
    problem = Problem(model=model, cluster=cluster, training=training, runtime=runtime)
    shape = ("pipeline_schedule", "pipeline_parallel_size", "num_model_chunks", "num_micro_batches")
    return by_shape(problem, grid, shape, _split_as_stated(layers_per_stage, exact_ends))


Ends = Callable[[Grid, StepTimes], Matrix]
Seconds = Callable[[Problem, Grid], Column]


def by_shape(problem: Problem, grid: Grid, columns: tuple[str, ...], seconds: Seconds) -> Column:
    """What ``seconds`` says of every row, computed together for rows that agree in ``columns`` and have one padded model.

    Args:
        problem: with the model as it is.
        grid: n candidates.
        columns: names of the grid's columns.
        seconds: of a problem with its padded model and rows that agree.
    """
    result = np.zeros(len(grid))
    for model, rows in padded_models(problem.model, problem.runtime, grid):
        padded, part = replace(problem, model=model), grid if rows is None else grid.take(rows)
        result[slice(None) if rows is None else rows] = _of_one_model(padded, part, columns, seconds)
    return result


def _of_one_model(problem: Problem, grid: Grid, columns: tuple[str, ...], seconds: Seconds) -> Column:
    """`by_shape` of rows that share the padded model."""
    result = np.zeros(len(grid))
    for _, rows in rows_by_value([getattr(grid, column) for column in columns]):
        result[rows] = seconds(problem, grid.take(rows))
    return result


def _split_as_stated(layers_per_stage: tuple[int, ...] | None, ends: Ends) -> Seconds:
    """Step time with the stated layers of every virtual stage, or with an even split."""

    def seconds(problem: Problem, grid: Grid) -> Column:
        virtual = int(grid.pipeline_parallel_size[0] * grid.num_model_chunks[0])
        counts = layers_per_stage or even_split(problem.model.num_hidden_layers, virtual)
        times = step_times(prepare(problem, grid, grid_contents(problem.model, counts, grid.recompute)))
        return times.finish(ends(grid, times))

    return seconds


def pipeline_shape(grid: Grid, row: int) -> Shape:
    """The pipeline of one row."""
    return Shape(
        SCHEDULES[int(grid.pipeline_schedule[row])],
        int(grid.pipeline_parallel_size[row]),
        int(grid.num_model_chunks[row]),
        int(grid.num_micro_batches[row]),
    )


def exact_ends(grid: Grid, times: StepTimes) -> Matrix:
    """Ends of the ranks' last backwards [n, p]; all rows share the topology."""
    forward, backward, weight = times.forward.sum(axis=2), times.backward.sum(axis=2), times.weight.T
    if grid.pipeline_parallel_size[0] == 1:
        return np.asarray(times.start + grid.num_micro_batches[:, None] * (forward + backward))
    shape = pipeline_shape(grid, 0)
    lanes = {"transfer": times.transfer.T, "start": times.start.T}
    ends = pipeline_ends(shape, forward=forward.T, backward=backward.T, weight=weight, **lanes)
    return np.ascontiguousarray(ends.T)


def bound_ends(grid: Grid, times: StepTimes, *, more: Matrix | None = None) -> Matrix:
    """Lower bounds on the ends of the ranks' last backwards [n, p]; all rows share schedule, ranks and chunks.

    ``more``: seconds [n, p] that all passes of a rank take more than ``times`` says, wherever; lanes alone count them.
    """
    schedule = SCHEDULES[int(grid.pipeline_schedule[0])]
    path = Paths(
        forward=times.forward.sum(axis=2),
        backward=times.backward.sum(axis=2),
        transfer=times.transfer,
        micro_batches=grid.num_micro_batches[:, None].astype(np.float64),
        held=stages_of_ranks(schedule, int(grid.pipeline_parallel_size[0]), int(grid.num_model_chunks[0])),
        weight=times.weight,
    )
    if more is not None:
        lanes = path.lanes() + more
        last_is_first_chunk = schedule in ("1f1b", "interleaved_1f1b", "looped_bfs")
        return (times.start[:, :1] + (path.ends(lanes) if last_is_first_chunk else lanes)) * (1.0 - ROUNDING)
    ends = {
        "none": path.naive,
        "naive": path.naive,
        "gpipe": path.gpipe,
        "1f1b": path.one_forward_one_backward,
        "interleaved_1f1b": path.interleaved,
        "looped_bfs": path.looped_bfs,
        "interleaved_zero_bubble": path.split,
        "zbv_zero_bubble": path.split,
        "dualpipe_v": path.split,
    }[schedule]()
    return np.asarray((times.start[:, :1] + np.maximum(ends, path.messages())) * (1.0 - ROUNDING))

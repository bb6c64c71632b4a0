"""Step time and memory of candidates whose stages have boundaries and recomputed layers of their own.

A candidate (a row of a grid) leaves open where its stages end and how many layers of each are recomputed; `StageColumns` says
both for n candidates that share schedule, pipeline ranks, chunks and the embedding table (`tables_of`). What a rank takes and
holds depends on its own stages alone, so columns need not describe whole models: the rows of a table of stages
(planner/stage_table.py) do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import exact_ends
from costmodel.compute import Column
from costmodel.in_flight import in_flight, in_flight_of_chunk
from costmodel.layer_kinds import kind_of_layer, layers_of_kinds
from costmodel.memory import layer_bytes, rank_device_bytes
from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid, IntColumn
from costmodel.runtimes.placement import stages_of_ranks
from costmodel.setting import Matrix, Problem, StageContents, prepare
from costmodel.specs import ModelSpec
from costmodel.stage_contents import Chunk, Part, RankContents
from costmodel.step import StepTimes, step_times
from costmodel.vocabulary import padded_model

IntMatrix = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageColumns:
    """Stages of n candidates, in virtual-stage order: first layer, layers, and how many of them, from the first on, are
    recomputed as the candidate's kind says; [n, V] each.
    """

    starts: IntMatrix
    layers: IntMatrix
    recomputed: IntMatrix

    @staticmethod
    def contiguous(layers: IntMatrix, recomputed: IntMatrix) -> StageColumns:
        """Stages that follow one another."""
        return StageColumns(starts=np.cumsum(layers, axis=1) - layers, layers=layers, recomputed=recomputed)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> StageColumns:
        """Some of the rows."""
        return StageColumns(starts=self.starts[index], layers=self.layers[index], recomputed=self.recomputed[index])


def completion_times(problem: Problem, grid: Grid, stages: StageColumns) -> StepTimes:
    """Durations of one step of every candidate.

    Raises:
        InputError: as `costmodel.setting.prepare`.
    """
    padded = _padded(problem, grid)
    return step_times(prepare(padded, grid, _contents(padded.model, grid, stages)))


def completion_seconds(problem: Problem, grid: Grid, stages: StageColumns) -> Column:
    """Step time of every candidate [n]."""
    seconds, count = np.empty(len(grid)), grid.num_micro_batches
    for number in np.unique(count):
        rows = np.flatnonzero(count == number)
        part = grid.take(rows)
        times = completion_times(problem, part, stages.take(rows))
        seconds[rows] = times.finish(exact_ends(part, times))
    return seconds


def completion_bytes(problem: Problem, grid: Grid, stages: StageColumns) -> Matrix:
    """Bytes that a device of every pipeline rank needs [n, p], equation (4) of memory.py."""
    padded, rows, ranks = _padded(problem, grid), len(grid), int(grid.pipeline_parallel_size[0])
    row, rank = np.repeat(np.arange(rows), ranks), np.tile(np.arange(ranks), rows)
    whole = grid.take(row)
    held = _held(grid)[rank]
    chunks = tuple(_chunk(padded.model, whole, stages, row, held[:, chunk]) for chunk in range(held.shape[1]))
    needed = rank_device_bytes(
        padded.model, padded.cluster.device, padded.training, padded.runtime, whole, RankContents(rank, chunks)
    )
    return np.asarray(needed.reshape(rows, ranks))


def saved_bytes(problem: Problem, grid: Grid) -> tuple[Matrix, Matrix]:
    """The most that a further recomputed layer of every virtual stage saves on its device [n, V], and what the first one may save
    besides: the stage's input, which it keeps in any case where it was received.

    What its layers keep, times the micro-batches in flight: the bytes of a rank are the largest of sums over what is kept at some
    instant, so they fall by no more. No meaning where a backward is split.
    """
    padded, runtime, held = _padded(problem, grid), problem.runtime, _held(grid)
    none = np.zeros_like(grid.recompute)
    layers = layer_bytes(padded.model, padded.training, runtime, padded.cluster.device, grid)
    saved = np.max([layer.kept_under(none) - layer.kept_under(grid.recompute) for layer in layers], axis=0)
    in_flight_counts = np.empty((len(grid), held.size), dtype=np.int64)
    for rank, stages in enumerate(held):
        total = in_flight(grid, np.full(len(grid), rank))
        for chunk, stage in enumerate(stages):
            in_flight_counts[:, stage] = in_flight_of_chunk(grid, total, chunk)
    factor = runtime.memory_margin * (1.0 if padded.cluster.device.kind == "cpu" else runtime.reserved_over_allocated)
    received = np.max([layer.layer_input for layer in layers], axis=0)[:, None] * in_flight_counts * factor
    received[:, 0] = 0.0
    return np.asarray(saved[:, None] * in_flight_counts * factor), received


def tables_of(problem: Problem, grid: Grid) -> IntMatrix:
    """Rows of the embedding table that each candidate allocates [n] (vocabulary.py)."""
    sizes, inverse = np.unique(grid.tensor_parallel_size, return_inverse=True)
    rows = [padded_model(problem.model, problem.runtime, int(size)).padded_vocab_size for size in sizes]
    return np.array(rows, dtype=np.int64)[inverse]


def _padded(problem: Problem, grid: Grid) -> Problem:
    model = padded_model(problem.model, problem.runtime, int(grid.tensor_parallel_size[0]))
    return Problem(model=model, cluster=problem.cluster, training=problem.training, runtime=problem.runtime)


def _held(grid: Grid) -> NDArray[np.int64]:
    schedule = SCHEDULES[int(grid.pipeline_schedule[0])]
    return stages_of_ranks(schedule, int(grid.pipeline_parallel_size[0]), int(grid.num_model_chunks[0]))


def _contents(model: ModelSpec, grid: Grid, stages: StageColumns) -> StageContents:
    """Layers of every kind by recompute kind."""
    middles = stages.starts + stages.recomputed
    again = _stacked(layers_of_kinds(model, stages.starts, middles))
    kept = _stacked(layers_of_kinds(model, middles, stages.starts + stages.layers))
    layers = again[..., None] * (grid.recompute[:, None, None, None] == np.arange(len(RECOMPUTE_KINDS)))
    layers[..., RECOMPUTE_KINDS.index("none")] += kept
    ends = np.arange(stages.layers.shape[1])
    return StageContents(
        layers=layers,
        embedding=(ends == 0).astype(np.float64),
        head=(ends == len(ends) - 1).astype(np.float64),
        shared=False,
    )


def _stacked(kinds: Sequence[NDArray[np.int64]]) -> Matrix:
    return np.stack(kinds, axis=-1).astype(np.float64)


def _chunk(model: ModelSpec, grid: Grid, stages: StageColumns, row: IntColumn, virtual: IntColumn) -> Chunk:
    """Virtual stage ``virtual`` of candidate ``row``, one of each a column."""
    start, layers = stages.starts[row, virtual], stages.layers[row, virtual]
    middle, stop = start + stages.recomputed[row, virtual], start + layers
    kind = np.where(middle > start, grid.recompute, RECOMPUTE_KINDS.index("none"))
    parts = (
        Part(kind, layers_of_kinds(model, start, middle)),
        Part(np.zeros_like(kind), layers_of_kinds(model, middle, stop)),
    )
    return Chunk(
        layers=layers_of_kinds(model, start, stop),
        parts=parts,
        last_kind=kind_of_layer(model, stop - 1),
        embedding=(virtual == 0).astype(np.int64),
        head=(virtual == stages.layers.shape[1] - 1).astype(np.int64),
        exists=np.ones_like(virtual),
    )

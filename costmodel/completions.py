"""Step time and memory of candidates whose stages have boundaries and recomputed layers of their own.

A candidate (a row of a grid) leaves open where its stages end and how many layers of each are recomputed; `StageColumns` says
both for n candidates that share schedule, pipeline ranks, chunks and the embedding table (`tables_of`). What a rank takes and
holds depends on its own stages alone, so columns need not describe whole models: the rows of a table of stages
(planner/stage_table.py) do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import exact_ends
from costmodel.compute import Column
from costmodel.in_flight import in_flight, in_flight_of_chunk
from costmodel.layer_kinds import layers_of_kinds
from costmodel.memory import RankBytes
from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid
from costmodel.runtimes.placement import stages_of_ranks
from costmodel.setting import Matrix, Problem, Setting, StageContents, prepare
from costmodel.specs import ModelSpec
from costmodel.stage_contents import RankContents, cut_chunks
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


def completion_times(problem: Problem, grid: Grid, stages: StageColumns) -> StepTimes:
    """Durations of one step of every candidate.

    Raises:
        InputError: as `costmodel.setting.prepare`.
    """
    return step_times(completion_setting(problem, grid, stages))


def completion_setting(problem: Problem, grid: Grid, stages: StageColumns) -> Setting:
    """The candidates prepared.

    Raises:
        InputError: as `costmodel.setting.prepare`.
    """
    padded = _padded(problem, grid)
    return prepare(padded, grid, _contents(padded.model, grid, stages))


def other_stages(setting: Setting, stages: StageColumns) -> Setting:
    """The same candidates with other stages."""
    return replace(setting, contents=_contents(setting.problem.model, setting.grid, stages))


def completion_seconds(problem: Problem, grid: Grid, stages: StageColumns) -> Column:
    """Step time of every candidate [n]."""
    times, count = completion_times(problem, grid, stages), grid.num_micro_batches
    ends = np.empty_like(times.start)
    for number in np.unique(count):
        rows = np.flatnonzero(count == number)
        ends[rows] = exact_ends(grid.take(rows), times.take(rows))
    return times.finish(ends)


def completion_bytes(problem: Problem, grid: Grid, stages: StageColumns) -> Matrix:
    """Bytes that a device of every pipeline rank needs [n, p], equation (4) of memory.py."""
    return CompletionBytes(problem, grid).of(stages)


class CompletionBytes:
    """`completion_bytes` of the same candidates with one set of stages after the other; of some ``ranks``, or of all."""

    def __init__(self, problem: Problem, grid: Grid, ranks: Sequence[int] | None = None) -> None:
        self._model, self._grid = _padded(problem, grid).model, grid
        numbers = np.arange(int(grid.pipeline_parallel_size[0])) if ranks is None else np.array(ranks)
        self._held, rows = _held(grid)[numbers], len(grid)
        self._row, self._rank = np.repeat(np.arange(rows), len(numbers)), np.tile(numbers, rows)
        self._whole = grid.take(self._row)
        self._runtime, self._device = problem.runtime, problem.cluster.device
        self._bytes = RankBytes(self._model, self._device, problem.training, problem.runtime, self._whole)

    def of(self, stages: StageColumns) -> Matrix:
        """Bytes of the pipeline ranks [n, p]."""
        held = np.tile(self._held, (len(self._grid), 1))
        starts, layers, recomputed = (
            column[self._row, held.T] for column in (stages.starts, stages.layers, stages.recomputed)
        )
        cuts = (starts, starts + recomputed, starts + layers)
        last = stages.layers.shape[1] - 1
        chunks = cut_chunks(self._model, self._whole.recompute, *cuts, stage=held.T, last=last)
        return np.asarray(self._bytes.of(RankContents(self._rank, chunks)).reshape(len(self._grid), -1))

    def saved(self) -> tuple[Matrix, Matrix]:
        """The most that a further recomputed layer of every virtual stage saves on its device [n, V], and what the first one may
        save besides: the stage's input, which it keeps in any case where it was received.

        What its layers keep, times the micro-batches in flight: the bytes of a rank are the largest of sums over what is kept at
        some instant, so they fall by no more. No meaning where a backward is split.
        """
        grid, ranks = self._grid, len(self._held)
        again, layers = self._whole.recompute, self._bytes.layers
        kept = np.max([layer.kept_under(np.zeros_like(again)) - layer.kept_under(again) for layer in layers], axis=0)
        received = np.max([layer.layer_input for layer in layers], axis=0)
        chunk = np.arange(self._held.shape[1])[:, None]
        counts = in_flight_of_chunk(self._whole, in_flight(self._whole, self._rank), chunk)
        running = np.empty((len(grid), self._held.size), dtype=np.int64)
        running[:, self._held.T] = counts.reshape(len(chunk), len(grid), ranks).transpose(1, 0, 2)
        reserved = 1.0 if self._device.kind == "cpu" else self._runtime.reserved_over_allocated
        many = running * self._runtime.memory_margin * reserved
        first = received[::ranks, None] * many
        first[:, 0] = 0.0
        return np.asarray(kept[::ranks, None] * many), first


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

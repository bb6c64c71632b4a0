"""Peak memory of a plan and of whole grids of candidates: per pipeline rank, phase and term.

    (1) peak of a rank        = max over phases of the sum of its terms
    (2) allocated             = max over pipeline ranks of (1), on the fullest device of the rank, x memory_margin
                                (1 unless a site's own runs say otherwise)
    (3) reserved              = max over ranks of ((1) + pooled) x memory_margin x reserved_over_allocated
                                (what the caching allocator holds; pooled: stream_pools.py)
    (4) device                = reserved + context_bytes                             (CUDA context, libraries, communicators)

A ``cpu`` device has neither a caching allocator nor a context: (3) and (4) equal (2).

The formulas live in torch_memory.py, megatron_memory.py and deepspeed_memory.py, written once over columns; a plan is a grid
of one row.
state_memory.py gives parameters, gradients and optimizer state exactly for every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.deepspeed_memory import deepspeed_rank_memory
from costmodel.layer_bytes import LayerBytes
from costmodel.megatron_memory import megatron_inputs, megatron_rank_memory
from costmodel.memo import Content, Identical
from costmodel.rank_totals import Inputs, RankMemory, largest, total
from costmodel.runtimes.grid import Grid
from costmodel.shard_sizes import Column
from costmodel.specs import (
    ClusterSpec,
    DeviceSpec,
    MemoryTerm,
    ModelSpec,
    PeakMemory,
    Plan,
    RuntimeProfile,
    StageMemory,
    TrainingSpec,
)
from costmodel.stage_contents import RankContents, even_contents, fullest_ranks, plan_contents
from costmodel.state_memory import StateBytes, state_bytes
from costmodel.torch_memory import torch_inputs, torch_rank_memory
from costmodel.vocabulary import padded_models

__all__ = ["StateBytes", "grid_peak_bytes", "host_memory_bytes", "peak_memory", "plan_memory", "state_bytes"]

InputsOf = Callable[[ModelSpec, TrainingSpec, RuntimeProfile, DeviceSpec, Grid], Inputs]
MemoryOf = Callable[[Inputs, RankContents], RankMemory]

_MOST_REMEMBERED = 2048
"""Rows of a grid from which on its tables are not kept."""
_MODELS: dict[str, tuple[InputsOf, MemoryOf]] = {
    "torch": (torch_inputs, torch_rank_memory),
    "megatron": (megatron_inputs, megatron_rank_memory),
    "deepspeed": (torch_inputs, deepspeed_rank_memory),
}


def plan_memory(plan: Plan, runtime: RuntimeProfile) -> tuple[StageMemory, ...]:
    """Terms and peak of the fullest device of every pipeline rank, equation (1)."""
    _, rank_memory = memory_model(runtime)
    ranks = range(plan.parallel.pipeline_parallel_size)
    grid = Grid.from_plan(plan).take(np.zeros(len(ranks), dtype=np.int64))
    inputs = _inputs(plan.model, plan.training, runtime, plan.cluster.device, grid)
    return _stage_memories(rank_memory(inputs, plan_contents(plan, ranks)))


def peak_memory(stages: Sequence[StageMemory], runtime: RuntimeProfile, device: DeviceSpec) -> PeakMemory:
    """Equations (2) to (4)."""
    peak, pooled = (
        np.array([max(sizes)], dtype=np.int64)
        for sizes in zip(*((stage.peak_bytes, stage.peak_bytes + stage.pooled_bytes) for stage in stages), strict=True)
    )
    reserved = _reserved(pooled, runtime, device)
    held = _device(reserved, runtime, device)
    return PeakMemory(allocated=int(_margin(peak, runtime)[0]), reserved=int(reserved[0]), device=int(held[0]))


def grid_peak_bytes(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    grid: Grid,
    *,
    first_rank_only: bool = False,
) -> NDArray[np.float64]:
    """Equation (4) for every row, stages split evenly: `peak_memory`'s ``device`` of that row's plan.

    Args:
        model: what is trained.
        cluster: its device decides on allocator and context.
        training: batch, sequence, precision, optimizer.
        runtime: the training framework.
        grid: candidates; rows that break a rule get a number without meaning.
        first_rank_only: leave out all pipeline ranks but the first, and what that gathers again, for a lower bound at a third of
            the cost or less.

    Returns:
        Bytes, float64 [rows].
    """
    peaks = np.zeros(len(grid), dtype=np.int64)
    for padded, rows in padded_models(model, runtime, grid):
        part = grid if rows is None else grid.take(rows)
        peaks[slice(None) if rows is None else rows] = _grid_peaks(
            padded, cluster.device, training, runtime, part, first_rank_only=first_rank_only
        )
    return whole_device_bytes(peaks, runtime, cluster.device)


def _grid_peaks(
    model: ModelSpec,
    device: DeviceSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    grid: Grid,
    *,
    first_rank_only: bool,
) -> Column:
    """Largest peak with its pools over the pipeline ranks of every row."""
    _, rank_memory = memory_model(runtime)
    row, rank = np.arange(len(grid)), np.zeros(len(grid), dtype=np.int64)
    if not first_rank_only:
        row, rank = fullest_ranks(model, grid)
    whole = grid.take(row)
    inputs = replace(_inputs(model, training, runtime, device, whole), bound=first_rank_only)
    peaks = _rank_peaks(rank_memory(inputs, even_contents(model, whole, rank)))
    return np.maximum.reduceat(peaks, np.searchsorted(row, np.arange(len(grid))))


def _rank_peaks(memory: RankMemory) -> Column:
    """Equation (1) with the pools, row by row."""
    return memory.peak + memory.pooled


class RankBytes:
    """Equation (4) of grids whose ranks hold what their caller says; what the rows share is computed once.

    Args:
        model: with the table that the rows' tensor-parallel size needs (vocabulary.py).
        device: decides on allocator and context.
        training: batch, sequence, precision, optimizer.
        runtime: the training framework.
        grid: candidates.
    """

    def __init__(
        self, model: ModelSpec, device: DeviceSpec, training: TrainingSpec, runtime: RuntimeProfile, grid: Grid
    ) -> None:
        _, self._rank_memory = memory_model(runtime)
        self._inputs = _inputs(model, training, runtime, device, grid)
        self._device, self._runtime = device, runtime

    @property
    def layers(self) -> tuple[LayerBytes, ...]:
        """Activations of one layer of every kind and one micro-batch."""
        return self._inputs.layers

    def of(self, contents: RankContents) -> NDArray[np.float64]:
        """Bytes if the rank of every row, with these contents, is the fullest; float64 [rows]."""
        peaks = _rank_peaks(self._rank_memory(self._inputs, contents))
        return whole_device_bytes(peaks, self._runtime, self._device)


def host_memory_bytes(plan: Plan) -> int:
    """Host RAM that the plan itself needs: 0, because nothing is offloaded.

    What a training process takes on top (libraries, pinned batches, checkpoint staging) does not depend on the plan and
    is not modelled.
    """
    del plan
    return 0


def memory_model(runtime: RuntimeProfile) -> tuple[InputsOf, MemoryOf]:
    """How a runtime's memory is predicted: the tables of a grid, and the terms of one pipeline rank per row."""
    return _MODELS[runtime.memory_model]


def _inputs(
    model: ModelSpec, training: TrainingSpec, runtime: RuntimeProfile, device: DeviceSpec, grid: Grid
) -> Inputs:
    """The tables of a grid; a search asks again and again about the same few rows."""
    if len(grid) > _MOST_REMEMBERED:
        return memory_model(runtime)[0](model, training, runtime, device, grid)
    specs = (Identical(model), Identical(training), Identical(runtime), Identical(device))
    return _remembered_inputs(*specs, Content(*grid.columns))


@lru_cache(maxsize=64)
def _remembered_inputs(
    model: Identical[ModelSpec],
    training: Identical[TrainingSpec],
    runtime: Identical[RuntimeProfile],
    device: Identical[DeviceSpec],
    columns: Content,
) -> Inputs:
    inputs_of, _ = memory_model(runtime.value)
    return inputs_of(model.value, training.value, runtime.value, device.value, Grid.from_columns(columns.columns))


def whole_device_bytes(peaks: Column, runtime: RuntimeProfile, device: DeviceSpec) -> NDArray[np.float64]:
    """Equation (4) of the ranks' largest peaks with their pools, float64 [rows]."""
    return _device(_reserved(peaks, runtime, device), runtime, device).astype(np.float64)


def _stage_memories(memory: RankMemory) -> tuple[StageMemory, ...]:
    """The rows of the columns as specs; terms of 0 bytes are left out."""
    phases = {phase: largest(instants) for phase, instants in memory.phases.items()}
    names, sums = tuple(phases), np.stack([total(columns) for columns in phases.values()])
    stages = []
    for rank, (pooled, peak) in enumerate(zip(memory.pooled.tolist(), np.argmax(sums, axis=0).tolist(), strict=True)):
        terms = tuple(
            MemoryTerm(name=name, bytes=int(column[rank]), phase=phase)
            for phase, columns in phases.items()
            for name, column in columns.items()
            if column[rank]
        )
        size = int(sums[peak, rank])
        stages.append(StageMemory(rank=rank, terms=terms, peak_bytes=size, peak_phase=names[peak], pooled_bytes=pooled))
    return tuple(stages)


def _margin(peaks: Column, runtime: RuntimeProfile) -> Column:
    """Equation (2) of the ranks' largest peaks, rounded up."""
    if runtime.memory_margin == 1:
        return peaks
    return np.asarray(np.ceil(peaks * runtime.memory_margin), dtype=np.int64)


def _reserved(pooled: Column, runtime: RuntimeProfile, device: DeviceSpec) -> Column:
    """Equation (3) of the ranks' largest peaks with their pools, rounded up."""
    held = _margin(pooled, runtime)
    if device.kind == "cpu":
        return held
    return np.asarray(np.ceil(held * runtime.reserved_over_allocated), dtype=np.int64)


def _device(reserved: Column, runtime: RuntimeProfile, device: DeviceSpec) -> Column:
    """Equation (4)."""
    return reserved if device.kind == "cpu" else reserved + runtime.context_bytes

"""The question that step time answers, prepared for a batch of candidates: specs, groups, roofline, table of passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import Group, Network, group
from costmodel.compute import Column, Roofline
from costmodel.frequency import Frequency, frequency, is_wrapped
from costmodel.layer_kinds import layer_kinds, layers_of_kinds
from costmodel.layers import MicroBatch
from costmodel.memo import Identical
from costmodel.pass_tables import inner_groups, pass_tables
from costmodel.runtimes.grid import DATA_OUTERMOST, RECOMPUTE_KINDS, SCHEDULES, Grid
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES, stages_of_ranks
from costmodel.specs import ClusterSpec, ModelSpec, PipelineSchedule, RuntimeProfile, StageSpec, TrainingSpec
from costmodel.stack import Stack
from costmodel.tables import PassTable
from costmodel.unshards import regathers

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is trained on what with which framework: everything but the layout."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    runtime: RuntimeProfile


@dataclass(frozen=True, kw_only=True)
class StageContents:
    """What every virtual stage holds, in virtual-stage order."""

    layers: Matrix  # [1 or n, V, G, K] layers of every layer kind, by recompute kind
    embedding: Matrix  # [V] 1 where the embedding is
    head: Matrix  # [V]
    shared: bool = True  # whether candidates differ in the recompute kind alone
    first_exposed: float = 1.0  # groups of a pass whose gather has no computation before it

    @cached_property
    def by_kind(self) -> Matrix:
        """Layers of every layer kind [1 or n, V, G]: one row where the candidates share their stages."""
        layers = self.layers[:1] if self.shared else self.layers
        return layers @ np.ones(layers.shape[3])

    @cached_property
    def calls(self) -> Matrix:
        """Groups gathered one after the other [1 or n, V]: one per layer, one for embedding and head together."""
        return np.asarray(self.by_kind.sum(axis=2) + np.maximum(self.embedding, self.head))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A problem and n candidates that share the pipeline's shape, with what every part of the step needs."""

    problem: Problem
    grid: Grid
    contents: StageContents
    num_ranks: int
    held: NDArray[np.int64]  # [p, v] virtual stages of every rank
    splits_backward: bool
    devices: Column  # that each candidate uses [n]
    stack: Stack
    net: Network
    ceiling: Roofline
    batch: MicroBatch
    tensor_group: Group
    context_group: Group
    often: Frequency
    regathers: Matrix  # [n, V] gathers beyond those of ``often``
    table: PassTable

    @property
    def apart(self) -> bool:
        """Whether embedding and head are on two pipeline ranks; not under a V-shaped schedule."""
        return int(self.held[0, -1]) != self.held.size - 1

    def per_rank(self, virtual: Matrix) -> Matrix:
        """Sum a matrix [n, V] over the chunks of every rank: [n, p]."""
        return virtual @ self._holds

    @cached_property
    def _holds(self) -> Matrix:
        """1 where a rank holds a virtual stage [V, p]."""
        holds = np.zeros((self.held.size, self.num_ranks))
        holds[self.held, np.arange(self.num_ranks)[:, None]] = 1.0
        return holds

    def data_group(self, size: Matrix, *, context: Matrix, inside: Matrix | float = 1.0) -> Group:
        """Groups along a data-parallel axis as [n, 1].

        ``context``: how many context-parallel neighbours each group holds; ``inside``: product of the axes other than the
        pipeline between the group's axes and tensor. A pipeline inside lies between those neighbours and the next ones.
        """
        stride = self.batch.tensor_parallel[:, None] * inside
        devices = self.devices[:, None]
        if not self._data_outermost.any():
            return group(self.net, size=size, stride=stride, devices=devices)
        outermost = self._data_outermost[:, None]
        return group(
            self.net,
            size=size,
            stride=stride,
            devices=devices,
            run=np.where(outermost, context, size),
            jump=stride * np.where(outermost, context * self.num_ranks, size),
        )

    def pipeline_group(self) -> Group:
        """The ends of the longest jump in a pipeline: a pair that lies in one unit where the whole pipeline does."""
        half = self.pipeline_stride * self.num_ranks / 2.0
        return group(self.net, size=np.full(len(self.grid), 2.0), stride=half, devices=self.devices)

    @cached_property
    def _data_outermost(self) -> NDArray[np.bool_]:
        return np.asarray(self.grid.axis_order == DATA_OUTERMOST)

    @property
    def num_neighbouring_pipelines(self) -> Column:
        """Pipelines that lie one after another [n]: all of them if data is outermost, otherwise one, as wide as the job."""
        return np.where(self._data_outermost, self.grid.data_parallel_size, 1).astype(np.float64)

    @property
    def pipeline_stride(self) -> Column:
        """Device numbers from one pipeline rank to the next [n]."""
        return self.devices / (self.num_ranks * self.num_neighbouring_pipelines)


def prepare(problem: Problem, grid: Grid, contents: StageContents, *, one_stage: bool = False) -> Setting:
    """Prepare n candidates with equal ``pipeline_schedule``, ``pipeline_parallel_size`` and ``num_model_chunks``.

    With ``one_stage`` the three may differ, and one rank holds the ``contents``, in one stage that is gathered no more often than
    frequency.py says; groups of data_outermost candidates have no meaning then.

    Raises:
        InputError: when the device cannot compute in the training precision or the runtime lacks a constant.
    """
    tables = pass_tables(
        Identical(problem.model),
        Identical(problem.training),
        Identical(problem.cluster),
        Identical(problem.runtime),
    )
    often = frequency(grid, sharding=problem.runtime.sharding)
    batch, devices = _micro_batch(problem, grid, often), grid.num_devices.astype(np.float64)
    tensor_group, context_group = inner_groups(tables.net, tables.stack, batch, devices)
    num_ranks, num_chunks = (
        (1, 1) if one_stage else (int(grid.pipeline_parallel_size[0]), int(grid.num_model_chunks[0]))
    )
    schedule: PipelineSchedule = "none" if one_stage else SCHEDULES[int(grid.pipeline_schedule[0])]
    held = stages_of_ranks(schedule, num_ranks, num_chunks)
    again = np.zeros((len(grid), held.size), dtype=np.int64)
    again = regathers(grid, held, schedule) if problem.runtime.sharding == "fsdp2" else again
    return Setting(
        problem=problem,
        grid=grid,
        contents=contents,
        num_ranks=num_ranks,
        held=held,
        splits_backward=schedule in SPLIT_BACKWARD_SCHEDULES,
        devices=devices,
        stack=tables.stack,
        net=tables.net,
        ceiling=tables.ceiling,
        batch=batch,
        tensor_group=tensor_group,
        context_group=context_group,
        often=often,
        regathers=again.astype(np.float64),
        table=tables.of(batch, devices),
    )


def _micro_batch(problem: Problem, grid: Grid, often: Frequency) -> MicroBatch:
    """What every pass works on."""
    count = grid.num_micro_batches.astype(np.float64)
    return MicroBatch(
        sequences=grid.micro_batch_size.astype(np.float64),
        sequence_length=problem.training.sequence_length,
        tensor_parallel=grid.tensor_parallel_size.astype(np.float64),
        sequence_parallel=grid.sequence_parallel.astype(np.float64),
        loss_parallel=grid.loss_parallel.astype(np.float64),
        wrapped=is_wrapped(grid, problem.training).astype(np.float64),
        forward_collectives=often.forward_gather / count,
        backward_collectives=(often.backward_gather + often.backward_reduce) / count,
        context_parallel=grid.context_parallel_size.astype(np.float64),
        context_method=grid.context_parallel_method,
        weight_casts=1.0 / count if problem.runtime.sharding == "flat" else np.ones(len(grid)),
    )


def plan_contents(model: ModelSpec, stages: tuple[StageSpec, ...]) -> StageContents:
    """Contents of a plan's stages, which are in virtual-stage order."""
    starts = np.array([stage.start for stage in stages])
    stops = np.array([stage.stop for stage in stages])
    middles = starts + np.array([stage.num_recomputed_layers for stage in stages])
    kinds = np.array([RECOMPUTE_KINDS.index(stage.recompute.kind) for stage in stages])
    layers = _layers_between(model, starts, middles)[:, :, None] * (
        kinds[:, None, None] == np.arange(len(RECOMPUTE_KINDS))
    )
    layers[:, :, RECOMPUTE_KINDS.index("none")] += _layers_between(model, middles, stops)
    return StageContents(
        layers=layers[None],
        embedding=np.array([float(stage.embedding) for stage in stages]),
        head=np.array([float(stage.head) for stage in stages]),
    )


def grid_contents(model: ModelSpec, layers_per_stage: tuple[int, ...], recompute: NDArray[np.int64]) -> StageContents:
    """Contents of stages that all candidates share; ``recompute`` holds the kind of each candidate."""
    stops = np.cumsum(layers_per_stage)
    starts = np.concatenate([[0], stops[:-1]])
    counts = _layers_between(model, starts, stops)
    ends = np.arange(len(layers_per_stage))
    one_hot = recompute[:, None, None, None] == np.arange(len(RECOMPUTE_KINDS))
    return StageContents(
        layers=counts[None, :, :, None] * one_hot,
        embedding=(ends == 0).astype(np.float64),
        head=(ends == len(layers_per_stage) - 1).astype(np.float64),
    )


def mean_stage(model: ModelSpec, stages: int) -> StageContents:
    """Every stage holds an equal share of everything."""
    kinds = layer_kinds(model)
    layers = np.zeros((1, stages, len(kinds), len(RECOMPUTE_KINDS)))
    layers[..., RECOMPUTE_KINDS.index("none")] = [kind.group.count / stages for kind in kinds]
    share = np.full(stages, 1.0 / stages)
    return StageContents(layers=layers, embedding=share, head=share, first_exposed=0.0)


def _layers_between(model: ModelSpec, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Matrix:
    """Layers of every layer kind in every stage [V, G]."""
    return np.stack(layers_of_kinds(model, starts, stops), axis=1).astype(np.float64)

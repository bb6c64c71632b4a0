"""What one pipeline rank holds: its model chunks, as columns over candidates.

Virtual stage k (runtimes/placement.py) of V = p v holds, split evenly (stages.even_split, in closed form),

    (1) n_k = L // V + [0 < k <= e] + [k = 0 and e > V - 2]          V = p v,  e = L mod V,  k < V - 1
    (2) start_k = k (L // V) + min(max(k - 1, 0), e) + [k > 0 and e > V - 2]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from costmodel.in_flight import in_flight
from costmodel.layer_kinds import kind_of_layer, layer_kinds, layers_of_kinds
from costmodel.runtimes.grid import RECOMPUTE_KINDS, Grid
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES, V_SCHEDULES, virtual_stage
from costmodel.runtimes.rules_core import schedule_is
from costmodel.shard_sizes import Column
from costmodel.specs import ModelSpec, Plan, StageSpec


class Part(NamedTuple):
    """Layers per layer kind whose ``recompute`` is the same kind, an index into `RECOMPUTE_KINDS`."""

    recompute: Column
    layers: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One model chunk of a pipeline rank.

    ``layers``: number of layers per layer kind of the model; ``parts``: of them from the first on, those that recompute alike.
    ``last_kind``: of its last layer. ``embedding``, ``head`` and ``exists`` are 0 or 1.
    """

    layers: tuple[Column, ...]
    parts: tuple[Part, ...]
    last_kind: Column
    embedding: Column
    head: Column
    exists: Column

    @property
    def num_layers(self) -> Column:
        """Layers of all kinds together."""
        return np.asarray(np.sum(self.layers, axis=0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class RankContents:
    """A pipeline rank (column) and its chunks in the order they run."""

    rank: Column
    chunks: tuple[Chunk, ...]


def plan_contents(plan: Plan, rank: int) -> RankContents:
    """The chunks of pipeline rank ``rank`` of a complete plan, columns of one row."""
    chunks = []
    for stage in sorted((stage for stage in plan.stages if stage.rank == rank), key=lambda stage: stage.chunk):
        start, stop = np.array([stage.start]), np.array([stage.stop])
        chunks.append(
            Chunk(
                layers=layers_of_kinds(plan.model, start, stop),
                parts=_parts(plan.model, stage),
                last_kind=kind_of_layer(plan.model, stop - 1),
                embedding=np.array([stage.embedding], dtype=np.int64),
                head=np.array([stage.head], dtype=np.int64),
                exists=np.ones(1, dtype=np.int64),
            )
        )
    return RankContents(np.array([rank], dtype=np.int64), tuple(chunks))


def _parts(model: ModelSpec, stage: StageSpec) -> tuple[Part, ...]:
    """The layers that recompute, and those that do not."""
    middle = stage.start + stage.num_recomputed_layers
    ranges = [(stage.recompute.kind, stage.start, middle), ("none", middle, stage.stop)]
    return tuple(
        Part(np.array([RECOMPUTE_KINDS.index(kind)]), layers_of_kinds(model, np.array([start]), np.array([stop])))
        for kind, start, stop in ranges
        if stop > start
    )


def grid_contents(model: ModelSpec, grid: Grid) -> Iterator[RankContents]:
    """Evenly split contents of the ranks among which the fullest device is.

    Those are rank 0 (embedding), the last (head, logits) and, of those between, the ones that `_inner_ranks` names; where a
    backward is split, all ranks.
    """
    done: list[Column] = []
    for rank in _fullest_ranks(model, grid):
        if not any(np.array_equal(rank, earlier) for earlier in done):
            done.append(rank)
            yield even_contents(model, grid, rank)


def _fullest_ranks(model: ModelSpec, grid: Grid) -> Iterator[Column]:
    """`grid_contents`' ranks, worked out as they are asked for."""
    last = grid.pipeline_parallel_size - 1
    yield np.zeros_like(last)
    if schedule_is(grid, *SPLIT_BACKWARD_SCHEDULES).any():
        yield from (np.minimum(rank, last) for rank in range(1, int(last.max())))
    elif last.max(initial=0) > 1:
        yield from _inner_ranks(model, grid)
    yield last


def _inner_ranks(model: ModelSpec, grid: Grid) -> list[Column]:
    """Between the first and the last rank of every row, the first of all that are alike; filled up with the last.

    A rank keeps at most as many micro-batches in flight as one before it. So it needs no more memory if it holds the same layers
    (or with equal layers at most as many, as all after rank 1 do), unless it alone has finished a backward by then, whose
    gradients it holds.
    """
    sizes = (grid.pipeline_parallel_size, grid.num_model_chunks, grid.num_micro_batches)
    shape = np.stack([grid.pipeline_schedule, *sizes], axis=1)
    _, row, inverse = np.unique(shape, axis=0, return_index=True, return_inverse=True)
    shapes = grid.take(row)
    last = shapes.pipeline_parallel_size - 1
    of_shape = np.repeat(np.arange(len(row)), np.maximum(last - 1, 0))
    rank = 1 + np.arange(len(of_shape)) - np.searchsorted(of_shape, of_shape)
    some = shapes.take(of_shape)
    finished = in_flight(some, rank) < some.num_micro_batches * some.num_model_chunks
    alike = [of_shape, finished]
    if len(layer_kinds(model)) > 1:
        chunks = even_contents(model, some, rank).chunks
        alike += [column for chunk in chunks for column in (*chunk.layers, chunk.last_kind)]
    _, first = np.unique(np.stack(alike, axis=1), axis=0, return_index=True)
    first = np.sort(first)
    turn = np.arange(len(first)) - np.searchsorted(of_shape[first], of_shape[first])
    ranks = np.repeat(last[:, None], turn.max(initial=-1) + 1, axis=1)
    ranks[of_shape[first], turn] = rank[first]
    return list(ranks[inverse.reshape(-1)].T)


def even_contents(model: ModelSpec, grid: Grid, rank: Column) -> RankContents:
    """Equations (1) and (2) for one rank per row."""
    size, count = grid.pipeline_parallel_size, grid.num_model_chunks
    virtual, depth = size * count, model.num_hidden_layers
    base, extra = depth // virtual, depth % virtual
    first_extra = extra > virtual - 2
    v_shaped = schedule_is(grid, *V_SCHEDULES).astype(np.int64)
    chunks = []
    for index in range(int(count.max(initial=1))):
        k = virtual_stage(rank, index, size, v_shaped=v_shaped)
        exists = (index < count).astype(np.int64)
        layers = base + np.where(k > 0, (k <= extra) & (k < virtual - 1), first_extra)
        start = k * base + np.minimum(np.maximum(k - 1, 0), extra) + np.where(k > 0, first_extra, 0)
        held = tuple(overlap * exists for overlap in layers_of_kinds(model, start, start + layers))
        chunks.append(
            Chunk(
                layers=held,
                parts=(Part(grid.recompute, held),),
                last_kind=kind_of_layer(model, start + layers - 1),
                embedding=exists * (k == 0),
                head=exists * (k == virtual - 1),
                exists=exists,
            )
        )
    return RankContents(rank, tuple(chunks))

"""What one pipeline rank holds: its model chunks, as columns over candidates.

Virtual stage k (runtimes/placement.py) of V = p v holds, split evenly (stages.even_split, in closed form),

    (1) n_k = L // V + [0 < k <= e] + [k = 0 and e > V - 2]          V = p v,  e = L mod V,  k < V - 1
    (2) start_k = k (L // V) + min(max(k - 1, 0), e) + [k > 0 and e > V - 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from costmodel.in_flight import in_flight
from costmodel.layer_kinds import kind_of_layer, layer_kinds, layers_of_kinds
from costmodel.runtimes.grid import RECOMPUTE_KINDS, Grid, distinct_rows
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES, V_SCHEDULES, stages_of_ranks, virtual_stage
from costmodel.runtimes.rules_core import schedule_is
from costmodel.shard_sizes import Column
from costmodel.specs import ModelSpec, Plan, StageSpec


class Part(NamedTuple):
    """Layers per layer kind [v, n] whose ``recompute`` is the same kind, an index into `RECOMPUTE_KINDS` ([n] or [v, n]); of no
    layers it says nothing.
    """

    recompute: Column
    layers: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The model chunks of one pipeline rank per row, in the order they run [v, n].

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
        return reduce(np.add, self.layers)

    def pick(self, index: Column) -> Chunks:
        """One chunk a row [n], without its parts."""
        rows = np.arange(len(index))
        return Chunks(
            layers=tuple(counts[index, rows] for counts in self.layers),
            parts=(),
            last_kind=self.last_kind[index, rows],
            embedding=self.embedding[index, rows],
            head=self.head[index, rows],
            exists=self.exists[index, rows],
        )


@dataclass(frozen=True, slots=True)
class RankContents:
    """A pipeline rank (column) and its chunks."""

    rank: Column
    chunks: Chunks


def plan_contents(plan: Plan, ranks: Sequence[int]) -> RankContents:
    """The chunks of some pipeline ranks of a complete plan, one a row."""
    rank = np.array(ranks, dtype=np.int64)
    starts, middles, stops = (np.array(column) for column in zip(*(_cuts(stage) for stage in plan.stages), strict=True))
    kinds = np.array([RECOMPUTE_KINDS.index(stage.recompute.kind) for stage in plan.stages])
    held = stages_of_ranks(
        plan.parallel.pipeline_schedule, plan.parallel.pipeline_parallel_size, plan.parallel.num_model_chunks
    )
    stage = held[rank].T
    cuts = (starts[stage], middles[stage], stops[stage])
    return RankContents(rank, cut_chunks(plan.model, kinds[stage], *cuts, stage=stage, last=len(plan.stages) - 1))


def _cuts(stage: StageSpec) -> tuple[int, int, int]:
    """First layer, first layer that is not recomputed, first layer of the next stage."""
    return stage.start, stage.start + stage.num_recomputed_layers, stage.stop


def cut_chunks(
    model: ModelSpec, recompute: Column, start: Column, middle: Column, stop: Column, *, stage: Column, last: int
) -> Chunks:
    """Virtual stages ``stage`` of 0 to ``last`` with layers ``start`` to ``stop``, of which those before ``middle`` recompute."""
    return Chunks(
        layers=layers_of_kinds(model, start, stop),
        parts=(
            Part(recompute, layers_of_kinds(model, start, middle)),
            Part(np.zeros(1, dtype=np.int64), layers_of_kinds(model, middle, stop)),
        ),
        last_kind=kind_of_layer(model, stop - 1),
        embedding=(stage == 0).astype(np.int64),
        head=(stage == last).astype(np.int64),
        exists=np.ones_like(stage),
    )


def fullest_ranks(model: ModelSpec, grid: Grid) -> tuple[Column, Column]:
    """Rows and the ranks of evenly split stages among which their fullest device is, row by row.

    Those are rank 0 (embedding), the last (head, logits) and, of those between, the ones that `_inner_ranks` names; where a
    backward is split, all ranks.
    """
    last = grid.pipeline_parallel_size - 1
    ranks = [np.zeros_like(last), last]
    if schedule_is(grid, *SPLIT_BACKWARD_SCHEDULES).any():
        ranks += [np.minimum(rank, last) for rank in range(1, int(last.max()))]
    elif last.max(initial=0) > 1:
        ranks += _inner_ranks(model, grid)
    size = int(last.max(initial=0)) + 1
    pairs = np.unique(np.arange(len(last)) * size + np.stack(ranks))
    return pairs // size, pairs % size


def _inner_ranks(model: ModelSpec, grid: Grid) -> list[Column]:
    """Between the first and the last rank of every row, the first of all that are alike; filled up with the last.

    A rank keeps at most as many micro-batches in flight as one before it. So it needs no more memory if it holds the same layers
    (or with equal layers at most as many, as all after rank 1 do), unless it alone has finished a backward by then, whose
    gradients it holds.
    """
    sizes = (grid.pipeline_parallel_size, grid.num_model_chunks, grid.num_micro_batches)
    row, inverse = distinct_rows([grid.pipeline_schedule, *sizes])
    shapes = grid.take(row)
    last = shapes.pipeline_parallel_size - 1
    of_shape = np.repeat(np.arange(len(row)), np.maximum(last - 1, 0))
    rank = 1 + np.arange(len(of_shape)) - np.searchsorted(of_shape, of_shape)
    some = shapes.take(of_shape)
    finished = in_flight(some, rank) < some.num_micro_batches * some.num_model_chunks
    alike = [of_shape, finished.astype(np.int64)]
    if len(layer_kinds(model)) > 1:
        chunks = even_contents(model, some, rank).chunks
        alike += [column for columns in (*chunks.layers, chunks.last_kind) for column in columns]
    first = np.sort(distinct_rows(alike)[0])
    turn = np.arange(len(first)) - np.searchsorted(of_shape[first], of_shape[first])
    ranks = np.repeat(last[:, None], turn.max(initial=-1) + 1, axis=1)
    ranks[of_shape[first], turn] = rank[first]
    return list(ranks[inverse].T)


def even_contents(model: ModelSpec, grid: Grid, rank: Column) -> RankContents:
    """Equations (1) and (2) for one rank per row."""
    size, count = grid.pipeline_parallel_size, grid.num_model_chunks
    virtual, depth = size * count, model.num_hidden_layers
    base, extra = depth // virtual, depth % virtual
    first_extra = extra > virtual - 2
    v_shaped = schedule_is(grid, *V_SCHEDULES).astype(np.int64)
    index = np.arange(int(count.max(initial=1)))[:, None]
    k = virtual_stage(rank, index, size, v_shaped=v_shaped)
    exists = (index < count).astype(np.int64)
    layers = base + np.where(k > 0, (k <= extra) & (k < virtual - 1), first_extra)
    start = k * base + np.minimum(np.maximum(k - 1, 0), extra) + np.where(k > 0, first_extra, 0)
    held = tuple(overlap * exists for overlap in layers_of_kinds(model, start, start + layers))
    return RankContents(
        rank,
        Chunks(
            layers=held,
            parts=(Part(grid.recompute, held),),
            last_kind=kind_of_layer(model, start + layers - 1),
            embedding=exists * (k == 0),
            head=exists * (k == virtual - 1),
            exists=exists,
        ),
    )

"""Many candidate configurations as columns: one row is one `ParallelConfig` plus a recompute kind.

Rules, memory and bounds are written once over columns; a single plan is a grid of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from costmodel.runtimes.axis_orders import AXIS_ORDER_WORDS, axis_order_word
from costmodel.specs import (
    AXIS_ORDERS,
    DEFAULT_AXIS_ORDER,
    Axis,
    ContextParallelMethod,
    ParallelConfig,
    PipelineSchedule,
    Plan,
)

IntColumn = NDArray[np.int64]
RecomputeKind = Literal["none", "core_attention", "op_policy", "full"]

SCHEDULES: tuple[PipelineSchedule, ...] = get_args(PipelineSchedule)
RECOMPUTE_KINDS: tuple[RecomputeKind, ...] = get_args(RecomputeKind)
FULL_RECOMPUTE = RECOMPUTE_KINDS.index("full")
CONTEXT_PARALLEL_METHODS: tuple[ContextParallelMethod | None, ...] = (None, *get_args(ContextParallelMethod))
DATA_OUTERMOST = AXIS_ORDER_WORDS.index("data_outermost")
_MOST_CODES = 1 << 62
_FEW_ROWS, _MOST_PLACES = 1 << 11, 1 << 16
"""Rows that are sorted quickly; of more, values up to which a place for each costs less than sorting them."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Columns of equal length, int64. Booleans are 0 or 1.

    ``pipeline_schedule``, ``recompute``, ``context_parallel_method`` and ``axis_order`` hold indices into `SCHEDULES`,
    `RECOMPUTE_KINDS`, `CONTEXT_PARALLEL_METHODS` and `AXIS_ORDER_WORDS`; ``hierarchical_partition_size`` is 0 where it is off.
    """

    tensor_parallel_size: IntColumn
    sequence_parallel: IntColumn
    loss_parallel: IntColumn
    pipeline_parallel_size: IntColumn
    pipeline_schedule: IntColumn
    num_model_chunks: IntColumn
    data_parallel_replicate_size: IntColumn
    data_parallel_shard_size: IntColumn
    zero_stage: IntColumn
    hierarchical_partition_size: IntColumn
    micro_batch_size: IntColumn
    num_micro_batches: IntColumn
    recompute: IntColumn
    context_parallel_size: IntColumn
    context_parallel_method: IntColumn
    axis_order: IntColumn

    def __len__(self) -> int:
        return len(self.tensor_parallel_size)

    @cached_property
    def data_parallel_size(self) -> IntColumn:
        """Replicas that see different samples: replicate x shard."""
        return self.data_parallel_replicate_size * self.data_parallel_shard_size

    @cached_property
    def shard_group_size(self) -> IntColumn:
        """Devices that ZeRO shards over: dp_shard x cp, since context-parallel ranks hold the same parameters."""
        return self.data_parallel_shard_size * np.where(self.zero_stage > 0, self.context_parallel_size, 1)

    @cached_property
    def replica_group_size(self) -> IntColumn:
        """Devices that hold the same shard: dp_replicate, without ZeRO dp_replicate x cp."""
        return self.data_parallel_replicate_size * np.where(self.zero_stage > 0, 1, self.context_parallel_size)

    @cached_property
    def num_devices(self) -> IntColumn:
        """Devices each row uses."""
        return (
            self.data_parallel_size
            * self.context_parallel_size
            * self.tensor_parallel_size
            * self.pipeline_parallel_size
        )

    @property
    def columns(self) -> tuple[IntColumn, ...]:
        """All columns, in the order of `from_columns`."""
        return tuple(getattr(self, name) for name in _COLUMNS)

    @staticmethod
    def from_columns(columns: Sequence[IntColumn]) -> Grid:
        """A grid of its `columns`."""
        return Grid(**dict(zip(_COLUMNS, columns, strict=True)))

    def take(self, index: NDArray[np.bool_] | IntColumn) -> Grid:
        """The rows that a mask or an index array selects."""
        rows = np.flatnonzero(index) if index.dtype == np.bool_ else index
        return Grid.from_columns([column[rows] for column in self.columns])

    def parallel(self, row: int) -> ParallelConfig:
        """Row ``row`` as a spec."""
        value = {name: int(getattr(self, name)[row]) for name in _COLUMNS}
        del value["recompute"], value["axis_order"]
        schedule = SCHEDULES[value.pop("pipeline_schedule")]
        hierarchical = value.pop("hierarchical_partition_size") or None
        method = CONTEXT_PARALLEL_METHODS[value.pop("context_parallel_method")]
        return ParallelConfig.model_validate(
            {
                **value,
                "pipeline_schedule": schedule,
                "hierarchical_partition_size": hierarchical,
                "context_parallel_method": method,
            }
        )

    def recompute_kind(self, row: int) -> RecomputeKind:
        """The recompute kind of row ``row``."""
        return RECOMPUTE_KINDS[int(self.recompute[row])]

    def order(self, row: int) -> tuple[Axis, ...]:
        """The mesh axes of row ``row``, outer to inner."""
        return AXIS_ORDERS[AXIS_ORDER_WORDS[int(self.axis_order[row])]]

    @staticmethod
    def from_parallel(
        parallel: ParallelConfig, recompute: RecomputeKind, axis_order: tuple[Axis, ...] = DEFAULT_AXIS_ORDER
    ) -> Grid:
        """A grid of one row.

        Raises:
            InputError: for an axis order that is none of `AXIS_ORDERS`.
        """
        value = {name: int(getattr(parallel, name) or 0) for name in _PLAIN}
        value["pipeline_schedule"] = SCHEDULES.index(parallel.pipeline_schedule)
        value["recompute"] = RECOMPUTE_KINDS.index(recompute)
        value["context_parallel_method"] = CONTEXT_PARALLEL_METHODS.index(parallel.context_parallel_method)
        value["axis_order"] = AXIS_ORDER_WORDS.index(axis_order_word(axis_order))
        return Grid(**{name: np.array([number], dtype=np.int64) for name, number in value.items()})

    @staticmethod
    def joined(grids: Sequence[Grid]) -> Grid:
        """The rows of one grid or more, one after another."""
        names = [field.name for field in fields(Grid)]
        return Grid(**{name: np.concatenate([getattr(grid, name) for grid in grids]) for name in names})

    @staticmethod
    def from_plan(plan: Plan) -> Grid:
        """A grid of one row; the recompute column is the strongest kind of any stage."""
        kind = max((stage.recompute.kind for stage in plan.stages), key=RECOMPUTE_KINDS.index)
        return Grid.from_parallel(plan.parallel, kind, plan.axis_order)


_COLUMNS = tuple(field.name for field in fields(Grid))
_WORDS = {"pipeline_schedule", "recompute", "context_parallel_method", "axis_order"}
_PLAIN = tuple(name for name in _COLUMNS if name not in _WORDS)


def group_rows(columns: Sequence[IntColumn]) -> IntColumn:
    """Numbers such that two rows have the same one exactly when they agree in all columns of numbers from 0 on; [n]."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if size * values > _MOST_CODES:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
            size = len(code) + 1
        code, size = code * values + column, size * values
    return code


def distinct_rows(columns: Sequence[IntColumn]) -> tuple[IntColumn, IntColumn]:
    """One row of every combination of values that the columns [n] hold, and for every row which of them it has [n]."""
    many = len(columns[0]) > _FEW_ROWS
    code = group_rows([_numbered(column) for column in columns] if many else columns)
    size = int(code.max(initial=0)) + 1
    if not many or size > _MOST_PLACES:
        _, first, index = np.unique(code, return_index=True, return_inverse=True)
        return first, index.reshape(-1)
    rows = np.full(size, -1, dtype=np.int64)
    rows[code[::-1]] = np.arange(len(code))[::-1]
    held = rows >= 0
    return rows[held], (np.cumsum(held) - 1)[code]


def first_of_alike(grid: Grid, besides: str) -> tuple[IntColumn, IntColumn]:
    """The first of neighbouring rows that differ in nothing ``besides`` one column, and for every row which of them it has."""
    columns = [getattr(grid, name) for name in _COLUMNS if name != besides]
    first = np.ones(len(grid), dtype=np.bool_)
    first[1:] = reduce(np.logical_or, (column[1:] != column[:-1] for column in columns))
    return np.flatnonzero(first), np.cumsum(first) - 1


def _numbered(column: IntColumn) -> IntColumn:
    """The values of a column from 0 on, numbered in their order; as they are where they are large."""
    most = int(column.max(initial=0))
    if most > _MOST_PLACES:
        return column
    held = np.zeros(most + 1, dtype=np.int64)
    held[column] = 1
    return np.asarray((np.cumsum(held) - 1)[column])

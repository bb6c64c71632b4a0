"""Tables of passes that remember their rows: of what candidates have in common, every pass is computed once.

A pass depends on its micro-batch, on the collectives in it and on the number of devices, not on how a pipeline cuts the model. A
search prices thousands of candidates, some at a time, of which few hundred differ in that.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import Group, Network, group, network, waiting_group
from costmodel.compute import Column, training_roofline
from costmodel.layers import MicroBatch
from costmodel.memo import Identical
from costmodel.specs import ClusterSpec, ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.stack import Stack, read_stack
from costmodel.tables import PassTable, pass_table

_BATCH = tuple(field.name for field in fields(MicroBatch) if field.name != "sequence_length")
_BY_ROW = tuple(field.name for field in fields(PassTable) if field.name != "layer_tensors")
_MOST_ROWS = 1 << 15
"""Rows from which on all are forgotten."""


class PassTables:
    """`pass_table` of one problem, by rows; with the stack, the network and the roofline of the problem.

    Raises:
        InputError: when the device cannot compute in the training precision or the runtime lacks a constant.
    """

    def __init__(self, model: ModelSpec, training: TrainingSpec, cluster: ClusterSpec, runtime: RuntimeProfile) -> None:
        self.stack = read_stack(runtime)
        self.net = network(cluster, growth=self.stack.wide_group_growth)
        self.ceiling = training_roofline(
            cluster.device,
            training.precision,
            sustained_rate=self.stack.sustained_rate,
            power_exponent=self.stack.power_exponent,
            site_rate=self.stack.site_rate,
            fp8_rate=self.stack.fp8_rate,
        )
        self._model, self._training = model, training
        self._places: dict[bytes, int] = {}
        self._table: PassTable | None = None
        self._lock = Lock()

    def of(self, batch: MicroBatch, devices: Column) -> PassTable:
        """The passes of n rows; every column of ``batch``, and ``devices``, is [n]."""
        columns = np.array([*(getattr(batch, name) for name in _BATCH), devices])
        rows = np.ascontiguousarray(columns.T)
        keys: list[Any] = rows.view(np.dtype((np.void, rows.itemsize * len(columns)))).ravel().tolist()
        with self._lock:
            if len(self._places) > _MOST_ROWS:
                self._places, self._table = {}, None
            new = {key: row for row, key in enumerate(keys) if key not in self._places}
            table = self._table
            if new or table is None:
                table = self._with_rows(table, batch, devices, np.array(list(new.values()), dtype=np.int64))
                self._places |= {key: len(self._places) + index for index, key in enumerate(new)}
                self._table = table
            return _take(table, np.array([self._places[key] for key in keys], dtype=np.int64))

    def _with_rows(
        self, table: PassTable | None, batch: MicroBatch, devices: Column, rows: NDArray[np.int64]
    ) -> PassTable:
        """The table with further ``rows`` of a batch."""
        columns = {name: getattr(batch, name)[rows] for name in _BATCH}
        part = MicroBatch(sequence_length=batch.sequence_length, **columns)
        tensor, context = inner_groups(self.net, self.stack, part, devices[rows])
        found = pass_table(
            self._model,
            self._training,
            batch=part,
            ceiling=self.ceiling,
            tensor_group=tensor,
            context_group=context,
            stack=self.stack,
        )
        if table is None:
            return found
        joined = {name: np.concatenate([getattr(table, name), getattr(found, name)]) for name in _BY_ROW}
        return PassTable(layer_tensors=table.layer_tensors, **joined)


@lru_cache(maxsize=16)
def pass_tables(
    model: Identical[ModelSpec],
    training: Identical[TrainingSpec],
    cluster: Identical[ClusterSpec],
    runtime: Identical[RuntimeProfile],
) -> PassTables:
    """The tables of a problem."""
    return PassTables(model.value, training.value, cluster.value, runtime.value)


def inner_groups(net: Network, stack: Stack, batch: MicroBatch, devices: Column) -> tuple[Group, Group]:
    """The tensor- and the context-parallel groups of every row; the latter's members lie a tensor-parallel group apart."""
    tensor, context = batch.tensor_parallel, np.asarray(batch.context_parallel)
    members = group(net, size=tensor, stride=np.ones(len(tensor)), devices=devices)
    return (
        waiting_group(members, stack.collective_wait_seconds),
        group(net, size=context, stride=tensor, devices=devices),
    )


def _take(table: PassTable, rows: NDArray[np.int64]) -> PassTable:
    """Some rows of a table."""
    return PassTable(layer_tensors=table.layer_tensors, **{name: getattr(table, name)[rows] for name in _BY_ROW})

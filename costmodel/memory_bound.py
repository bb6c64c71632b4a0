"""The cheapest lower bound on the memory of candidates: states and kept activations of whole layers.

Every memory model has an instant at which parameters, optimizer state and the activations of all micro-batches in flight exist
(the loss, equation (1) of each), beside the gradients of earlier micro-batches where there are some and, below ZeRO 3, the
gathered parameters (of at least three chunks under torch's schedules). With s the bytes of all these but activations of one
layer, a what one micro-batch keeps of it, both of the kind of layer that has least of them, and K the micro-batches of all chunks
in flight on a rank (in_flight.py; 0 where the backward is split), a rank with l layers in v chunks, n of them at least in each,
needs

    (1) allocated >= l s + K n a

    (2) rank 0 of an even split: n = L // (p v), l = n v
    (3) any boundaries, one chunk a rank: l = n layers fit on rank r only if (1) does, and all L must fit somewhere

Where any number of layers may be recomputed, each saves at most k d, d what its kind saves of one micro-batch and k the
micro-batches of one chunk in flight. With a of layers that recompute nothing, so many are recomputed at least:

    (4) on a rank of an even split: x >= (l s + K n a - usable) / (k d). K falls along the ranks, first slowly and then fast, so
        its mean is at least that of the first and the last rank, and (4) with that mean holds for the mean of x
    (5) any boundaries: layers beyond usable / (s + K a) of a rank are there only if (s + K a) / (K d) are recomputed for each, of
        which rank 0 has the least

s, a and d depend on few columns of a grid and are computed once for each of their values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.in_flight import (
    grid_micro_batches_per_round,
    in_flight,
    in_flight_of_chunk,
    runs_breadth_first,
)
from costmodel.layer_kinds import layer_kinds
from costmodel.memory import memory_model, whole_device_bytes
from costmodel.runtimes.grid import SCHEDULES, Grid, distinct_rows, first_of_alike
from costmodel.shard_sizes import Column
from costmodel.specs import ClusterSpec, ModelSpec, RuntimeProfile, TrainingSpec
from costmodel.split_in_flight import splits_backward
from costmodel.stage_contents import Chunks, Part, RankContents
from costmodel.unshards import MOST_GATHERED

_SHARDED_BY = (
    "tensor_parallel_size", "context_parallel_size", "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage",
    "hierarchical_partition_size",
)  # fmt: skip
_KEPT_BY = (
    "tensor_parallel_size", "sequence_parallel", "loss_parallel", "micro_batch_size", "context_parallel_size",
    "context_parallel_method", "recompute",
)  # fmt: skip
_ROUNDING = 1e-9
"""Relative slack for the device bytes' way back to those of equation (1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory:
    """s, a and d of every candidate of a grid, bytes [n]: ``kept`` of layers that recompute as it says, ``plain`` of others;
    ``running`` [n]: K of rank 0.
    """

    model: ModelSpec
    cluster: ClusterSpec
    runtime: RuntimeProfile
    grid: Grid
    state: Column
    kept: Column
    plain: Column
    saved: Column
    running: Column

    @staticmethod
    def of(
        model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec, runtime: RuntimeProfile, grid: Grid
    ) -> LeastMemory:
        """The columns of a grid."""
        inputs_of, _ = memory_model(runtime)
        rows, which = distinct_rows([getattr(grid, name) for name in _KEPT_BY])
        some = grid.take(rows)
        layers = inputs_of(model, training, runtime, cluster.device, some).layers
        kept = np.minimum.reduce([layer.kept_under(some.recompute) for layer in layers])
        plain = np.minimum.reduce([layer.kept for layer in layers])
        saved = np.maximum.reduce([layer.kept - layer.kept_under(some.recompute) for layer in layers])
        first, alike = first_of_alike(grid, "recompute")
        running = in_flight(grid.take(first), np.zeros(len(first), dtype=np.int64))
        state = _state_of_a_layer(model, cluster, training, runtime, grid.take(first), running)
        return LeastMemory(
            model=model,
            cluster=cluster,
            runtime=runtime,
            grid=grid,
            state=state[alike],
            kept=kept[which],
            plain=plain[which],
            saved=saved[which],
            running=running[alike],
        )

    def take(self, rows: NDArray[np.int64]) -> LeastMemory:
        """Some of the rows."""
        columns = {name: getattr(self, name)[rows] for name in ("state", "kept", "plain", "saved", "running")}
        return replace(self, grid=self.grid.take(rows), **columns)

    def even(self) -> NDArray[np.float64]:
        """Equation (2): bytes that the fullest device of every row needs at least, float64 [n]."""
        grid = self.grid
        layers = self.model.num_hidden_layers // (grid.pipeline_parallel_size * grid.num_model_chunks)
        running = np.where(splits_backward(grid), 0, self.running)
        held = np.asarray(layers * (grid.num_model_chunks * self.state + running * self.kept), dtype=np.int64)
        return whole_device_bytes(held, self.runtime, self.cluster.device)

    def has_room(self, capacity_bytes: float) -> NDArray[np.bool_]:
        """Equation (3): whether layers may be dealt to the ranks of every row, one chunk each, so that all fit, [n]."""
        return self._room(capacity_bytes, self.kept, whole=True) >= self.model.num_hidden_layers

    def recomputed(self, capacity_bytes: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Equation (4): layers that all ranks of every row recompute together at least, evenly split, and rank 0 alone, [n]."""
        grid, ranks = self.grid, self.grid.pipeline_parallel_size
        first, last = self.running, in_flight(grid, ranks - 1)
        most = in_flight_of_chunk(grid, first, 0) * self.saved
        layers = self.model.num_hidden_layers // (ranks * grid.num_model_chunks)
        running = np.where(splits_backward(grid), 0, np.stack([(first + last) / 2, first]))
        over = layers * (grid.num_model_chunks * self.state + running * self.plain) - self._usable(capacity_bytes)
        mean, of_first = np.divide(np.maximum(0.0, over), most, out=np.zeros_like(over), where=most > 0)
        return mean * ranks, of_first

    def recomputed_somewhere(self, capacity_bytes: float) -> NDArray[np.float64]:
        """Equation (5): layers that all ranks of every row recompute together at least, one chunk each, [n]."""
        running = self.running
        beyond = np.maximum(0.0, self.model.num_hidden_layers - self._room(capacity_bytes, self.plain, whole=False))
        each, saved = self.state + running * self.plain, running * self.saved
        return np.asarray(beyond * np.divide(each, saved, out=np.zeros(len(self.grid)), where=saved > 0))

    def _usable(self, capacity_bytes: float) -> float:
        """Bytes that may be allocated."""
        empty, full = (
            whole_device_bytes(np.array([size]), self.runtime, self.cluster.device)[0] for size in (0, 2**50)
        )
        return float(max(0.0, capacity_bytes - empty) / ((full - empty) / 2**50) * (1.0 + _ROUNDING))

    def _room(self, capacity_bytes: float, kept: Column, *, whole: bool) -> NDArray[np.float64]:
        """Layers for which there is room where each keeps so much [n], equation (3); ``whole`` ones on every rank."""
        depth, room, usable = self.model.num_hidden_layers, np.zeros(len(self.grid)), self._usable(capacity_bytes)
        for ranks in np.unique(self.grid.pipeline_parallel_size):
            rows = np.flatnonzero(self.grid.pipeline_parallel_size == ranks)
            # Rows down and ranks across.
            running = in_flight(self.grid.take(rows[:, None]), np.arange(ranks))
            most = usable / (self.state[rows, None] + running * kept[rows, None])
            room[rows] = np.clip(np.floor(most) if whole else most, 0, depth).sum(axis=1)
        return room


def _state_of_a_layer(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    grid: Grid,
    running: Column,
) -> Column:
    """Bytes s of every row [n]; ``running``: K of rank 0."""
    chunks = grid.num_model_chunks
    piped = (grid.pipeline_parallel_size > 1).astype(np.int64)
    rows, index = distinct_rows([*(getattr(grid, name) for name in _SHARDED_BY), piped])
    lasting, gradients, gathered = _loss_of_a_layer(model, cluster, training, runtime, grid.take(rows), piped[rows])
    rounds = grid.num_micro_batches // grid_micro_batches_per_round(grid)
    earlier = grid.num_micro_batches * chunks > running
    # Several chunks in a single round: only one of them has gradients by then.
    earlier &= (chunks == 1) | ((rounds > 1) & ~runs_breadth_first(grid)) & ~splits_backward(grid)
    copies = gathered[index] * (grid.zero_stage < 3) * np.minimum(chunks, MOST_GATHERED) // chunks
    return np.asarray(lasting[index] + gradients[index] * earlier + copies)


def _loss_of_a_layer(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    runtime: RuntimeProfile,
    grid: Grid,
    piped: Column,
) -> tuple[Column, Column, Column]:
    """At the loss of the second of several micro-batches the bytes of one layer, of the kind that has least of them [n]:
    parameters and optimizer state, gradients of earlier micro-batches, and gathered parameters.
    """
    one, zero = np.ones(len(grid), dtype=np.int64), np.zeros(len(grid), dtype=np.int64)
    alone = replace(
        grid,
        pipeline_parallel_size=one + piped,
        num_model_chunks=one,
        pipeline_schedule=np.where(piped, SCHEDULES.index("1f1b"), SCHEDULES.index("none")),
        micro_batch_size=one,
        num_micro_batches=3 * one,
        recompute=zero,
    )
    inputs_of, rank_memory = memory_model(runtime)
    inputs, kinds = inputs_of(model, training, runtime, cluster.device, alone), range(len(layer_kinds(model)))
    found = []
    for kind in kinds:
        held, none = tuple(one[None] * (other == kind) for other in kinds), zero[None]
        chunk = Chunks(held, (Part(zero, held),), none + kind, embedding=none, head=none, exists=one[None])
        instants = rank_memory(inputs, RankContents(piped, chunk)).phases["forward_backward"]
        loss = next(terms for terms in instants if "logits" in terms)
        lasting = loss["parameters"] + loss["optimizer_state"]
        found.append((lasting, loss["gradients"], loss.get("gathered_parameters", zero)))
    lasting, gradients, gathered = (np.minimum.reduce(columns) for columns in zip(*found, strict=True))
    return lasting, gradients, gathered

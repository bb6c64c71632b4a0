"""Durations of one training step for candidates that share a pipeline shape: what the longest path runs over.

Sizes: n candidates, p pipeline ranks, v chunks per rank, V = p v virtual stages, P parts (tables.py).

    (1) pass of a virtual stage = sum over its layers + embedding + head, + exposed gathers and reductions (sharding.py)
    (2) message between stages: T h elements, cut over the tensor group with sequence parallelism or scatter-gather. On ``cpu``
        devices it is no lane of its own: gloo sends it when the receiver asks, and torch's schedules ask right before the pass
        that needs it, so (1) of the receiver has the message. Where it meets one that comes the other way, both take turns
        (collectives.py): under 1f1b on boundary r all but the p - 1 - r first ones of m. Under schedules of several chunks
        ranks ask for both before they send, and both travel at once
    (3) tied embeddings on two ranks: an all-reduce of the table's gradient between them
    (4) optimizer step: gradients, parameters and states, read and written, over the memory bandwidth; with clipping one
        all-reduce of two scalars over all devices
    (5) step = max over ranks of (end of the last backward + exposed reduction) + max over ranks of the optimizer step
        when gradients are clipped by their global norm; otherwise max over ranks of the sum of the three
    (6) a split backward puts off the weight gradients: half of the matrix products of a layer and the head. The first stage has
        no inputs to give gradients of and puts off everything; a stage that recomputes whole layers is not split
    (7) every pass takes (1 + growth x log2(nodes)) times as long: collectives wait for the slowest device
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import all_gather_seconds, all_reduce_seconds, boundary_seconds, group
from costmodel.compute import Column, smooth_maximum, stream_seconds
from costmodel.paths import boundary_messages
from costmodel.runtimes.grid import FULL_RECOMPUTE, SCHEDULES
from costmodel.setting import Matrix, Setting
from costmodel.sharding import sharding_times
from costmodel.specs import BYTES_PER_ELEMENT, ClusterSpec, TrainingSpec
from costmodel.stack import Stack
from costmodel.tables import GATHER, GEMM, GRADIENT, MESSAGE, Cube


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Durations of one step; hidden seconds are those of one rank over the whole step."""

    forward: Matrix  # [n, V, P]
    backward: Matrix  # [n, V, P]
    weight: Matrix  # [n, V] of the backward, what a split one puts off
    transfer: Matrix  # [n, p] message from rank r to r + 1 mod p
    start: Matrix  # [n, p] exposed gather before the first forward
    reduction: Matrix  # [n, p] exposed gradient reduction after the last backward
    optimizer: Matrix  # [n, p]
    gather_hidden: Matrix  # [n, p]
    reduction_hidden: Matrix  # [n, p]
    tensor_hidden: Matrix  # [n, p]
    context_hidden: Matrix  # [n, p]
    clips: bool

    def finish(self, end: Matrix) -> Column:
        """Step time from the ends of the ranks' last backwards [n, p], equation (5)."""
        reduced = end + self.reduction
        if self.clips:
            return np.asarray(reduced.max(axis=1) + self.optimizer.max(axis=1))
        return np.asarray((reduced + self.optimizer).max(axis=1))

    def take(self, rows: NDArray[np.int64]) -> StepTimes:
        """Some of the candidates."""
        columns = {column.name: getattr(self, column.name)[rows] for column in fields(self) if column.name != "clips"}
        return StepTimes(**columns, clips=self.clips)


def step_times(setting: Setting) -> StepTimes:
    """Durations of one step of every candidate."""
    forward, backward = _passes(setting)
    transfer = _transfer(setting)
    if setting.stack.blocking_messages:
        forward, backward, transfer = _blocked(setting, forward, backward, transfer)
    elif setting.net.gloo:
        forward, backward, transfer = _awaited(setting, forward, backward, transfer)
    parameters = stage_parameters(setting)
    sharding = sharding_times(
        setting, parameters=parameters, forward=forward.sum(axis=2), backward=backward.sum(axis=2)
    )
    forward[:, :, GATHER] = sharding.forward_gather
    backward[:, :, GATHER], backward[:, :, GRADIENT] = sharding.backward_gather, sharding.backward_reduce
    layers = setting.contents.by_kind
    tensor_hidden = (layers @ setting.table.layer_backward_hidden[:, :, None])[:, :, 0]
    return StepTimes(
        forward=forward,
        backward=backward,
        weight=_weight_gradients(setting, backward),
        transfer=transfer,
        start=sharding.start,
        reduction=sharding.reduction + _tied_reduction(setting),
        optimizer=_optimizer(setting, parameters),
        gather_hidden=sharding.gather_hidden,
        reduction_hidden=sharding.reduction_hidden,
        tensor_hidden=setting.per_rank(tensor_hidden) * setting.grid.num_micro_batches[:, None],
        context_hidden=setting.per_rank(_context_hidden(setting)) * setting.grid.num_micro_batches[:, None],
        clips=setting.problem.training.optimizer.max_grad_norm is not None,
    )


def _weight_gradients(setting: Setting, backward: Cube) -> Matrix:
    """Seconds that a split backward puts off [n, V], equation (6)."""
    if not setting.splits_backward:
        return np.zeros(backward.shape[:2])
    weight = 0.5 * backward[:, :, GEMM]
    weight[:, 0] = backward[:, 0].sum(axis=1)
    whole = setting.contents.layers[..., FULL_RECOMPUTE].sum(axis=2) > 0
    return np.where(whole, 0.0, weight)


def _context_hidden(setting: Setting) -> Matrix:
    """Hidden seconds of context-parallel collectives of one micro-batch [n, V]."""
    hidden = setting.table.layer_context_hidden
    if not hidden.any():
        return np.zeros((len(hidden), setting.held.size))
    rows, virtual = len(hidden), setting.contents.layers.shape[1]
    layers = setting.contents.layers.reshape(len(setting.contents.layers), virtual, -1)
    return np.asarray((layers @ hidden.reshape(rows, -1, 1))[:, :, 0])


def holds_tied_copy(setting: Setting) -> bool:
    """Whether the head's stage holds its own copy of a tied embedding table."""
    return setting.problem.model.tie_word_embeddings and setting.num_ranks > 1


def stage_parameters(setting: Setting) -> Matrix:
    """Parameters of every virtual stage on one tensor-parallel rank [n, V]; a tied table counts on both its ranks."""
    table, contents = setting.table, setting.contents
    head = table.head_parameters
    if holds_tied_copy(setting):
        head = head + _table_parameters(setting)
    layers = contents.by_kind @ table.layer_parameters[:, :, None]
    return np.asarray(
        layers[:, :, 0] + table.embedding_parameters[:, None] * contents.embedding + head[:, None] * contents.head
    )


def _passes(setting: Setting) -> tuple[Matrix, Matrix]:
    """Forward and backward of every virtual stage by part [n, V, P], equation (1) without data parallelism."""
    table, contents = setting.table, setting.contents
    rows, layer_kinds, kinds, parts = table.layer_backward.shape
    layers = contents.layers.reshape(len(contents.layers), -1, layer_kinds * kinds)
    forward = contents.by_kind @ table.layer_forward
    backward = layers @ table.layer_backward.reshape(rows, -1, parts)
    slower = slowest_of_all(setting.problem.cluster, setting.stack, setting.devices)[:, None, None]
    for direction, passes in enumerate((forward, backward)):
        # In place and at the ends of the model alone: these are the largest arrays of a grid.
        for held, end in ((contents.embedding, table.embedding), (contents.head, table.head)):
            stages = np.flatnonzero(held)
            passes[:, stages] += held[stages, None] * end[:, None, direction]
        np.multiply(passes, slower, out=passes)
    return forward, backward


def slowest_of_all(cluster: ClusterSpec, stack: Stack, num_devices: NDArray[np.number]) -> Column:
    """How much longer the slowest of so many devices computes than one alone [n], equation (7)."""
    nodes = np.maximum(1.0, num_devices / cluster.devices_per_node)
    return np.asarray(1.0 + stack.straggler_growth * np.log2(nodes))


def _transfer(setting: Setting) -> Matrix:
    """Seconds of the message between neighbouring ranks [n, p], equation (2)."""
    if setting.num_ranks == 1:
        return np.zeros((len(setting.grid), 1))
    batch, tensor = setting.batch, setting.batch.tensor_parallel
    whole = batch.tokens * setting.problem.model.hidden_size * setting.ceiling.element_bytes
    scattered = (batch.sequence_parallel > 0) | (setting.stack.pipeline_scatter_gather > 0)
    seconds = boundary_seconds(
        setting.net,
        message_bytes=np.where(scattered, whole / tensor, whole) / setting.stack.message_rate,
        stride=setting.pipeline_stride,
        ranks=setting.num_ranks,
        pipelines=setting.num_neighbouring_pipelines,
    )
    gathered = np.where(
        scattered & (batch.sequence_parallel == 0), all_gather_seconds(setting.tensor_group, whole), 0.0
    )
    return seconds + gathered[:, None]


def _blocked(setting: Setting, forward: Cube, backward: Cube, transfer: Matrix) -> tuple[Cube, Cube, Matrix]:
    """Passes with the messages they send, which then take no time of their own: forward to the next rank, backward back."""
    sent = boundary_messages(transfer, setting.held)
    forward, backward = forward.copy(), backward.copy()
    forward[:, :, MESSAGE] += sent
    backward[:, 1:, MESSAGE] += sent[:, :-1]
    return forward, backward, np.zeros_like(transfer)


def _awaited(setting: Setting, forward: Cube, backward: Cube, transfer: Matrix) -> tuple[Cube, Cube, Matrix]:
    """Passes with the messages they wait for, which then take no time of their own, equation (2) on gloo."""
    received = boundary_messages(transfer * (1.0 + _met(setting)), setting.held)
    forward, backward = forward.copy(), backward.copy()
    forward[:, 1:, MESSAGE] += received[:, :-1]
    backward[:, :, MESSAGE] += received
    return forward, backward, np.zeros_like(transfer)


def _met(setting: Setting) -> Matrix:
    """Share of a boundary's messages that meet one the other way [n, p], equation (2)."""
    micro_batches = setting.grid.num_micro_batches[:, None].astype(np.float64)
    warm_up = setting.num_ranks - 1.0 - np.arange(setting.num_ranks)[None, :]
    steady = np.maximum(0.0, micro_batches - warm_up) / micro_batches
    return np.where(setting.grid.pipeline_schedule[:, None] == SCHEDULES.index("1f1b"), steady, 0.0)


def _table_parameters(setting: Setting) -> Column:
    model = setting.problem.model
    return model.padded_vocab_size * model.hidden_size / setting.batch.tensor_parallel


def _tied_reduction(setting: Setting) -> Matrix:
    """All-reduce of a tied table's gradient between the first and the last rank [n, p], equation (3)."""
    seconds = np.zeros((len(setting.grid), setting.num_ranks))
    if holds_tied_copy(setting) and setting.apart:
        pair = setting.pipeline_group()
        gradient = BYTES_PER_ELEMENT[setting.problem.training.precision.reduce]
        seconds[:, [0, -1]] = all_reduce_seconds(pair, _table_parameters(setting) * gradient)[:, None]
    return seconds


def optimizer_bytes_per_parameter(training: TrainingSpec) -> float:
    """Bytes one fused optimizer kernel moves per parameter, equation (4).

    The gradient is read and cleared (clipping reads it twice more and writes it once), the master and every moment are
    read and written, and a separate 16-bit copy is written.
    """
    precision, optimizer = training.precision, training.optimizer
    gradient = BYTES_PER_ELEMENT[precision.gradient]
    passes = 2.0 + (3.0 if optimizer.max_grad_norm is not None else 0.0)
    master = BYTES_PER_ELEMENT[precision.master or precision.parameter]
    states = 2.0 * (master + optimizer.num_moments * BYTES_PER_ELEMENT[precision.state])
    copy = BYTES_PER_ELEMENT[precision.parameter] if precision.master else 0.0
    return passes * gradient + states + copy


def _optimizer(setting: Setting, parameters: Matrix) -> Matrix:
    """Optimizer step of every rank [n, p], equation (4); ZeRO cuts it over the shard group.

    The host issues its operations, and those of the collectives that passes do not count, meanwhile or in addition.
    """
    shards = np.where(setting.grid.zero_stage > 0, setting.grid.shard_group_size, 1)[:, None]
    moved = setting.per_rank(parameters) / shards * optimizer_bytes_per_parameter(setting.problem.training)
    device = stream_seconds(setting.ceiling, moved * setting.stack.optimizer_traffic_factor)
    stack, often = setting.stack, setting.often
    layers = setting.contents.by_kind
    once = (often.first_gather + often.last_reduce + often.replicas)[:, None] + setting.regathers
    operations = stack.optimizer_operations * (
        layers @ setting.table.layer_tensors
    ) + stack.collective_operations * once * layers.sum(axis=2)
    host = setting.per_rank(operations) * stack.host_operations * setting.ceiling.launch_seconds
    local = smooth_maximum(device, host, stack.launch_sharpness) if setting.ceiling.asynchronous else device + host
    return np.asarray(local + _norm_reduction(setting)[:, None])


def _norm_reduction(setting: Setting) -> Column:
    """The all-reduce of the squared gradient norm and the loss, in float64."""
    devices = setting.devices
    if setting.problem.training.optimizer.max_grad_norm is None:
        return np.zeros(devices.shape)
    everyone = group(setting.net, size=devices, stride=np.ones(devices.shape), devices=devices)
    return all_reduce_seconds(everyone, np.full(devices.shape, 16.0))

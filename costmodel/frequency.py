"""How often parameters are gathered and gradients reduced in one step.

    zero 0   nothing gathered; reduced once
    zero 1   gathered once, reduced once
    zero 2   gathered once, reduced in every micro-batch
    zero 3   gathered before every forward and every backward, reduced in every micro-batch

Under torch's pipeline schedules (torch 2.13.0, torch.distributed.pipelining) gradients are reduced once at every stage of ZeRO,
and zero 3 gathers m + 1 times for m micro-batches; more than three model chunks on a rank are gathered more often (unshards.py).
Over the replicas of hybrid shard, gradients are reduced once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import Column
from costmodel.runtimes.grid import Grid
from costmodel.specs import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency:
    """Occurrences per step of every kind of traffic, as columns [n]; ``replicas`` is the reduction over the replicas."""

    forward_gather: Column
    backward_gather: Column
    backward_reduce: Column
    first_gather: Column
    last_reduce: Column
    replicas: Column


def is_wrapped(grid: Grid, training: TrainingSpec) -> NDArray[np.bool_]:
    """Where runtime ``torch`` uses `fully_shard` or `replicate`: with replicas, and for the sake of mixed precision; [n]."""
    mixed = training.precision.compute != training.precision.parameter
    return np.asarray((grid.data_parallel_size * grid.context_parallel_size > 1) | mixed)


def reduces_every_micro_batch(grid: Grid) -> NDArray[np.bool_]:
    """Where FSDP2 reduces gradients in every micro-batch instead of once per step; [n]."""
    return np.asarray((grid.zero_stage >= 2) & (grid.pipeline_parallel_size == 1))


def frequency(grid: Grid, *, sharding: str) -> Frequency:
    """Occurrences for every row; ``sharding`` is the runtime's way to cut states."""
    zero = grid.zero_stage
    micro_batches = grid.num_micro_batches.astype(np.float64)
    piped = grid.pipeline_parallel_size > 1
    sharded = grid.shard_group_size > 1
    each = reduces_every_micro_batch(grid) & (sharding == "fsdp2")
    return Frequency(
        forward_gather=np.where(zero == 3, micro_batches, 0.0),
        backward_gather=np.where(zero == 3, np.where(piped, 1.0, micro_batches), 0.0),
        backward_reduce=np.where(each & sharded, micro_batches, 0.0),
        first_gather=np.where((zero == 1) | (zero == 2), 1.0, 0.0),
        last_reduce=np.where(~each & sharded, 1.0, 0.0),
        replicas=np.where(grid.replica_group_size > 1, 1.0, 0.0),
    )

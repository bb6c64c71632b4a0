"""What data parallelism and ZeRO send in one step, and how much of it computation hides.

With N parameters of a model chunk on one tensor-parallel rank, e_c bytes per gathered element (compute format), e_r bytes
per reduced element and m micro-batches; shard group = dp_shard, replicate group = dp_replicate:

    (1) zero 0: an all-reduce of N e_r over the replicate group                                              per step
    (2) zero 1: an all-gather of N e_c and a reduce-scatter of N e_r over the shard group                    per step
    (3) zero 2: the gather of (2) per step, the reduce-scatter per micro-batch
    (4) zero 3: an all-gather of N e_c before every forward and every backward, the reduce-scatter per micro-batch;
        with a hierarchical partition the backward's gather stays in groups of that size
    (5) hybrid shard: each reduce-scatter is followed by an all-reduce of N e_r / dp_shard over the replicate group
    (6) torch's pipeline schedules: one reduction per step at every stage of ZeRO; zero 3 gathers m + 1 times. The gather
        beyond one per forward is spread evenly over the backwards here
    (7) hidden = min(overlap x (g - 1)/g x communication, computation beside it), for g groups gathered one after the
        other; exposed = communication - hidden + (slowdown - 1) x hidden

On ``cpu`` devices communication and computation share the cores, so nothing is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.collectives import Group, all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from costmodel.compute import Column
from costmodel.runtimes.grid import Grid
from costmodel.setting import Matrix, Setting
from costmodel.specs import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency:
    """How often each kind of traffic happens in one step, as columns [n, 1]."""

    forward_gather: Column
    backward_gather: Column
    backward_reduce: Column
    first_gather: Column
    last_reduce: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class DataGroups:
    """The groups of the data-parallel axes, as columns [n, 1]; ``partition`` is the hierarchical one."""

    shard: Group
    replicate: Group
    partition: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingTimes:
    """Exposed seconds per pass [n, V] and per step [n, p]; hidden seconds per step [n, p]."""

    forward_gather: Matrix
    backward_gather: Matrix
    backward_reduce: Matrix
    start: Matrix
    reduction: Matrix
    gather_hidden: Matrix
    reduction_hidden: Matrix


def frequency(grid: Grid, *, sharding: str) -> Frequency:
    """Occurrences per step of every kind of traffic, equations (1) to (6)."""
    zero = grid.zero_stage[:, None]
    micro_batches = grid.num_micro_batches[:, None].astype(np.float64)
    piped = grid.pipeline_parallel_size[:, None] > 1
    each = (zero >= 2) & ~piped & (sharding == "fsdp2")
    reduces = (grid.data_parallel_size > 1)[:, None]
    return Frequency(
        forward_gather=np.where(zero == 3, micro_batches, 0.0),
        backward_gather=np.where(zero == 3, np.where(piped, 1.0, micro_batches), 0.0),
        backward_reduce=np.where(each & reduces, micro_batches, 0.0),
        first_gather=np.where((zero == 1) | (zero == 2), 1.0, 0.0),
        last_reduce=np.where(~each & reduces, 1.0, 0.0),
    )


def data_groups(setting: Setting) -> DataGroups:
    """The groups of the data-parallel axes in the default axis order pp, dp_replicate, dp_shard, cp, tp."""
    shard = setting.grid.data_parallel_shard_size[:, None].astype(np.float64)
    replicate = setting.grid.data_parallel_replicate_size[:, None].astype(np.float64)
    partition = np.maximum(1.0, setting.grid.hierarchical_partition_size[:, None].astype(np.float64))
    return DataGroups(
        shard=setting.data_group(shard),
        replicate=setting.data_group(replicate, inside=shard),
        partition=setting.data_group(partition),
    )


def sharding_times(setting: Setting, *, parameters: Matrix, forward: Matrix, backward: Matrix) -> ShardingTimes:
    """Data-parallel communication of every candidate, equations (1) to (7).

    Args:
        setting: n candidates.
        parameters: parameters per virtual stage on one tensor-parallel rank [n, V].
        forward: seconds of one forward of every virtual stage without this communication [n, V].
        backward: seconds of one backward [n, V].
    """
    gather, again, reduce = _collectives(setting, parameters)
    often = frequency(setting.grid, sharding=setting.problem.runtime.sharding)
    micro_batches = setting.grid.num_micro_batches[:, None]
    slowdown = max(1.0, setting.problem.runtime.overlap_slowdown)
    calls = setting.contents.calls
    later = (calls - 1.0) / calls
    gathers, reduces = _overlaps(setting)
    forward_gather, hidden_forward = _hide(gather * (often.forward_gather > 0), forward, gathers * later, slowdown)
    # Gathers and reductions of one backward share the network, hence one budget of computation to hide behind.
    backward_gather = again * often.backward_gather / micro_batches
    both = backward_gather + reduce * (often.backward_reduce > 0)
    exposed, hidden_backward = _hide(both, backward, gathers * later, slowdown)
    gather_part = np.divide(backward_gather, both, out=np.zeros_like(both), where=both > 0)
    start, hidden_start = _hide(
        setting.per_rank(gather * often.first_gather), setting.per_rank(forward), gathers, slowdown
    )
    reduction, hidden_last = _hide(
        setting.per_rank(reduce * often.last_reduce), setting.per_rank(backward), reduces, slowdown
    )
    hidden_gathers = micro_batches * (hidden_forward + hidden_backward * gather_part)
    return ShardingTimes(
        forward_gather=forward_gather,
        backward_gather=exposed * gather_part,
        backward_reduce=exposed * (1.0 - gather_part),
        start=start,
        reduction=reduction,
        gather_hidden=setting.per_rank(hidden_gathers) + hidden_start,
        reduction_hidden=setting.per_rank(micro_batches * hidden_backward * (1.0 - gather_part)) + hidden_last,
    )


def _collectives(setting: Setting, parameters: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Seconds of one gather, of one gather before a backward, and of one reduction of every virtual stage [n, V]."""
    groups, calls = data_groups(setting), setting.contents.calls
    precision = setting.problem.training.precision
    gathered = parameters * BYTES_PER_ELEMENT[precision.compute]
    reduced = parameters * BYTES_PER_ELEMENT[precision.reduce]
    gather = all_gather_seconds(groups.shard, gathered, calls)
    inside = all_gather_seconds(groups.partition, gathered, calls)
    again = np.where(setting.grid.hierarchical_partition_size[:, None] > 0, inside, gather)
    scatter = reduce_scatter_seconds(groups.shard, reduced, calls)
    return gather, again, scatter + all_reduce_seconds(groups.replicate, reduced / groups.shard.size, calls)


def _overlaps(setting: Setting) -> tuple[float, float]:
    """Largest hidden shares of gathers and of the last reduction."""
    if not setting.ceiling.asynchronous:
        return 0.0, 0.0
    stack = setting.stack
    reduces = stack.pipeline_reduce_overlap if setting.num_ranks > 1 else stack.reduce_overlap
    return stack.gather_overlap, reduces


def _hide(communication: Matrix, computation: Matrix, share: Matrix | float, slowdown: float) -> tuple[Matrix, Matrix]:
    """Exposed and hidden seconds, equation (7)."""
    hidden = np.minimum(share * communication, computation)
    return communication - hidden + (slowdown - 1.0) * hidden, hidden

"""What data parallelism and ZeRO send in one step, and how much of it computation hides.

With N parameters of a model chunk on one tensor-parallel rank, e_c bytes per gathered element (compute format), e_r bytes
per reduced element and m micro-batches; shard group = dp_shard x cp and replicate group = dp_replicate, without ZeRO
dp_replicate x cp, because context-parallel ranks hold the same parameters (Megatron-core's distributed optimizer over
dp x cp; torchtitan's mesh dp_shard_cp):

    (1) gather: an all-gather of N e_c over the shard group; before a backward under a hierarchical partition, over groups of
        that size
    (2) reduction: a reduce-scatter of N e_r over the shard group
    (3) reduction over the replicas: an all-reduce of N e_r / shards over the replicate group, once per step
    (4) frequency.py says how often (1) and (2) run, unshards.py which gathers (over the shard group) torch's pipeline schedules
        repeat. Those, and the one that they make beyond one per forward, are spread evenly over the backwards here
    (5) hidden = overlap x min((g - 1)/g x communication, computation beside it), for g groups gathered one after the
        other; exposed = communication - hidden + (slowdown - 1) x hidden
    (6) parameters updated under ZeRO 1 and 2 are gathered (1); broadcast by their ranks, each takes some time more

On ``cpu`` devices communication and computation share the cores, so nothing is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.collectives import Group, all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from costmodel.setting import Matrix, Setting
from costmodel.specs import BYTES_PER_ELEMENT


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


def data_groups(setting: Setting) -> DataGroups:
    """The groups of the data-parallel axes; a partition is of neighbours in the shard group."""
    shard = setting.grid.shard_group_size[:, None].astype(np.float64)
    replicate = setting.grid.replica_group_size[:, None].astype(np.float64)
    partition = np.maximum(1.0, setting.grid.hierarchical_partition_size[:, None].astype(np.float64))
    context = setting.grid.context_parallel_size[:, None].astype(np.float64)
    sharded = setting.grid.zero_stage[:, None] > 0
    return DataGroups(
        shard=setting.data_group(shard, context=np.where(sharded, context, 1.0)),
        replicate=setting.data_group(replicate, inside=shard, context=np.where(sharded, 1.0, context)),
        partition=setting.data_group(partition, context=np.minimum(context, partition)),
    )


def sharding_times(setting: Setting, *, parameters: Matrix, forward: Matrix, backward: Matrix) -> ShardingTimes:
    """Data-parallel communication of every candidate, equations (1) to (5).

    Args:
        setting: n candidates.
        parameters: parameters per virtual stage on one tensor-parallel rank [n, V].
        forward: seconds of one forward of every virtual stage without this communication [n, V].
        backward: seconds of one backward [n, V].
    """
    gather, again, reduce, replicas = _collectives(setting, parameters)
    often, micro_batches = setting.often, setting.grid.num_micro_batches[:, None]
    slowdown = max(1.0, setting.problem.runtime.overlap_slowdown)
    calls = setting.contents.calls
    later = (calls - setting.contents.first_exposed) / calls
    gathers, reduces = _overlaps(setting)
    before_forward = gather * (often.forward_gather > 0)[:, None]
    forward_gather, hidden_forward = _hide(before_forward, forward, gathers, slowdown, later=later)
    # Gathers and reductions of one backward share the network, hence one budget of computation to hide behind.
    backward_gather = (again * often.backward_gather[:, None] + gather * setting.regathers) / micro_batches
    both = backward_gather + reduce * (often.backward_reduce > 0)[:, None]
    exposed, hidden_backward = _hide(both, backward, gathers, slowdown, later=later)
    gather_part = np.divide(backward_gather, both, out=np.zeros_like(both), where=both > 0)
    first = setting.per_rank(gather * often.first_gather[:, None])
    start, hidden_start = _hide(first, setting.per_rank(forward), gathers, slowdown)
    start = start + _broadcasts(setting)
    last = setting.per_rank(reduce * often.last_reduce[:, None] + replicas * often.replicas[:, None])
    reduction, hidden_last = _hide(last, setting.per_rank(backward), reduces, slowdown)
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


def _collectives(setting: Setting, parameters: Matrix) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Seconds of a gather, a gather before a backward, a reduction and one over the replicas [n, V], (1) to (3)."""
    groups, stack = data_groups(setting), setting.stack
    calls = setting.contents.calls * (1.0 + stack.gathers_per_tensor * (setting.table.layer_tensors.mean() - 1.0))
    precision = setting.problem.training.precision
    gathered = parameters * BYTES_PER_ELEMENT[precision.compute]
    reduced = parameters * BYTES_PER_ELEMENT[precision.reduce]
    slower = np.where(setting.grid.zero_stage == 3, 1.0 / stack.shard_rate, 1.0)[:, None]
    gather = all_gather_seconds(groups.shard, gathered * slower, calls)
    again, partitioned = gather, setting.grid.hierarchical_partition_size[:, None] > 0
    if partitioned.any():
        again = np.where(partitioned, all_gather_seconds(groups.partition, gathered, calls), gather)
    reduce = reduce_scatter_seconds(groups.shard, reduced * slower, calls)
    if not setting.often.replicas.any():
        return gather, again, reduce, np.zeros_like(reduce)
    return gather, again, reduce, all_reduce_seconds(groups.replicate, reduced / groups.shard.size, calls)


def _broadcasts(setting: Setting) -> Matrix:
    """Seconds that broadcasts of updated parameters take beyond a gather [n, 1], equation (6)."""
    ranks = setting.grid.shard_group_size * (setting.often.first_gather > 0)
    return np.asarray(setting.stack.parameter_broadcast_seconds * ranks.astype(np.float64))[:, None]


def _overlaps(setting: Setting) -> tuple[float, Matrix | float]:
    """Largest hidden shares of gathers, and of the last reduction [n, 1]."""
    if not setting.ceiling.asynchronous:
        return 0.0, 0.0
    stack, piped = setting.stack, setting.grid.pipeline_parallel_size[:, None] > 1
    reduces = np.where(piped, stack.pipeline_reduce_overlap, stack.reduce_overlap)
    return stack.gather_overlap * stack.data_parallel_overlap, reduces * stack.data_parallel_overlap


def _hide(
    communication: Matrix, computation: Matrix, overlap: Matrix | float, slowdown: float, *, later: Matrix | float = 1.0
) -> tuple[Matrix, Matrix]:
    """Exposed and hidden seconds, equation (5); ``later`` is the share that has computation before it."""
    if not communication.any():
        return communication, communication
    hidden = overlap * np.minimum(later * communication, computation)
    return communication - hidden + (slowdown - 1.0) * hidden, hidden

"""Seconds and bytes of collectives over the levels of a cluster: an alpha-beta model.

A group is ``size`` devices at equal distances of ``stride`` device numbers, or runs of such. Level l joins units of u_l devices
(u_0 = 1: devices, u_1: nodes, ...); g_l members of the group sit in one such unit, and a = active devices of the unit / g_l
groups do the same at the same time. A ring enters and leaves every unit once per member (NCCL's rings), so

    (1) rate of level l = link x max(1, ports / u_l) x g_l, at most link x ports / a, over oversubscription
        times min(1, (g_{l+1} - g_l) x peer fraction) inside a node without a switch, and between nodes over
        1 + growth x log2(g_{l+1} / g_l)
    (2) rate of the ring = the smallest rate of the levels that the group spans
    (3) all-gather, reduce-scatter of S bytes in total:  (n - 1)/n S / rate + ring latency
    (4) all-reduce:                                     2 (n - 1)/n S / rate + 2 min(ring, tree) latency
    (5) ring latency = sum over levels of (g_{l+1} / g_l - 1) hops;  tree latency: the same inside a node, log2 above
        (double binary trees, NCCL 2.4)
    (6) all-to-all of S bytes on every rank: (n - 1)/n S / exchange rate + min(ring, tree) latency. A message crosses the
        lowest level that joins its ends and, from the nodes up, those below it; the slowest level decides:
        exchange rate = (n - 1)/n / max over levels of (share of S that crosses / (rate of the level / members in a unit))

A collective cannot end before its last rank has begun, and the largest of n delays grows about as log n:

    (8) ring and tree latency grow by wait x log2 n, where a runtime states how far its ranks lie apart; an all-reduce has
        two such phases. Not on ``cpu`` devices, whose ranks were measured together

On ``cpu`` devices torch uses gloo (v. 2.13's; gloo/allgather.cc, gloo/alltoall.cc). Its reduce-scatter is an all-reduce that
keeps one part: it costs and sends as (4). It sends nothing before the other process has said that it is ready to receive, and
posts sends first, so that of two processes that send to each other, on their one connection, the later one's word waits behind
what it sends, and the two directions follow one another (docs/hardware.md has the measurements):

    (7) all-gather in a group of 2, two halves one after the other: bytes of (3) x 3/2;  all-to-all: bytes of (6) x 2.
        The all-reduce asks for its segments ahead, and a larger ring's neighbours are different processes: neither is slowed
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.compute import Column
from costmodel.memo import Content
from costmodel.runtimes.grid import distinct_rows
from costmodel.specs import ClusterSpec, LevelSpec

_MOST_REMEMBERED = 512
"""Groups of one call from which on their rates are not kept."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Groups as columns: rates of the ring and of an all-to-all, one-way latencies, index of the slowest level spanned."""

    size: Column
    bytes_per_second: Column
    exchange_bytes_per_second: Column
    ring_latency_seconds: Column
    tree_latency_seconds: Column
    level: Column
    gloo: bool

    @cached_property
    def fraction(self) -> Column:
        """(n - 1)/n."""
        return (self.size - 1.0) / self.size

    @cached_property
    def gather_turns(self) -> Column:
        """How much longer an all-gather's bytes take because two directions take turns, equation (7)."""
        return np.where(self.gloo & (self.size == 2.0), 1.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The levels of a cluster, innermost first: devices per unit that level l joins, link rate, ports, latency."""

    unit: tuple[int, ...]
    rate: tuple[float, ...]
    ports: tuple[int, ...]
    latency: tuple[float, ...]
    peer: tuple[float, ...]
    names: tuple[str, ...]
    gloo: bool
    growth: float = 0.0


def link_rate(level: LevelSpec) -> float:
    """Bytes per second that large messages reach on one port: the measured rate, else efficiency x nominal."""
    link = level.link
    reached = link.measured_bytes_per_second or link.efficiency * link.nominal_bytes_per_second
    return reached / level.oversubscription


@lru_cache(maxsize=32)
def _network(levels: tuple[LevelSpec, ...], gloo: bool, growth: float) -> Network:
    unit = [1]
    for level in levels:
        unit.append(unit[-1] * level.size)
    return Network(
        unit=tuple(unit),
        rate=tuple(link_rate(level) for level in levels),
        ports=tuple(level.ports for level in levels),
        latency=tuple(level.link.latency_seconds for level in levels),
        peer=tuple(level.link.peer_fraction for level in levels),
        names=tuple(level.link.name for level in levels),
        gloo=gloo,
        growth=growth,
    )


def network(cluster: ClusterSpec, *, growth: float = 0.0) -> Network:
    """The network of a cluster; ``cpu`` devices talk through gloo. ``growth`` is that of equation (1)."""
    return _network(cluster.levels, cluster.device.kind == "cpu", growth)


def group(
    net: Network,
    *,
    size: Column,
    stride: Column,
    devices: Column,
    run: Column | None = None,
    jump: Column | None = None,
) -> Group:
    """Groups of ``size`` members, ``stride`` device numbers apart, in jobs of ``devices`` devices; (1), (2), (5), (6).

    With ``run`` and ``jump`` members lie in runs of ``run``, and one run begins ``jump`` device numbers after another.
    A group that does not fit evenly into a unit is priced at its least favourable position.
    """
    if (size == 1).all():
        return _alone(net, size)
    lies = (size, stride, devices) if run is None or jump is None else (size, stride, devices, run, jump)
    return _priced(net, *lies) if size.size > _MOST_REMEMBERED else _remembered(net, Content(*lies))


@lru_cache(maxsize=1024)
def _remembered(net: Network, lies: Content) -> Group:
    """`_priced` of few groups: candidates that are priced one after another have many in common."""
    return _priced(net, *lies.columns)


def _priced(net: Network, size: Column, stride: Column, devices: Column, *runs: Column) -> Group:
    """`group` of several members; ``runs`` are its ``run`` and ``jump``, or nothing."""
    rate = np.full(size.shape, np.inf)
    level = np.zeros(size.shape)
    ring, tree = np.zeros(size.shape), np.zeros(size.shape)
    members, exchange = np.ones(size.shape), np.zeros(size.shape)
    for index, unit in enumerate(net.unit[:-1]):
        inside = _inside(runs[0] if runs else size, stride, net.unit[index + 1])
        if runs:
            inside = inside * _inside(size / runs[0], runs[1], net.unit[index + 1])
        inside = size if index == len(net.unit) - 2 else np.minimum(inside, size)
        units = np.maximum(1.0, np.ceil(inside / members))
        concurrent = np.maximum(1.0, np.minimum(unit, devices) / members)
        port = net.rate[index]
        reached = np.minimum(port * max(1.0, net.ports[index] / unit) * members, port * net.ports[index] / concurrent)
        reached = reached * np.minimum(1.0, np.maximum(1.0, units - 1.0) * net.peer[index])
        if index:
            reached = reached / (1.0 + net.growth * np.log2(units))
        crossing = ((inside if index == 0 else size) - members) / size
        exchange = np.maximum(exchange, np.where(units > 1, crossing * members / reached, 0.0))
        slower = (units > 1) & (reached < rate)
        rate = np.where(slower, reached, rate)
        level = np.where(slower, float(index), level)
        ring = ring + (units - 1.0) * net.latency[index]
        tree = tree + (units - 1.0 if index == 0 else np.ceil(np.log2(units))) * net.latency[index]
        members = np.maximum(inside, members)
    return Group(
        size=size,
        bytes_per_second=rate,
        exchange_bytes_per_second=np.divide(
            (size - 1.0) / size, exchange, out=np.full(size.shape, np.inf), where=exchange > 0
        ),
        ring_latency_seconds=ring,
        tree_latency_seconds=tree,
        level=level,
        gloo=net.gloo,
    )


def _inside(count: Column, step: Column, unit: int) -> Column:
    """Of ``count`` members ``step`` device numbers apart, those in one unit of ``unit`` devices at the least."""
    return np.asarray(np.maximum(1.0, np.gcd((count * step).astype(np.int64), unit) // np.maximum(step, 1.0)))


def _alone(net: Network, size: Column) -> Group:
    """Groups of one member, which send nothing."""
    never, at_once = np.full(size.shape, np.inf), np.zeros(size.shape)
    return Group(
        size=size,
        bytes_per_second=never,
        exchange_bytes_per_second=never,
        ring_latency_seconds=at_once,
        tree_latency_seconds=at_once,
        level=at_once,
        gloo=net.gloo,
    )


def waiting_group(members: Group, seconds_per_doubling: float) -> Group:
    """The same groups with the wait for the last rank to join, equation (8)."""
    if members.gloo or seconds_per_doubling == 0:
        return members
    wait = seconds_per_doubling * np.log2(members.size)
    return replace(
        members,
        ring_latency_seconds=members.ring_latency_seconds + wait,
        tree_latency_seconds=members.tree_latency_seconds + wait,
    )


def all_gather_seconds(members: Group, total_bytes: Column, calls: Column | float = 1.0) -> Column:
    """All-gather of ``total_bytes`` (all calls, all shards together) in ``calls`` calls, equation (3); on gloo (7)."""
    sent = members.gather_turns * members.fraction * total_bytes
    return sent / members.bytes_per_second + calls * members.ring_latency_seconds


def all_reduce_seconds(members: Group, total_bytes: Column, calls: Column | float = 1.0) -> Column:
    """All-reduce of ``total_bytes`` in ``calls`` calls, equation (4)."""
    latency = np.minimum(members.ring_latency_seconds, members.tree_latency_seconds)
    return 2.0 * (members.fraction * total_bytes / members.bytes_per_second + calls * latency)


def reduce_scatter_seconds(members: Group, total_bytes: Column, calls: Column | float = 1.0) -> Column:
    """Reduce-scatter of ``total_bytes`` in ``calls`` calls, equation (3); on gloo equation (4)."""
    cost = all_reduce_seconds if members.gloo else all_gather_seconds
    return cost(members, total_bytes, calls)


def all_to_all_seconds(members: Group, total_bytes: Column, calls: Column | float = 1.0) -> Column:
    """All-to-all of ``total_bytes`` on every rank (all calls together) in ``calls`` calls, equation (6); on gloo (7)."""
    latency = np.minimum(members.ring_latency_seconds, members.tree_latency_seconds)
    turns = 2.0 if members.gloo else 1.0
    return turns * members.fraction * total_bytes / members.exchange_bytes_per_second + calls * latency


def all_gather_bytes(members: Group, total_bytes: Column) -> Column:
    """Bytes one rank sends in a ring all-gather."""
    return members.fraction * total_bytes


def all_reduce_bytes(members: Group, total_bytes: Column) -> Column:
    """Bytes one rank sends in a ring all-reduce."""
    return 2.0 * members.fraction * total_bytes


def reduce_scatter_bytes(members: Group, total_bytes: Column) -> Column:
    """Bytes one rank sends in a ring reduce-scatter (on gloo: in the all-reduce that stands for it)."""
    return (2.0 if members.gloo else 1.0) * members.fraction * total_bytes


def boundary_seconds(
    net: Network, *, message_bytes: Column, stride: Column, ranks: int, pipelines: Column | None = None
) -> Column:
    """Time to send ``message_bytes`` from pipeline rank r to r + 1 (the last column: back to rank 0).

    All devices of a rank send at once. Below the level of a crossing, a rank's devices share the unit's ports. Where pipelines
    lie one after another, the slowest counts; a unit's border cuts one of them at most, so they share no ports.

    Args:
        net: the network.
        message_bytes: bytes each device sends, a column [n].
        stride: devices per pipeline rank, whole numbers in a column [n].
        ranks: pipeline ranks.
        pipelines: how many pipelines of ranks x stride devices lie one after another, a column [n]; None is one.

    Returns:
        Seconds [n, ranks].
    """
    seconds = np.zeros((len(stride), ranks))
    beside = np.ones(len(stride)) if pipelines is None else pipelines
    rows, like = distinct_rows([stride.astype(np.int64), beside.astype(np.int64)])
    lies = Content(stride[rows], beside[rows])
    for index, unit in enumerate(net.unit[:-1]):
        crosses = _crosses(unit, ranks, lies)[like]
        senders = np.minimum(stride, unit)[:, None]
        reached = np.minimum(net.rate[index], net.rate[index] * net.ports[index] / senders) * net.peer[index]
        cost = message_bytes[:, None] / reached + net.latency[index]
        seconds = np.where(crosses, np.maximum(seconds, cost), seconds)
    return seconds


@lru_cache(maxsize=1024)
def _crosses(unit: int, ranks: int, lies: Content) -> NDArray[np.bool_]:
    """Whether a message from rank r to r + 1 leaves a unit in some pipeline [n, ranks]; ``lies``: their strides and number."""
    stride, pipelines = lies.columns
    rank = np.arange(ranks)[None, :] * stride[:, None]
    last = stride[:, None] - 1.0
    length = ranks * stride
    # Where pipelines begin within a unit repeats.
    positions = np.minimum(pipelines, unit // np.gcd(length.astype(np.int64), unit))
    crosses = np.zeros(rank.shape, dtype=np.bool_)
    for position in range(int(positions.max())):
        sender = rank + np.where(position < positions, position * length, 0.0)[:, None]
        receiver = np.roll(sender, -1, axis=1)
        crosses |= (sender // unit != receiver // unit) | ((sender + last) // unit != (receiver + last) // unit)
    return crosses

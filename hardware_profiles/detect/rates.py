"""Measured collectives -> rate and latency of a link.

With n ranks on N nodes of L, a call on S bytes sends b = f S through every rank (f: equation (1) of nccl_tests.py) in
p passes around the ring (2 for all_reduce, else 1):

    (1)  seconds / p = t + (b / p) / rate                                    (hardware_profiles.fit, equation (1))
    (2)  inside a node:   rate = link rate,                  t = (L - 1) link latency
    (3)  between nodes:   rate = ports x rate of one port,   t = (L - 1) node latency + h network latency

with h = N - 1 hops of a ring, or log2 N of the double binary tree that NCCL's all_reduce takes between nodes. These are
equations (2) to (5) of the cost model's collectives, read backwards. The other two collectives are no rings:

    (4)  sendrecv: one rank of a node sends out of it, through one port:  rate = rate of one port, t = one latency
    (5)  alltoall: n - L of a rank's n - 1 messages leave the node:       node rate = L (n - L)/(n - 1) rate; no latency

A ring's rate is what sharded training needs, so all_gather and reduce_scatter are preferred; all_reduce may run in the
switch (NVLink SHARP) or over a tree that sends less than a ring, and is taken where nothing else was measured. Below
8 MB NCCL changes its protocol; such sizes are used only where there are no two larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hardware_profiles.detect.nccl_tests import NcclRun
from hardware_profiles.fit import fit_link, link_residual

_RING = ("all_gather", "reduce_scatter")
_PREFERENCE = (_RING, ("all_reduce",), ("sendrecv",), ("alltoall",))
_LARGE_BYTES = 8e6
_VISIBLE_SHARE = 0.03
"""A latency below this share of the shortest call is hidden by its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """Equation (1). ``one_way_seconds``: t, None where the sizes do not show it. ``runs`` that it was fitted to."""

    bytes_per_second: float
    one_way_seconds: float | None
    residual: float
    num_points: int
    collectives: tuple[str, ...]
    runs: tuple[NcclRun, ...]

    @property
    def ring(self) -> bool:
        """Whether a ring's rate was measured."""
        return set(self.collectives) <= set(_RING)

    def describe(self) -> str:
        """What was measured, for a source."""
        files = ", ".join(dict.fromkeys(run.name for run in self.runs))
        points = f"{self.num_points} points, residual {self.residual:.1%}"
        return f"measured with nccl-tests {' and '.join(self.collectives)}, {points}: {files}"


def fit_rate(runs: Sequence[NcclRun]) -> LinkRate | None:
    """Equation (1) for runs on the same nodes.

    Args:
        runs: runs of equal numbers of ranks and nodes; the preferred collectives among them are taken.

    Returns:
        None without runs.
    """
    for names in _PREFERENCE:
        chosen = [run for run in runs if run.collective in names]
        if chosen:
            return _fit(chosen)
    return None


def node_hops(rate: LinkRate) -> int:
    """Hops of t inside a node: (2) and (4)."""
    return 1 if rate.collectives == ("sendrecv",) else rate.runs[0].num_ranks // rate.runs[0].num_nodes - 1


def network_hops(rate: LinkRate) -> int:
    """Hops of t between nodes: h of equation (3), and (4)."""
    num_nodes = rate.runs[0].num_nodes
    if rate.collectives == ("sendrecv",):
        return 1
    return math.ceil(math.log2(num_nodes)) if rate.collectives == ("all_reduce",) else num_nodes - 1


def node_rate(rate: LinkRate, ports: int) -> float:
    """Bytes per second that left a node: (3) to (5)."""
    run = rate.runs[0]
    size, local = run.num_ranks, run.num_ranks // run.num_nodes
    if rate.collectives == ("sendrecv",):
        return rate.bytes_per_second * ports
    if rate.collectives == ("alltoall",):
        return rate.bytes_per_second * local * (size - local) / (size - 1)
    return rate.bytes_per_second


def _fit(runs: Sequence[NcclRun]) -> LinkRate:
    points = [point for run in runs for point in _points(run)]
    large = [point for point, size in points if size >= _LARGE_BYTES]
    used = large if len({sent for sent, _ in large}) > 1 else [point for point, _ in points]
    if len({sent for sent, _ in used}) > 1:
        rate, latency = fit_link(used)
    else:
        rate, latency = used[0][0] / math.exp(sum(math.log(seconds) for _, seconds in used) / len(used)), 0.0
    shortest = min(seconds for _, seconds in used)
    visible = latency > _VISIBLE_SHARE * shortest and runs[0].collective != "alltoall"
    return LinkRate(
        bytes_per_second=rate,
        one_way_seconds=latency if visible else None,
        residual=link_residual(rate, latency, used),
        num_points=len(used),
        collectives=tuple(dict.fromkeys(run.collective for run in runs)),
        runs=tuple(runs),
    )


def _points(run: NcclRun) -> list[tuple[tuple[float, float], int]]:
    """((bytes sent in one pass, seconds of one pass), size) of every point."""
    size = run.num_ranks
    passes = 2 if run.collective == "all_reduce" else 1
    share = 1.0 if run.collective == "sendrecv" else (size - 1) / size
    return [((share * point.size_bytes, point.seconds / passes), point.size_bytes) for point in run.points]

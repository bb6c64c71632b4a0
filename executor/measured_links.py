"""Measured collectives -> links and ports.

A collective of n processes on S bytes takes h hops, each of b bytes, so that every measurement is a point of one line:

    (1)  seconds / h = latency + b / rate         (hardware_profiles.fit, equation (1))
    (2)  ring all-gather, reduce-scatter: h = n - 1, b = S / n;   all-reduce: h = 2 (n - 1), b = S / n;
         point to point: h = 1, b = S;            gloo's reduce-scatter is an all-reduce that keeps one part
    (3)  network of N nodes with L processes: L groups at once share a node's way out, so that
         node rate = L x rate of one group;       ports = L x (seconds alone / seconds together), rounded, 1 to L

NCCL's all-reduce may run in the switch or over a tree, and point to point uses one channel: on CUDA devices (1) is fitted
to the rings alone. gloo's all-gather between two processes takes between one and one and a half times as long, by who is late
(costmodel/collectives.py, equation (7)): on a CPU it is left out. What is not fitted is shown beside the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware_profiles.fit import fit_link, link_residual

Readings = Mapping[str, Sequence[tuple[Sequence[float], float]]]
"""By kind: (sizes, seconds)."""
RINGS = ("all_gather", "reduce_scatter")
GLOO_KINDS = ("all_reduce", "reduce_scatter", "point_to_point")
ALL_KINDS = ("all_reduce", "reduce_scatter", "all_gather", "point_to_point")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLink:
    """Equation (1) of one group of processes."""

    bytes_per_second: float
    latency_seconds: float
    num_points: int
    residual: float
    kinds: tuple[str, ...]

    def seconds(self, num_bytes: float, hops: float) -> float:
        """Seconds of ``hops`` hops of ``num_bytes``."""
        return hops * (self.latency_seconds + num_bytes / self.bytes_per_second)


def fit_group(readings: Readings, name: str, *, cuda: bool) -> FittedLink | None:
    """Equations (1) and (2) for the group ``node`` or ``network``; None where it was not measured."""
    kinds = RINGS if cuda else GLOO_KINDS
    points = [point for kind in kinds for point in hop_points(readings, name, kind, cuda=cuda)]
    if not points:
        return None
    rate, latency = fit_link(points)
    return FittedLink(
        bytes_per_second=rate,
        latency_seconds=latency,
        num_points=len(points),
        residual=link_residual(rate, latency, points),
        kinds=kinds,
    )


def hop_points(readings: Readings, name: str, kind: str, *, cuda: bool) -> list[tuple[float, float]]:
    """(bytes of one hop, seconds of one hop) of one kind of collective."""
    return [
        (hop_bytes(kind, *sizes), seconds / num_hops(kind, sizes[1], cuda=cuda))
        for sizes, seconds in readings.get(f"{name}_{kind}", ())
    ]


def hop_bytes(kind: str, num_bytes: float, size: float) -> float:
    """The bytes b of equation (2)."""
    return num_bytes if kind == "point_to_point" else num_bytes / size


def num_hops(kind: str, size: float, *, cuda: bool) -> float:
    """The hops h of equation (2)."""
    if kind == "point_to_point":
        return 1.0
    twice = kind == "all_reduce" or (kind == "reduce_scatter" and not cuda)
    return (2.0 if twice else 1.0) * (size - 1)


def count_ports(readings: Readings, local_size: int) -> int:
    """Equation (3), by the largest all-gathers."""
    together, alone = readings.get("network_all_gather"), readings.get("alone_all_gather")
    if not together or not alone:
        return 1
    largest = max(range(len(together)), key=lambda index: together[index][0][0])
    ratio = local_size * alone[largest][1] / together[largest][1]
    return max(1, min(local_size, round(ratio)))


def world_prediction(
    node: FittedLink | None, network: FittedLink, *, num_bytes: float, local_size: int, num_nodes: int
) -> float:
    """Seconds of an all-reduce over all processes by the two fitted links, as a ring through all nodes."""
    size = local_size * num_nodes
    rate = local_size * network.bytes_per_second
    latency = (num_nodes - 1) * network.latency_seconds
    if node is not None:
        rate = min(rate, node.bytes_per_second)
        latency += (local_size - 1) * node.latency_seconds
    return 2 * ((size - 1) / size * num_bytes / rate + latency)


def spread(points: Sequence[tuple[float, float]], link: FittedLink) -> float:
    """Geometric mean of measured over fitted seconds: how other collectives compare with the line."""
    logs = [math.log(seconds / link.seconds(num_bytes, 1)) for num_bytes, seconds in points]
    return math.exp(sum(logs) / len(logs))

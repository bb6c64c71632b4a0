"""How far from the memory limit runs are predicted to be: those that ran, and those that ended out of memory.

(1) distance d = predicted bytes on the fullest device / bytes that the device holds; a run is predicted to fit when d <= 1
(2) were predictions exact, every run that ran would lie at d <= 1 and every other one above; what lies on the wrong side
    shows how far a verdict is wrong, and what lies close to 1 how little separates the two kinds
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwright.validation.results import ReplayRow

EDGES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
"""Upper ends of the bins; the last bin has none. Narrow around the limit, which is an end, so no bin holds both verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDistance:
    """One judged run: its dataset, number (1), and whether it ended out of memory."""

    id: str
    dataset: str
    distance: float
    oom: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Runs with ``low`` < distance <= ``high``; the first bin has no lower end (0), the last none above (None)."""

    low: float
    high: float | None
    ran: int
    oom: int


def memory_distances(rows: Iterable[ReplayRow]) -> dict[str, tuple[MemoryDistance, ...]]:
    """The judged runs of every dataset that tells runs out of memory from runs that ran, and has both."""
    found: dict[str, list[MemoryDistance]] = defaultdict(list)
    for row in rows:
        peak, capacity, oom = row.device_peak_bytes, row.device_capacity_bytes, row.measured.oom
        if row.judged and peak is not None and capacity is not None and oom is not None:
            found[row.dataset].append(MemoryDistance(id=row.id, dataset=row.dataset, distance=peak / capacity, oom=oom))
    return {dataset: tuple(runs) for dataset, runs in sorted(found.items()) if len({run.oom for run in runs}) > 1}


def histogram(distances: Iterable[MemoryDistance], edges: Sequence[float] = EDGES) -> tuple[Bin, ...]:
    """Runs of both kinds by distance; ``edges`` are the upper ends of all bins but the last, ascending."""
    counts = {False: [0] * (len(edges) + 1), True: [0] * (len(edges) + 1)}
    for run in distances:
        counts[run.oom][bisect_left(edges, run.distance)] += 1
    ends = [*edges, None]
    return tuple(
        Bin(low=low, high=high, ran=ran, oom=oom)
        for low, high, ran, oom in zip([0.0, *edges], ends, counts[False], counts[True], strict=True)
    )

"""The longest path of many micro-batches from the graph of a few, where a schedule repeats itself.

Between its first and last micro-batches a schedule repeats: every rank does the same operations again after P = 2 r v
positions of its order (r micro-batches a round, v chunks). The longest path is a max-plus linear recursion, so

    (1) if, on all ranks, everything in the L P positions before a cut ends and arrives c later than in the L P positions
        before those, then everything after the cut ends c later for every L rounds that are put in there
    (2) ends(m) = ends(m') + (m - m') / (L r) x c        m' micro-batches of which (1) holds, m - m' a multiple of L r
    (3) gpipe runs m equal jobs through machines in a row (ranks and the lanes between them), forward, then backward. With
        d_j seconds on machine j, free from f_j on, the last job leaves machine k at
            max over j <= k of f_j + sum of d_j .. d_k + (m - 1) max of d_j .. d_k

(1) is exact because a recursion that is shifted stays shifted, and because no operation depends on one that is more than P
positions earlier. It is tested to `TOLERANCE` of the longest end, and a max-plus recursion never enlarges a difference, so (2)
is off by at most that times the rounds of m'. L > 1 where trips through several ranks decide. Where nothing repeats within
two thirds of the micro-batches, the whole graph is walked; that of looped_bfs and of schedules that split the backward always.

    (4) a graph of more than `MOST_NODES` is not: with the largest shift for c, (2) is then an upper bound, since the recursion
        is monotone; L is p, or 1 when interleaved

Source: F. Baccelli, G. Cohen, G. J. Olsder, J.-P. Quadrat, Synchronization and Linearity, 1992, theorem 3.109.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.pipeline import Durations, Topology, build_topology, longest_path, walk
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES
from costmodel.schedules import micro_batches_per_round, num_warmup_forwards
from costmodel.specs import PipelineSchedule

TOLERANCE = 4e-15
MOST_NODES = 1_000_000
FIRST_ROUNDS = 5
"""Rounds of p micro-batches in the smallest graph: two of them fill and empty the pipeline."""


_REPEATING: tuple[PipelineSchedule, ...] = ("none", "naive", "1f1b", "interleaved_1f1b")


class Shape(NamedTuple):
    """Schedule, ranks p, chunks v and micro-batches m of a pipeline."""

    schedule: PipelineSchedule
    ranks: int
    chunks: int
    micro_batches: int

    @property
    def per_round(self) -> int:
        """Micro-batches after which the schedule repeats."""
        if self.schedule != "interleaved_1f1b":
            return 1
        return int(micro_batches_per_round(self.ranks, self.micro_batches))

    @property
    def fewest(self) -> int:
        """Micro-batches of the smallest graph that is tried, with the same remainder in p as all."""
        return FIRST_ROUNDS * self.ranks + self.micro_batches % self.ranks

    @property
    def repeats(self) -> bool:
        """Whether (1) may shorten the walk: rounds of another size than p differ between numbers of micro-batches."""
        even = self.schedule != "interleaved_1f1b" or self.per_round == self.ranks
        return even and self.schedule in _REPEATING and self.walked(self.fewest) < self.micro_batches

    def walked(self, few: int) -> int:
        """Micro-batches of the graph that is walked instead of one of ``few``: all where that saves little."""
        return few if 3 * few <= 2 * self.micro_batches else self.micro_batches

    def nodes(self, micro_batches: int) -> int:
        """Operations of the graph of so many micro-batches."""
        return (3 if self.schedule in SPLIT_BACKWARD_SCHEDULES else 2) * self.ranks * self.chunks * micro_batches

    @property
    def first_nodes(self) -> int:
        """Operations of the graph that is walked first."""
        if self.schedule == "gpipe":
            return 2 * self.ranks
        return self.nodes(self.fewest if self.repeats else self.micro_batches)


def pipeline_ends(
    shape: Shape,
    *,
    forward: Durations,
    backward: Durations,
    transfer: Durations,
    start: Durations,
    weight: Durations | None = None,
) -> Durations:
    """End of the last operation of every rank; arguments and result as `costmodel.pipeline.longest_path`.

    Raises:
        InputError: when the schedule does not allow the number of micro-batches.
    """
    durations = {"forward": forward, "backward": backward, "transfer": transfer, "start": start}
    if shape.schedule in SPLIT_BACKWARD_SCHEDULES:
        assert weight is not None
        return longest_path(build_topology(*shape), **durations, weight=weight)
    if shape.schedule == "gpipe" and shape.chunks == 1:
        return _gpipe_ends(shape.micro_batches, **durations)
    return _ends(shape, shape.fewest if shape.repeats else shape.micro_batches, durations)


def _ends(shape: Shape, few: int, durations: dict[str, Durations]) -> Durations:
    """Equation (2) from ``few`` micro-batches on; every candidate's ``few`` is its own, whoever it is computed with."""
    topology = build_topology(shape.schedule, shape.ranks, shape.chunks, few)
    if few == shape.micro_batches:
        return longest_path(topology, **durations)
    ends, need = _extended(shape, few, topology, durations)
    grown = np.where(need > 0, few + need * shape.per_round, 2 * few - few % shape.ranks)
    for more in np.unique(grown[need != 0]):
        next_few = shape.walked(int(more))
        if shape.nodes(next_few) <= MOST_NODES:
            columns = np.flatnonzero((need != 0) & (grown == more))
            ends[:, columns] = _ends(shape, next_few, {name: each[:, columns] for name, each in durations.items()})
    return ends


def _extended(
    shape: Shape, few: int, topology: Topology, durations: dict[str, Durations]
) -> tuple[Durations, NDArray[np.int64]]:
    """Equation (2), or (4), from the graph of ``few`` micro-batches [p, c], and for every candidate [c] 0 where it is (2), the
    rounds by which ``few`` must grow for it to be, or -1 where nothing repeats yet.
    """
    end, arrival = walk(topology, **durations)
    ends, more = end[topology.last], (shape.micro_batches - few) // shape.per_round
    need, bound = np.full(ends.shape[1], -1, dtype=np.int64), ends.copy()
    trip = 1 if shape.schedule == "interleaved_1f1b" else shape.ranks
    slack = TOLERANCE * ends.max(axis=0)
    for length in range(1, _positions(shape, few) // (4 * shape.per_round * shape.chunks) + 1):
        last = _shifts(shape, few, topology, (end,), length, positions=1)
        columns = np.flatnonzero((need < 0) & ((last[1] - last[0] <= slack) | (length == trip)))
        if not len(columns):
            continue
        least, most = _shifts(shape, few, topology, (end[:, columns], arrival[:, columns]), length)
        same = most - least <= slack[columns]
        need[columns[same]] = more % length
        bound[:, columns[same]] = ends[:, columns[same]] + more / length * 0.5 * (least + most)[same]
        if length == trip:
            bound[:, columns[~same]] = ends[:, columns[~same]] + -(-more // length) * most[~same]
    return bound, need


def _positions(shape: Shape, few: int) -> int:
    """Positions of a rank's order in which all ranks alternate forward and backward."""
    return 2 * (shape.chunks * few - _warmup(shape, few) - 1)


def _warmup(shape: Shape, few: int) -> int:
    """Forwards before rank 0, whose warm-up is the longest, starts to alternate."""
    return num_warmup_forwards(
        shape.schedule, rank=0, num_ranks=shape.ranks, num_chunks=shape.chunks, num_micro_batches=few
    )


def _shifts(
    shape: Shape,
    few: int,
    topology: Topology,
    states: tuple[Durations, ...],
    length: int,
    *,
    positions: int | None = None,
) -> tuple[Durations, Durations]:
    """Least and most seconds between two windows of ``length`` rounds at the end of what repeats, [c] each; of the last
    ``positions`` in them where not all are compared.
    """
    window = 2 * shape.per_round * shape.chunks * length
    stop = 2 * shape.chunks * few - _warmup(shape, few) - 1
    first = stop - (positions or window)
    later, earlier = topology.rows[:, first:stop], topology.rows[:, first - window : stop - window]
    shifts = np.concatenate([(state[later] - state[earlier]).reshape(-1, state.shape[1]) for state in states])
    return shifts.min(axis=0), shifts.max(axis=0)


def _gpipe_ends(
    micro_batches: int, *, forward: Durations, backward: Durations, transfer: Durations, start: Durations
) -> Durations:
    """Equation (3), forward from the first rank, backward from the last."""
    links = transfer[:-1]
    filled = _last_job(micro_batches, forward, links, start)
    return _last_job(micro_batches, backward[::-1], links[::-1], filled[::-1])[::-1]


def _last_job(jobs: int, seconds: Durations, links: Durations, free: Durations) -> Durations:
    """When the last job leaves every rank [p, c]; ``links`` are the lanes between them."""
    machines = np.empty((2 * len(seconds) - 1, seconds.shape[1]))
    machines[::2], machines[1::2] = seconds, links
    leaves = np.full_like(machines, -np.inf)
    for rank, first in enumerate(free):
        row = machines[2 * rank :]
        path = first + np.cumsum(row, axis=0) + (jobs - 1) * np.maximum.accumulate(row, axis=0)
        np.maximum(leaves[2 * rank :], path, out=leaves[2 * rank :])
    return leaves[::2]

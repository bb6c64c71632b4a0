"""A bound on all counts of recomputed layers of one candidate with several chunks a rank: the whole graph as one linear program.

Program (3) of chunk_counts.py has a row for every path that was tried. Its relaxation, n real, has them all at once when every
operation o of the pipeline's graph ends at a variable of its own, equations (1) to (3) of costmodel/pipeline.py as inequalities:

    (1) end(o) >= end(previous of the rank) + d(o), end(o) >= arrival(input of o) + d(o), d = b_k + r_k n_k of a backward of k
    (2) arrival(o) >= end(o) + c, arrival(o) >= arrival(previous message of the lane) + c; where no pass is shorter than a message
        the latter says nothing, and arrival(o) is end(o) + c
    (3) step >= end(last operation of rank s) + what follows on s
    (4) (2) of chunk_counts.py: what every rank is short of; (2) of count_least.py

The least step is the length of the longest path at the best real n, which every whole n reaches or exceeds. Times are counted in
passes, so that no number is far from 1; all are at most the step of counts that are known.

The solver's multipliers y of rows (1) to (3) are a mean of paths, which does not depend on durations: candidates with the same
graph have the same rows with other numbers in them. So what one candidate's program found bounds all others without a program,

    (5) step(n) >= y least + sum over k of (-y matrix)_k n_k + sum over times t of the least that (cost - y matrix)_t t can be

a cut like that of one path (minimise_linear in solver.py tells the source).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import pipeline_shape
from costmodel.pipeline import Topology, build_topology
from costmodel.steady_state import Shape
from planner.chunk_counts import SLACK, CountProblem, Cut, Durations
from planner.count_program import Rows

if TYPE_CHECKING:
    from planner.solver import LinearProgram

MOST_OPERATIONS = 6_000
"""Larger graphs take too long: about a second for 10,000 operations."""
IntArray = NDArray[np.int64]
Vector = NDArray[np.float64]


_MOST_MEANS = 6


class Relaxed(NamedTuple):
    """``lower``: seconds that no counts beat; ``counts`` [V]: the real ones that reach them; ``mean``: y of equation (5)."""

    lower: float
    counts: Vector
    mean: Vector


@dataclass(slots=True, eq=False)
class Means:
    """Means of paths that programs found, the last few of every graph."""

    found: dict[tuple[Shape, bool], list[Vector]] = field(default_factory=dict)

    def add(self, counts: CountProblem, durations: Durations, relaxed: Relaxed) -> None:
        """Keep what the program of a candidate found."""
        known = self.found.setdefault((pipeline_shape(counts.one, 0), _lanes_matter(durations)), [])
        known.append(relaxed.mean)
        del known[:-_MOST_MEANS]

    def cuts(self, counts: CountProblem, durations: Durations, *, known: float) -> list[Cut]:
        """Equation (5) for a candidate; counts that are slower than ``known`` seconds may break it."""
        means = self.found.get((pipeline_shape(counts.one, 0), _lanes_matter(durations)), [])
        if not means:
            return []
        unit, cuts, stages = float(durations.plain.mean()), [], len(counts.layers)
        program, _ = _program(counts, durations, known=known, unit=unit, memory=False)
        for mean in means:
            constant, left, least = program.proven(mean)
            cuts.append(Cut((constant + float(least[stages:].sum())) * unit, left[:stages] * unit))
        return cuts


def relaxed_counts(counts: CountProblem, durations: Durations, *, known: float) -> Relaxed | None:
    """What the whole graph says of a candidate.

    Args:
        counts: the candidate.
        durations: of its operations.
        known: step time of counts that fit.

    Returns:
        None for graphs of more than `MOST_OPERATIONS`, and where HiGHS is not installed.
    """
    from planner.solver import minimise_linear

    if not is_solved_whole(counts):
        return None
    unit = float(durations.plain.mean())
    program, graph = _program(counts, durations, known=known, unit=unit)
    answer = minimise_linear(program)
    if answer is None:
        return None
    return Relaxed(answer.bound * unit, answer.at[: len(counts.layers)], answer.weight[:graph])


def whole_counts(
    counts: CountProblem, durations: Durations, *, known: float, seconds: float, nodes: int
) -> tuple[float, IntArray | None]:
    """Seconds that no counts beat, at most ``known``, and faster counts [V] if there are any; what fits is known by (4) alone.

    Unlike that of `relaxed_counts`, the bound rests on the solver's tolerances, less `SLACK`.

    Args:
        counts: a candidate for which `relaxed_counts` has an answer.
        durations: of its operations.
        known: step time to beat.
        seconds: time limit.
        nodes: of branch and bound, at most.
    """
    from planner.solver import minimise_whole

    unit, stages = float(durations.plain.mean()), len(counts.layers)
    program, _ = _program(counts, durations, known=known, unit=unit)
    bound, found = minimise_whole(program, whole=stages, seconds=seconds, nodes=nodes)
    lower = min(known, bound * unit * (1.0 - SLACK))
    return lower, None if found is None else np.rint(found[:stages]).astype(np.int64)


def is_solved_whole(counts: CountProblem) -> bool:
    """Whether the whole graph is solved as a program: it is small enough, and HiGHS is there."""
    from planner.solver import has_highs

    shape = pipeline_shape(counts.one, 0)
    return shape.nodes(shape.micro_batches) <= MOST_OPERATIONS and has_highs()


def _program(
    counts: CountProblem, durations: Durations, *, known: float, unit: float, memory: bool = True
) -> tuple[LinearProgram, int]:
    """Equations (1) to (4), or (3), in units of ``unit`` seconds: the counts first, the step last; and how many rows (1) to (3)
    are, which come first.
    """
    shape, stages = pipeline_shape(counts.one, 0), len(counts.layers)
    topology = build_topology(*shape)
    lanes = _lanes_matter(durations)
    rows = _graph_rows(topology, _nodes(shape), durations, stages, unit, lanes=lanes)
    graph = rows.count
    if memory:
        rows.add_memory(counts)
    size = stages + (1 + lanes) * topology.num_rows + 1
    low, high = np.zeros(size), np.full(size, known / unit)
    high[:stages] = counts.most
    # The ranks' starts are given; their arrivals, and "at once", are 0.
    first = stages + topology.num_ranks
    low[stages:first] = high[stages:first] = durations.times.start[0] / unit
    high[first] = 0.0
    if lanes:
        high[stages + topology.num_rows : first + topology.num_rows + 1] = 0.0
    cost = np.zeros(size)
    cost[-1] = 1.0
    return rows.minimised(cost=cost, low=low, high=high), graph


class _Nodes(NamedTuple):
    """`costmodel.pipeline.Level` of all nodes at once, and their state rows."""

    node: IntArray
    lane: IntArray
    data: IntArray
    message: IntArray
    kind: IntArray
    boundary: IntArray


@lru_cache(maxsize=32)
def _nodes(shape: Shape) -> _Nodes:
    levels = build_topology(*shape).levels
    columns = ((np.arange(at.first, at.stop), at.lane, at.data, at.message, at.duration, at.transfer) for at in levels)
    return _Nodes(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


def _lanes_matter(durations: Durations) -> bool:
    """Whether a message may wait for the one before it: never where every pass takes as long as any message, because the rank
    that sends both runs a pass between them.
    """
    times = durations.times
    return bool(min(times.forward.sum(axis=2).min(), durations.plain.min()) < times.transfer.max())


def _graph_rows(
    topology: Topology, nodes: _Nodes, durations: Durations, stages: int, unit: float, *, lanes: bool
) -> Rows:
    """Equations (1) to (3); columns: counts, ends, arrivals where there are ``lanes`` (else they are ends + c), the step."""
    rows, times, ranks = Rows(), durations.times, topology.num_ranks
    fixed = np.concatenate([times.forward.sum(axis=2)[0], durations.plain]) / unit
    grows = np.concatenate([np.zeros(stages), durations.per_layer]) / unit
    transfer = times.transfer[0] / unit
    node, lane, data, message, kind, boundary = nodes
    end, arrival = stages, stages + lanes * topology.num_rows
    later = np.zeros(topology.num_rows)
    if not lanes:
        later[node] = transfer[boundary]

    def after(before: IntArray, rest: NDArray[np.bool_], wait: Vector) -> None:
        columns = np.stack([end + node[rest], before[rest], kind[rest] % stages], axis=1)
        values = np.stack([np.ones(len(columns)), -np.ones(len(columns)), -grows[kind[rest]]], axis=1)
        rows.add(columns, values, fixed[kind[rest]] + wait[rest])

    after(end + lane, np.ones(len(node), dtype=bool), np.zeros(len(node)))
    after(arrival + data, data != ranks, later[data])
    difference = np.array([1.0, -1.0])
    if lanes:
        both = message != ranks
        rows.add(np.stack([arrival + node, end + node], axis=1), difference, transfer[boundary])
        rows.add(np.stack([arrival + node, arrival + message], axis=1)[both], difference, transfer[boundary[both]])
    follows = times.reduction[0] + (times.optimizer[0].max() if times.clips else times.optimizer[0])
    step = np.full(ranks, stages + (1 + lanes) * topology.num_rows)
    rows.add(np.stack([step, end + topology.last], axis=1), difference, follows / unit)
    return rows

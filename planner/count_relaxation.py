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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import pipeline_shape
from costmodel.pipeline import Topology, build_topology
from planner.chunk_counts import SLACK, CountProblem, Durations

if TYPE_CHECKING:
    from planner.solver import LinearProgram

MOST_OPERATIONS = 6_000
"""Larger graphs take too long: about a second for 10,000 operations."""
IntArray = NDArray[np.int64]
Vector = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class _Rows:
    """Rows sum of value x column >= least, gathered in blocks: ``columns`` and ``values`` [rows, terms]."""

    row: list[IntArray]
    column: list[IntArray]
    value: list[Vector]
    least: list[Vector]
    count: int = 0

    def add(self, columns: IntArray, values: Vector, least: Vector) -> None:
        number, terms = columns.shape
        self.row.append(np.repeat(np.arange(self.count, self.count + number), terms))
        self.column.append(columns.ravel())
        self.value.append(np.broadcast_to(values, columns.shape).ravel())
        self.least.append(np.broadcast_to(least, number))
        self.count += number


def relaxed_counts(counts: CountProblem, durations: Durations, *, known: float) -> tuple[float, Vector] | None:
    """Seconds that no counts beat, and the real counts [V] that reach them.

    Args:
        counts: the candidate.
        durations: of its operations.
        known: step time of counts that fit.

    Returns:
        None for graphs of more than `MOST_OPERATIONS`, and where HiGHS is not installed.
    """
    from planner.solver import minimise_linear

    if not _is_small(counts):
        return None
    unit = float(durations.plain.mean())
    answer = minimise_linear(_program(counts, durations, known=known, unit=unit))
    return None if answer is None else (answer[0] * unit, answer[1][: len(counts.layers)])


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
    program = _program(counts, durations, known=known, unit=unit)
    bound, found = minimise_whole(program, whole=stages, seconds=seconds, nodes=nodes)
    lower = min(known, bound * unit * (1.0 - SLACK))
    return lower, None if found is None else np.rint(found[:stages]).astype(np.int64)


def _is_small(counts: CountProblem) -> bool:
    shape = pipeline_shape(counts.one, 0)
    return shape.nodes(shape.micro_batches) <= MOST_OPERATIONS


def _program(counts: CountProblem, durations: Durations, *, known: float, unit: float) -> LinearProgram:
    """Equations (1) to (4) in units of ``unit`` seconds: the counts first, the step last."""
    from planner.solver import LinearProgram

    topology, stages = build_topology(*pipeline_shape(counts.one, 0)), len(counts.layers)
    lanes = _lanes_matter(durations)
    rows = _graph_rows(topology, durations, stages, unit, lanes=lanes)
    _memory_rows(rows, counts)
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
    row, column, value = np.concatenate(rows.row), np.concatenate(rows.column), np.concatenate(rows.value)
    used, least = value != 0.0, np.concatenate(rows.least)
    return LinearProgram(
        cost=cost, low=low, high=high, row=row[used], column=column[used], value=value[used], least=least
    )


def _lanes_matter(durations: Durations) -> bool:
    """Whether a message may wait for the one before it: never where every pass takes as long as any message, because the rank
    that sends both runs a pass between them.
    """
    times = durations.times
    return bool(min(times.forward.sum(axis=2).min(), durations.plain.min()) < times.transfer.max())


def _graph_rows(topology: Topology, durations: Durations, stages: int, unit: float, *, lanes: bool) -> _Rows:
    """Equations (1) to (3); columns: counts, ends, arrivals where there are ``lanes`` (else they are ends + c), the step."""
    rows = _Rows([], [], [], [])
    times, ranks = durations.times, topology.num_ranks
    fixed = np.concatenate([times.forward.sum(axis=2)[0], durations.plain]) / unit
    grows = np.concatenate([np.zeros(stages), durations.per_layer]) / unit
    transfer = times.transfer[0] / unit
    levels = topology.levels
    node, lane, data, message, kind, boundary = (
        np.concatenate(parts)
        for parts in zip(
            *((np.arange(at.first, at.stop), at.lane, at.data, at.message, at.duration, at.transfer) for at in levels),
            strict=True,
        )
    )
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


def _memory_rows(rows: _Rows, counts: CountProblem) -> None:
    """Equation (4)."""
    scale = max(1.0, float(counts.saved.max()))
    for rank, held in enumerate(counts.held):
        if counts.short[rank] > 0:
            rows.add(held[None], counts.saved[held][None] / scale, counts.short[rank : rank + 1] / scale)
            rows.add(held[None], np.ones((1, len(held))), counts.least[rank : rank + 1].astype(np.float64))
    for stages, factors, least in counts.placed():
        rows.add(stages[None], factors[None], np.array([least]))

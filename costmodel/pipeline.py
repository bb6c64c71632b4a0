"""Longest path of a pipeline step with fixed durations, for many candidates of one topology at once.

Nodes are the operations of `costmodel.schedules`. An operation starts when its rank's compute lane is free and its input
has arrived; its output then crosses the transfer lane to the next (backward: previous) rank, which carries one message at
a time:

    (1) start(o)   = max(end(previous operation of the rank), arrival(producer of o's input))
    (2) end(o)     = start(o) + duration(virtual stage of o, direction of o)
    (3) arrival(o) = max(end(o), arrival(previous message on the lane)) + transfer(lane)

A lane runs per pair of ranks and direction; forward and backward messages between two ranks do not share one. Where the
backward is split, its message leaves after the gradients of the inputs. Neighbouring stages of one rank send nothing. Sizes are
p ranks, v chunks per rank, V = p v virtual stages, m micro-batches, c candidates. The path is monotone in every duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodel.runtimes.placement import V_SCHEDULES, stages_of_ranks
from costmodel.schedules import Kind, OperationTable, operation_table
from costmodel.specs import PipelineSchedule

Index = NDArray[np.intp]
Durations = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes that depend only on earlier levels: rows ``first`` to ``stop`` of the state, and indices into it."""

    first: int
    stop: int
    lane: Index  # previous operation of the rank
    data: Index  # producer of the input
    message: Index  # previous message on the output's lane
    duration: Index  # kind x V + virtual stage
    transfer: Index  # transfer lane's rank boundary


@dataclass(frozen=True, slots=True)
class Topology:
    """The graph of one schedule: state rows 0 .. p - 1 are the ranks' starts, row p is "at once", then the nodes."""

    num_ranks: int
    num_rows: int
    levels: tuple[Level, ...]
    rows: Index  # [p, length] state row of every rank's operations, in their order

    @property
    def last(self) -> Index:
        """The last operation of every rank."""
        return self.rows[:, -1]


def longest_path(
    topology: Topology,
    *,
    forward: Durations,
    backward: Durations,
    transfer: Durations,
    start: Durations,
    weight: Durations | None = None,
) -> Durations:
    """End of the last operation of every rank, equations (1) to (3).

    Args:
        topology: the graph.
        forward: seconds of one forward of every virtual stage [V, c].
        backward: seconds of one backward of every virtual stage [V, c].
        transfer: seconds of a message between rank r and r + 1 mod p [p, c].
        start: when every rank may start [p, c].
        weight: seconds of ``backward`` that a split backward leaves to an operation of its own [V, c]; schedules that split
            need it.

    Returns:
        Seconds [p, c].
    """
    end, _ = walk(topology, forward=forward, backward=backward, transfer=transfer, start=start, weight=weight)
    return end[topology.last]


def walk(
    topology: Topology,
    *,
    forward: Durations,
    backward: Durations,
    transfer: Durations,
    start: Durations,
    weight: Durations | None = None,
) -> tuple[Durations, Durations]:
    """Ends and arrivals of all operations by state row; arguments as `longest_path`."""
    split = [] if weight is None else [backward - weight, weight, np.zeros_like(forward[:1])]
    durations = np.concatenate([forward, backward, *split])
    end = np.zeros((topology.num_rows, durations.shape[1]))
    arrival = np.zeros_like(end)
    end[: topology.num_ranks] = start
    for level in topology.levels:
        nodes = slice(level.first, level.stop)
        begin = np.maximum(end[level.lane], arrival[level.data])
        begin += durations[level.duration]
        end[nodes] = begin
        np.maximum(begin, arrival[level.message], out=begin)
        begin += transfer[level.transfer]
        arrival[nodes] = begin
    return end, arrival


@lru_cache(maxsize=128)
def build_topology(schedule: PipelineSchedule, num_ranks: int, num_chunks: int, num_micro_batches: int) -> Topology:
    """The graph of a schedule, levelled: every node sits one level after the later of its two predecessors.

    Raises:
        InputError: when the schedule does not allow the number of micro-batches.
    """
    table = operation_table(schedule, num_ranks=num_ranks, num_chunks=num_chunks, num_micro_batches=num_micro_batches)
    held = stages_of_ranks(schedule, num_ranks, num_chunks)
    rank, last = np.arange(num_ranks)[:, None], num_ranks * num_chunks - 1
    virtual, rank_of = held[rank, table.chunk], np.empty(last + 1, dtype=np.int64)
    rank_of[held] = rank
    down = table.kind == Kind.FORWARD
    back = (table.kind == Kind.BACKWARD) | (table.kind == Kind.BACKWARD_INPUT)
    moves = down | back
    upstream = np.clip(np.where(down, virtual - 1, virtual + 1), 0, last)  # the stage whose output this operation needs
    has_input = moves & (upstream != virtual) & (rank_of[upstream] != rank)
    downstream = np.clip(np.where(back, virtual - 1, virtual + 1), 0, last)
    late = _sent_later(table, virtual, last + 1)
    sends = (table.kind == Kind.SEND) | (moves & (downstream != virtual) & (rank_of[downstream] != rank))
    sends &= ~(down & late[virtual, table.micro_batch])
    code = _codes(table, virtual, last + 1, num_micro_batches)
    block = np.where(down, np.where(late[upstream, table.micro_batch], _SEND_BLOCK, 0), 1)
    producer = np.where(has_input, (block * (last + 1) + upstream) * num_micro_batches + table.micro_batch, -1)
    duration = np.where(table.kind < Kind.SEND, table.kind * (last + 1) + virtual, Kind.SEND * (last + 1))
    to_next = back == ((table.chunk % 2 == 1) & (schedule in V_SCHEDULES))
    boundary = np.where(to_next, rank, (rank - 1) % num_ranks)
    level = _unit_levels(code.tolist(), producer.tolist(), int(code.max()) + 1)
    lane = 2 * back + to_next
    return _number_rows(level, code, producer, _previous_message(code, sends, lane), duration, boundary)


_SEND_BLOCK, _IDLE_BLOCK = 3, 4


def _codes(table: OperationTable, virtual: Index, num_virtual: int, num_micro_batches: int) -> Index:
    """A number for every node: one block for forwards, backwards (whole or of inputs), those of weights, and late messages."""
    block = np.array([0, 1, 1, 2, _SEND_BLOCK, _IDLE_BLOCK])[table.kind]
    code = (block * num_virtual + virtual) * num_micro_batches + table.micro_batch
    positions = np.arange(code.size).reshape(code.shape)
    return np.where(block == _IDLE_BLOCK, _IDLE_BLOCK * num_virtual * num_micro_batches + positions, code)


def _sent_later(table: OperationTable, virtual: Index, num_virtual: int) -> NDArray[np.bool_]:
    """Where a forward's output is sent by an operation of its own [V, m]."""
    late = np.zeros((num_virtual, int(table.micro_batch.max()) + 1), dtype=bool)
    sent = table.kind == Kind.SEND
    late[virtual[sent], table.micro_batch[sent]] = True
    return late


def _unit_levels(code: list[list[int]], producer: list[list[int]], size: int) -> NDArray[np.int64]:
    """Level of every node by code: the longest path with unit durations, running every rank as far as its inputs allow.

    Codes that no node has keep level -1.
    """
    level = [-1] * size
    position, previous = [0] * len(code), [-1] * len(code)
    length = len(code[0])
    remaining = len(code) * length
    while remaining:
        for rank, (codes, inputs) in enumerate(zip(code, producer, strict=True)):
            at, last = position[rank], previous[rank]
            while at < length:
                source = inputs[at]
                ready = level[source] if source >= 0 else -1
                if source >= 0 and ready < 0:
                    break
                last = level[codes[at]] = (ready if ready > last else last) + 1
                at += 1
            remaining -= at - position[rank]
            position[rank], previous[rank] = at, last
    return np.array(level)


def _previous_message(code: Index, sends: NDArray[np.bool_], lanes: NDArray[np.int64]) -> Index:
    """Code of the previous operation that sends on the same of a rank's four lanes; -1 for the first."""
    previous = np.full(code.shape, -1)
    for rank, own in enumerate(lanes):
        for lane in (np.flatnonzero(own == number) for number in np.unique(own)):
            sent = np.where(sends[rank, lane], np.arange(len(lane)), -1)
            before = np.concatenate([[-1], np.maximum.accumulate(sent)[:-1]])
            previous[rank, lane] = np.where(before >= 0, code[rank, lane[before]], -1)
    return previous


def _number_rows(
    level: NDArray[np.int64], code: Index, producer: Index, message: Index, duration: Index, boundary: Index
) -> Topology:
    """Sort the nodes by level and turn codes into state rows."""
    num_ranks, length = code.shape
    flat = code.ravel()
    order = np.argsort(level[flat], kind="stable")
    row_of = np.full(level.size + 1, num_ranks)  # index -1: no such operation -> the row "at once"
    row_of[flat[order]] = np.arange(flat.size) + num_ranks + 1
    lane = np.concatenate([np.arange(num_ranks)[:, None], row_of[code[:, : length - 1]]], axis=1)
    columns = [
        column.ravel()[order].astype(np.intp)
        for column in (lane, row_of[producer], row_of[message], duration, boundary)
    ]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(level[flat]))])
    levels = tuple(
        Level(first + num_ranks + 1, stop + num_ranks + 1, *(column[first:stop] for column in columns))
        for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    )
    return Topology(num_ranks, flat.size + num_ranks + 1, levels, row_of[code])

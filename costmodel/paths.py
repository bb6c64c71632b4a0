"""Explicit paths through the pipeline's graph: lower bounds on the end of every rank's last backward.

The step time is the longest path of a graph (pipeline.py), so the length of any path is a lower bound; each bound below *is*
a path, and its proof is the list of its nodes. Notation, per rank r of p: f, b forward and backward, t = f + b, c_r the
message between r and r + 1, m micro-batches, P_s and D_s the sums of t and of both directions' messages before and after
rank s, k = p - 1 - s.

    (1) none, naive: F_i down all ranks, B_i up all ranks, then F_(i+1): m (sum of t + 2 sum of c); this is the whole
        graph.
    (2) gpipe: F_0 down to s, F_0 .. F_(m-1) on s, F_(m-1) down to the last rank, B_0 up to u, B_0 .. B_(m-1) on u,
        B_(m-1) up to 0: sum of t + 2 sum of c + (m - 1)(f_s + b_u).
    (3) 1f1b, lane of s: F_0 down to s, all 2m operations of s in their order, B_(m-1) up to 0: P_s + m t_s.
        A *trip* leaves the lane after F_j(s), follows F_j down to the last rank and B_j back up, and rejoins the lane at
        B_j(s). It adds D_s and skips what the lane does between F_j and B_j: the forwards j + 1 .. j + min(k, m - 1 - j)
        and the backwards j - min(k, j) .. j - 1. After B_j the lane continues with F_(j+k+1), so trips at
        j = 0, k + 1, 2 (k + 1), ... and a last one at m - 1 are disjoint when each is at least k + 1 after the one before:
        T >= P_s + m t_s + max(0, D_s - k f_s) + max(0, D_s - k b_s) + w max(0, D_s - k t_s),
        w = max(0, (m - 1) // (k + 1) - 1), for m >= k + 2.
        For m <= k + 1 there is one trip, and it skips k' = min(k, m - 1) forwards (j = 0) or backwards (j = m - 1):
        T >= P_s + m t_s + max(0, D_s - k' f_s, D_s - k' b_s).
    (4) interleaved_1f1b, lane of s: F_0 of chunk 0 down to s, all operations of s, B_(m-1) of chunk 0 up to 0:
        P_s of chunk 0 + m x sum over chunks of t_s. First trip: from F_0 of chunk 0 through all later virtual stages to the
        end and B_0 back up to the last chunk of s, which is the lane's first backward; it skips the warm-up forwards
        1 .. w_s. Last trip: from the lane's last forward to the end and all the way back to chunk 0 of s, which is the
        lane's last backward; it skips the w_s backwards in between. Both together when m v >= w_s + 2.

    (5) every schedule, lane of s: F_0 of chunk 0 down to s, which is the first operation of s in all of them, then all
        operations of s: P_s of chunk 0 + m x sum over chunks of t_s. A split backward (weight gradients w of b, i = b - w for
        the inputs) changes nothing here: both parts are on the lane.
    (6) looped_bfs: (5), and after it B_0 of chunk 0, the last operation of s, up to 0.
    (7) split backward: F_0 through all virtual stages and the gradients of its inputs (or whole backwards, which are longer) back
        to chunk 0 of s, whose weight gradients follow: sum of f + the i of all later stages + b_s + their messages.
    (8) every schedule, messages from rank s to s + 1: F_0 of chunk 0 down to s, all m x v forward messages of that lane (m in a
        V), and for rank 0 the gradients of inputs of the last one's micro-batch on all virtual stages. All ranks run a backward
        of that micro-batch after its last forward message, so their ends are not before it.

Messages count on every hop between ranks. All rows of a batch share schedule, p and v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.schedules import micro_batches_per_round

Matrix = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Durations of n candidates; every method returns bounds on the ranks' ends [n, p], counted from rank 0's start."""

    forward: Matrix  # [n, V]
    backward: Matrix  # [n, V]
    transfer: Matrix  # [n, p]
    micro_batches: Matrix  # [n, 1]
    held: Index  # [p, v] virtual stages of every rank
    weight: Matrix | None = None  # [n, V], the part of backward that a split backward puts off

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks p."""
        return int(self.transfer.shape[1])

    def naive(self) -> Matrix:
        """Equation (1)."""
        once = self.forward + self.backward + 2.0 * self._messages()
        return np.asarray(self.micro_batches * once.sum(axis=1, keepdims=True) - self._up())

    def gpipe(self) -> Matrix:
        """Equation (2)."""
        more = self.micro_batches - 1.0
        message = self._messages()
        filled = (self.forward + message).sum(axis=1) + (more * self.forward).max(axis=1)
        below = _after(self.backward) + _from(message)
        lane = filled[:, None] + below + self.micro_batches * self.backward
        return self.ends(lane)

    def one_forward_one_backward(self) -> Matrix:
        """Equation (3)."""
        m, total = self.micro_batches, self.forward + self.backward
        behind = _after(total) + 2.0 * _from(self._messages())
        hops = np.arange(self.num_ranks - 1, -1, -1.0)[None, :]
        skipped = np.minimum(hops, m - 1.0)
        first = np.maximum(0.0, behind - skipped * self.forward)
        last = np.maximum(0.0, behind - skipped * self.backward)
        between = np.maximum(0.0, (m - 1.0) // (hops + 1.0) - 1.0) * np.maximum(0.0, behind - hops * total)
        gain = np.where(m >= hops + 2.0, first + last + between, np.maximum(first, last))
        return self.ends(self._down() + m * total + gain)

    def interleaved(self) -> Matrix:
        """Equation (4)."""
        p, m = self.num_ranks, self.micro_batches
        chunks = self.forward.shape[1] // p
        total = self._of_ranks(self.forward + self.backward)
        message = self._messages()
        forward_behind = _after(self.forward) + _from(message)
        backward_behind = _after(self.backward) + _from(message)
        first = forward_behind[:, :p] + backward_behind[:, -p:]
        last = forward_behind[:, -p:] + backward_behind[:, :p]
        forwards, backwards, warmup = self._skipped(chunks)
        first, last = np.maximum(0.0, first - forwards), np.maximum(0.0, last - backwards)
        both = m * chunks >= warmup + 2.0
        return self.ends(self._down() + m * total + np.where(both, first + last, np.maximum(first, last)))

    def looped_bfs(self) -> Matrix:
        """Equation (6)."""
        return self.ends(self.lanes())

    def split(self) -> Matrix:
        """Equations (5) and (7)."""
        assert self.weight is not None
        message, inputs = self._messages(), self.backward - self.weight
        back = _after(inputs) + self.backward + _from(message)
        trip = (self.forward + message).sum(axis=1, keepdims=True) + back[:, self.held[:, 0]]
        return np.asarray(np.maximum(self.lanes(), trip))

    def lanes(self) -> Matrix:
        """Equation (5)."""
        return self._down() + self.micro_batches * self._of_ranks(self.forward + self.backward)

    def messages(self) -> Matrix:
        """Equation (8)."""
        crossings = 1 if self.held[0, -1] == self.held.size - 1 else self.held.shape[1]
        filled = self._down() + self.forward[:, : self.num_ranks] + self.micro_batches * crossings * self.transfer
        arrival = filled[:, : self.num_ranks - 1].max(axis=1, initial=0.0)
        inputs = self.backward if self.weight is None else self.backward - self.weight
        ends = np.repeat(arrival[:, None], self.num_ranks, axis=1)
        ends[:, 0] += inputs.sum(axis=1)
        return ends

    def _of_ranks(self, virtual: Matrix) -> Matrix:
        """Sum over the chunks of every rank [n, p]."""
        return np.asarray(virtual[:, self.held].sum(axis=2))

    def _skipped(self, chunks: int) -> tuple[Matrix, Matrix, Matrix]:
        """Seconds of the w_s forwards after the first and of the w_s backwards before the last, and w_s, all [n, p]."""
        p, m = self.num_ranks, self.micro_batches
        per_round = micro_batches_per_round(np.array([[p]]), m.astype(np.int64)).astype(np.float64)
        hops = np.arange(p - 1, -1, -1.0)[None, :]
        warmup = np.minimum(m * chunks - 1.0, (chunks - 1) * per_round + 2.0 * hops)
        forwards, backwards = np.zeros_like(warmup), np.zeros_like(warmup)
        for chunk in range(chunks):
            count = _forwards_of_chunk(warmup + 1.0, chunk, chunks, per_round) - (chunk == 0)
            columns = slice(chunk * p, (chunk + 1) * p)
            forwards += count * self.forward[:, columns]
            backwards += count * self.backward[:, columns]
        return forwards, backwards, warmup

    def _messages(self) -> Matrix:
        """Message after every virtual stage [n, V]; none after the last, nor between stages of one rank."""
        return boundary_messages(self.transfer, self.held)

    def _down(self) -> Matrix:
        """From the start to rank s's first forward [n, p]."""
        return _before((self.forward + self._messages())[:, : self.num_ranks])

    def _up(self) -> Matrix:
        """From the end of rank s's last backward to the end of rank 0's [n, p]."""
        return _before((self.backward + self._messages())[:, : self.num_ranks])

    def ends(self, lane: Matrix) -> Matrix:
        """A lane that ends on rank s continues up to every rank r < s."""
        up = self._up()
        best = np.maximum.accumulate((lane + up)[:, ::-1], axis=1)[:, ::-1]
        return best - up


def boundary_messages(transfer: Matrix, held: Index) -> Matrix:
    """Message from every virtual stage to the next [n, V]; 0 after the last and between stages of one rank.

    Args:
        transfer: message between rank r and r + 1 mod p [n, p].
        held: virtual stages of every rank [p, v].
    """
    rank_of = np.empty(held.size, dtype=np.int64)
    rank_of[held] = np.arange(len(held))[:, None]
    here, there = rank_of[:-1], rank_of[1:]
    # A V goes up again between the same neighbours; in a loop the last rank sends to the first.
    v_shaped = held[0, -1] == held.size - 1
    boundary = np.minimum(here, there) if v_shaped else here
    message = np.zeros((len(transfer), held.size))
    message[:, :-1] = transfer[:, boundary] * (here != there)
    return message


def _forwards_of_chunk(steps: Matrix, chunk: int, chunks: int, per_round: Matrix) -> Matrix:
    """How many of a rank's first ``steps`` forwards belong to ``chunk``."""
    cycle = chunks * per_round
    rounds = np.floor(steps / cycle)
    return rounds * per_round + np.clip(steps - rounds * cycle - chunk * per_round, 0.0, per_round)


def _before(values: Matrix) -> Matrix:
    return np.cumsum(values, axis=1) - values


def _from(values: Matrix) -> Matrix:
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]


def _after(values: Matrix) -> Matrix:
    return _from(values) - values

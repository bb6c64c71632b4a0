"""How many layers every chunk of a pipeline with several chunks a rank recomputes: an integer program with lazy cuts.

For one candidate with layers l_k of its virtual stages, whole numbers n_k of them recomputed and backwards of b_k + r_k n_k
seconds,

    (1) step(n) >= length of any path of the graph = constant + sum over k of g_k (b_k + r_k n_k), with g_k backwards of k on it
    (2) what fits has, for every rank s, sum over its stages of save_k n_k >= bytes that it is short of, and sum of n_k >= least,
        equations (1) and (2) of given_stages.py
    (3) the program (count_program.py): minimise z, n whole, 0 <= n_k <= l_k, (2), and z >= (1) for a few paths, or for means of
        paths (count_relaxation.py). Its minimum is a lower bound on all counts that fit. The longest path at its solution is
        another cut; if z is as long, no counts are faster
    (4) g by differences: durations are moved apart a little, so that one path is the longest, and each is made longer by less
        than that; the step grows g_k times as much, and g_k is a whole number

A backward that recomputes hides more of the reductions, which only (1)'s constant knows: it has the shortest. Solutions of (3)
are evaluated like all completions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.bounds import exact_ends
from costmodel.completions import StageColumns, completion_times
from costmodel.runtimes.grid import Grid
from costmodel.setting import Problem
from costmodel.step import StepTimes

IntArray = NDArray[np.int64]
Vector = NDArray[np.float64]
_APART, _STEP, _WHOLE = 1e-4, 1e-7, 0.05
SLACK = 1e-9
"""What rounding and a solver's tolerance may take: of a row that whole numbers reach just so, of a bound relative to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A path, equation (1), or a mean of paths: ``constant`` seconds without recomputation and ``slope`` [V] for every layer that
    is recomputed.
    """

    constant: float
    slope: Vector


@dataclass(frozen=True, slots=True, eq=False)
class CountProblem:
    """One candidate: layers and most recomputed ones [V], stages of every rank [p, v], bytes that a recomputed layer of each
    stage saves at most [V], bytes that every rank is short of and the least layers that this takes [p] (given_stages.py).
    ``fewest``, ``largest`` [V]: layers of a stage in those ways to recompute the least that fit (count_least.py).
    """

    problem: Problem
    one: Grid
    layers: IntArray
    most: IntArray
    held: IntArray
    saved: Vector
    short: Vector
    least: IntArray
    fewest: IntArray
    largest: IntArray

    def placed(self) -> Iterator[tuple[IntArray, Vector, float]]:
        """Rows (2) of count_least.py: sums of factors x layers of some stages that are at least as much as told."""
        for stages, least in zip(self.held, self.least.tolist(), strict=True):
            for place, stage in enumerate(stages.tolist() if least > 0 else ()):
                factors, fewest, more = np.ones(len(stages)), self.fewest[stage], self.most[stage] - self.largest[stage]
                if fewest > 0:
                    factors[place] = 1.0 + 1.0 / fewest
                    yield stages, factors.copy(), least + 1.0 - SLACK
                if more > 0:
                    factors[place] = 1.0 - 1.0 / more
                    yield stages, factors, least - self.largest[stage] / more - SLACK


class Durations:
    """Backwards b + r n of all virtual stages, at most the real ones, and everything else of the step at its shortest."""

    def __init__(self, counts: CountProblem) -> None:
        number = int(counts.most.max()) + 1
        steps = np.minimum(counts.most[None, :], np.arange(number)[:, None])
        layers = np.broadcast_to(counts.layers, steps.shape)
        rows = counts.one.take(np.zeros(number, dtype=np.int64))
        times = completion_times(counts.problem, rows, StageColumns.contiguous(layers, steps))
        backward = times.backward.sum(axis=2)
        grown = np.where(np.diff(steps, axis=0) > 0, np.diff(backward, axis=0), np.inf)
        self.per_layer: Vector = np.where(counts.most > 0, grown.min(axis=0, initial=np.inf), 0.0)
        self.plain: Vector = backward[0]
        self.one = counts.one
        self.times = replace(times.take(np.array([0])), reduction=times.reduction.min(axis=0, keepdims=True))

    def of(self, counts: IntArray | Vector) -> Vector:
        """Backwards [V] with some recomputed layers."""
        return np.asarray(self.plain + self.per_layer * counts)

    def seconds(self, backward: Vector) -> Vector:
        """Step times [c] of backwards [c, V]."""
        times, columns = self.times, len(backward)
        wide = StepTimes(
            forward=np.broadcast_to(times.forward, (columns, *times.forward.shape[1:])),
            backward=backward[:, :, None],
            weight=np.zeros_like(backward),
            **{
                name: np.broadcast_to(getattr(times, name), (columns, getattr(times, name).shape[1]))
                for name in _PER_RANK
            },
            clips=times.clips,
        )
        grid = self.one.take(np.zeros(columns, dtype=np.int64))
        return wide.finish(exact_ends(grid, wide))


_PER_RANK = (
    "transfer", "start", "reduction", "optimizer", "gather_hidden", "reduction_hidden", "tensor_hidden", "context_hidden",
)  # fmt: skip


def longest_path_cut(durations: Durations, counts: Vector) -> tuple[Cut | None, float]:
    """Equation (4) at some counts, None where the differences are not whole numbers, and the step time with the counts."""
    at = durations.of(counts)
    scale, length = float(at.mean()), np.inf
    for seed in range(3):
        moved = at + scale * _APART * np.random.default_rng(seed).random(len(at))
        columns = np.vstack([at, moved, moved + np.eye(len(at)) * scale * _STEP])
        length, first, *rest = durations.seconds(columns).tolist()
        slopes = (np.array(rest) - first) / (scale * _STEP)
        count = np.rint(slopes)
        if (np.abs(slopes - count) < _WHOLE).all():
            return Cut(float(first - count @ moved + count @ durations.plain), count * durations.per_layer), length
    return None, length

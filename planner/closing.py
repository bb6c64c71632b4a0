"""Work on candidates whose bound is below the best time known, after a search: their boundaries or counts one by one."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from costmodel.bounds import ROUNDING
from costmodel.runtimes.grid import Grid
from planner.candidates import Index, Mask
from planner.completion import all_or_none, is_free
from planner.effort import Effort
from planner.evaluation import Search

GAP_TOLERANCE = 1e-9


def within(found: Search, seconds: float, effort: Effort) -> tuple[int | None, float]:
    """A row that takes at most some seconds, None where none is found, and seconds that no row beats."""
    beyond = seconds * (1.0 + ROUNDING)
    found.fastest(below=beyond)
    tighten(found, effort, goal=beyond)
    row = found.simplest()
    lower = float(found.lower[found.fits].min(initial=np.inf))
    return (None if row is None or found.time[row] > beyond else row), lower


def tighten(found: Search, effort: Effort, *, goal: float = -np.inf) -> None:
    """Close the gap: work on rows whose bound is below the best time, smallest bound first, as long as ``effort`` lasts.

    With a ``goal`` in seconds only until a row reaches it, or none can.
    """
    stuck = np.zeros(len(found.lower), dtype=bool)
    try:
        while True:
            best = float(found.time.min())
            if best <= goal:
                break
            upper = best if goal == -np.inf else goal
            below = found.fits & (found.lower < upper * (1.0 - GAP_TOLERANCE))
            rows = np.flatnonzero(below & ~stuck)
            gap = 1.0 - min(upper, float(found.lower[found.fits].min(initial=np.inf))) / upper
            if not len(rows) or not effort.begin(gap=gap, left=int(below.sum())):
                break
            row = int(rows[np.argmin(found.lower[rows])])
            twins = rows[_alike(found, rows, row)]
            stuck[twins] = not _close(found, row, twins, upper, effort)
    except KeyboardInterrupt:
        effort.ended, effort.interrupted = "it was interrupted", True
    if stuck.any() and not effort.ended:
        several = int(stuck.sum())
        effort.ended = f"{several:,} candidate{'s' * (several > 1)} took more work than is allowed for one"


def _close(found: Search, row: int, twins: Index, upper: float, effort: Effort) -> bool:
    """Work on a row and its twins; whether they need no more, or may be worked on again."""
    if not found.refined[row]:
        found.refine(twins)
        return True
    one = found.candidates.grid.take(np.array([row]))
    if is_free(one, free=found.completer.free)[0]:
        better = found.completer.branched(one, upper=upper, budget=effort.branches)
    elif found.completer.counts == "per_stage" and not all_or_none(one, "per_stage")[0]:
        upper *= 1.0 - effort.enough
        counts, known = found.stages[row][1], float(found.time[row])
        better = found.completer.solved(
            one, counts, known=known, upper=upper, seconds=effort.seconds_left, most_cuts=effort.cuts
        )
    else:
        better = None
    if better is None:
        return False
    if better.seconds[0] < found.time[row] * (1.0 - GAP_TOLERANCE):
        found.take(twins, better)
    found.lower[twins] = max(found.lower[row], min(better.lower[0], found.time[row]))
    return bool(found.lower[row] >= min(upper, found.time[row]) * (1.0 - GAP_TOLERANCE))


def _alike(found: Search, rows: Index, row: int) -> Mask:
    """Rows that only differ in a ZeRO stage that changes nothing: under pipelines gradients are reduced once."""
    grid = found.candidates.grid
    same = np.ones(len(rows), dtype=bool)
    for values in (found.time, found.lower, found.needed_bytes, found.refined):
        same &= values[rows] == values[row]
    for column in fields(Grid):
        values = getattr(grid, column.name)
        if column.name != "zero_stage":
            same &= values[rows] == values[row]
    piped = grid.pipeline_parallel_size[row] > 1
    stage = grid.zero_stage
    return np.asarray((rows == row) | (same & piped & np.isin(stage[rows], (1, 2)) & (stage[row] in (1, 2))))

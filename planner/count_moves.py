"""Better counts of recomputed layers from known ones: one layer less somewhere, or moved to another chunk of its rank.

Only a chunk whose backwards lie on the longest path can make the step shorter by recomputing less. Of all such moves those that
shorten the step most are taken as long as one that fits does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.chunk_counts import Durations, longest_path_cut
from planner.given_stages import GivenStages

IntArray = NDArray[np.int64]
_MOST_ROUNDS, _MOST_PRICED = 30, 32


def moved_counts(given: GivenStages, durations: Durations, start: IntArray) -> IntArray:
    """Counts [V] that fit and are not slower than ``start``.

    Args:
        given: one candidate.
        durations: of its operations.
        start: counts [V] that fit.
    """
    counts, best = start, float(durations.seconds(durations.of(start)[None])[0])
    for _ in range(_MOST_ROUNDS):
        moves = _moves(given, durations, counts)
        if not len(moves):
            break
        seconds = durations.seconds(durations.of(moves))
        faster = np.flatnonzero(seconds < best * (1.0 - 1e-9))
        faster = faster[np.argsort(seconds[faster], kind="stable")][:_MOST_PRICED]
        fits = given.fits(moves[faster])
        if not fits.any():
            break
        chosen = faster[np.argmax(fits)]
        counts, best = moves[chosen], float(seconds[chosen])
    return counts


def _moves(given: GivenStages, durations: Durations, counts: IntArray) -> IntArray:
    """Neighbours of some counts that may be faster [moves, V]."""
    cut, _ = longest_path_cut(durations, counts.astype(np.float64))
    costs = np.ones(len(counts)) if cut is None else cut.slope
    moves = []
    for rank in given.held:
        for less in rank[(counts[rank] > 0) & (costs[rank] > 0)]:
            for more in (less, *rank[(counts[rank] < given.most[0, rank]) & (costs[rank] < costs[less])]):
                moved = counts.copy()
                moved[less] -= 1
                moved[more] += more != less
                moves.append(moved)
    return np.array(moves, dtype=np.int64).reshape(-1, len(counts))

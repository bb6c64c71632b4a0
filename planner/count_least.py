"""Which ways to recompute layers of a rank fit, tried out where there are few.

Equation (2) of given_stages.py says how many layers it takes if every one saves the most that any does, so fewer do not fit.
Whether as many do depends on the chunks that they are taken from. A rank of v chunks has few ways to place L layers, and all are
priced at once:

    (1) if none fits it takes L + 1, and so on
    (2) if those that fit take at least a_k and at most b_k layers of stage k, then sum of n >= L + max(0, a_k - n_k) / a_k and
        sum of n >= L + max(0, n_k - b_k) / (most_k - b_k): with other n_k it takes L + 1
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.chunk_counts import CountProblem
from planner.given_stages import GivenStages

IntArray = NDArray[np.int64]
_MOST_WAYS = 2_048


def tried_out(given: GivenStages, problem: CountProblem) -> CountProblem:
    """The same problem with what (1) and (2) add.

    Args:
        given: one candidate.
        problem: of that candidate.
    """
    least, fewest, largest = problem.least.copy(), problem.fewest.copy(), problem.largest.copy()
    sizes = problem.most[problem.held]
    ranks = np.flatnonzero(problem.least > 0).tolist()
    while ranks:
        kinds: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for rank in ranks:
            kinds.setdefault((int(least[rank]), tuple(sizes[rank].tolist())), []).append(rank)
        ranks = []
        for (number, chunks), alike in kinds.items():
            ways = ways_to_place(number, chunks)
            if ways is None or not len(ways):
                continue
            counts = np.zeros((len(ways), len(problem.most)), dtype=np.int64)
            counts[:, problem.held[alike]] = ways[:, None]
            fits = given.bytes_of(counts, alike) <= given.capacity_bytes
            for rank, those in zip(alike, fits.T, strict=True):
                if those.any():
                    stages = problem.held[rank]
                    fewest[stages], largest[stages] = ways[those].min(axis=0), ways[those].max(axis=0)
                else:
                    least[rank] += 1
                    ranks.append(rank)
    return replace(problem, least=least, fewest=fewest, largest=largest)


@lru_cache(maxsize=256)
def ways_to_place(number: int, sizes: tuple[int, ...]) -> IntArray | None:
    """All ways to take a number of layers from chunks of some sizes [ways, v], or None where there are too many."""
    ways = np.zeros((1, 0), dtype=np.int64)
    for index, size in enumerate(sizes):
        taken = ways.sum(axis=1)[:, None] + np.arange(size + 1)
        row, count = np.nonzero((taken <= number) & (taken + sum(sizes[index + 1 :]) >= number))
        ways = np.concatenate([ways[row], count[:, None]], axis=1)
        if len(ways) > _MOST_WAYS:
            return None
    return ways

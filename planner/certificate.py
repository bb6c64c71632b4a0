"""What a search proves. T is the exact step time of a candidate; all others that fit have a lower bound on it.

(1) U = min T over candidates evaluated exactly
(2) L = min(U, min bound over candidates that fit and were not evaluated)
(3) gap = (U - L) / U
"""

from __future__ import annotations

import numpy as np

from costmodel.specs import Certificate
from planner.evaluation import Search
from planner.space import Space, describe_space


def make_certificate(space: Space, found: Search, *, seconds: float) -> Certificate:
    """Equations (1) to (3) and the counts, which add up to the candidates when nothing is left open."""
    candidates, open_rows = found.candidates, found.open_rows()
    evaluated = int(found.exact.sum())
    upper = float(found.lower[found.best()])
    lower = min(upper, float(found.lower[open_rows].min(initial=np.inf)))
    gap = (upper - lower) / upper
    statement = f"optimal over the declared space under this cost model, gap {gap:.2%}"
    if len(open_rows):
        statement += f" ({len(open_rows):,} candidates with a bound below the best step time were not evaluated)"
    return Certificate(
        space=describe_space(space),
        candidates=candidates.total,
        rejected_by_rule=candidates.rejected_by_rule,
        rejected_by_memory=candidates.rejected_by_memory,
        pruned_by_bound=int(candidates.fits.sum()) - evaluated - len(open_rows),
        evaluated=evaluated,
        upper_seconds=upper,
        lower_seconds=lower,
        gap=gap,
        search_seconds=seconds,
        statement=statement,
    )

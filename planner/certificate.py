"""What a search proves. T is the step time of a candidate's best completion found; all have a lower bound on their best.

(1) U = min T over candidates that were refined
(2) L = min(U, min bound over all candidates that may fit: of those refined the bound on all their completions)
(3) gap = (U - L) / U
"""

from __future__ import annotations

import numpy as np

from costmodel.specs import Certificate
from planner.evaluation import Search
from planner.space import Space, describe_space, schedules_left_out

ROUNDING_GAP = 1e-8
"""What a gap may be made of the order of summation and a solver's tolerance."""


def make_certificate(space: Space, found: Search, *, seconds: float, ended: str = "") -> Certificate:
    """Equations (1) to (3) and the counts, which add up to the candidates where none is open; ``ended``: why a gap is left."""
    candidates, open_rows = found.candidates, found.open_rows()
    evaluated = int(np.isfinite(found.time).sum())
    upper = float(found.time[found.best()])
    lower = min(upper, float(found.lower[found.fits].min(initial=np.inf)))
    gap = (upper - lower) / upper
    if gap <= ROUNDING_GAP:
        lower, gap = upper, 0.0
    statement = f"optimal over the declared space under this cost model, gap {gap:.2%}"
    if len(open_rows):
        statement += f" ({len(open_rows):,} candidates with a bound below the best step time were not evaluated)"
    left_out = schedules_left_out(space)
    if left_out:
        statement += (
            f"; not searched: {', '.join(left_out)} (--allow pipeline_schedule=all takes longer and looks there too)"
        )
    if gap > 0 and ended:
        statement += f"; {ended}"
    return Certificate(
        space=describe_space(space),
        candidates=candidates.total,
        rejected_by_rule=candidates.rejected_by_rule,
        rejected_by_memory=int((~found.fits).sum()),
        pruned_by_bound=int(found.fits.sum()) - evaluated - len(open_rows),
        evaluated=evaluated,
        upper_seconds=upper,
        lower_seconds=lower,
        gap=gap,
        search_seconds=seconds,
        statement=statement,
    )

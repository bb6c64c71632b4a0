"""Plans worth a short run: the model's own error cannot tell them from the best, and they differ in layout."""

from __future__ import annotations

from costmodel.specs import Plan, Recommendation
from planner.evaluation import estimate_of, step_seconds


def worth_measuring(answer: Recommendation, count: int) -> tuple[Plan, ...]:
    """The best plan and at most ``count`` - 1 alternatives whose step time lies within the best one's 80% interval.

    The alternatives of a recommendation are the fastest plan of each other layout (`planner.evaluation.layouts`). Measuring them
    and taking the fastest leaves little to lose, where taking the predicted best unmeasured may leave the model's own error.
    """
    limit = estimate_of(answer.best).step_time_seconds.high
    close = (plan for plan in answer.alternatives if step_seconds(plan) <= limit)
    return (answer.best, *sorted(close, key=step_seconds)[: count - 1])

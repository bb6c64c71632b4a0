"""Plans worth measuring: distinct layouts within the best one's interval."""

import pytest
from sample_documents import sample_plan, sample_recommendation

from costmodel.specs import Interval, Plan
from planner.evaluation import estimate_of, step_seconds
from planner.worth_measuring import worth_measuring


def timed(plan: Plan, seconds: float, band: float) -> Plan:
    interval = Interval(value=seconds, low=seconds / (1 + band), high=seconds * (1 + band))
    made = estimate_of(plan).model_copy(update={"step_time_seconds": interval})
    return plan.model_copy(update={"estimate": made})


@pytest.mark.parametrize(
    ("count", "band", "expected"),
    [(3, 0.3, [8.0, 8.4, 9.5]), (3, 0.1, [8.0, 8.4]), (2, 0.3, [8.0, 8.4]), (1, 0.3, [8.0]), (9, 0.01, [8.0])],
)
def test_the_best_n_within_the_interval(count: int, band: float, expected: list[float]) -> None:
    answer = sample_recommendation()
    first, second = answer.alternatives
    others = (timed(second, 9.5, band), timed(first, 8.4, band))
    told = worth_measuring(
        answer.model_copy(update={"best": timed(answer.best, 8.0, band), "alternatives": others}), count
    )
    assert [step_seconds(plan) for plan in told] == expected


def test_without_alternatives_the_best_stands_alone() -> None:
    answer = sample_recommendation().model_copy(update={"alternatives": ()})
    assert worth_measuring(answer, 3) == (answer.best,)
    assert answer.best.parallel == sample_plan().parallel

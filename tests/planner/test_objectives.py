"""Objectives beside the step time, against the exhaustive trial of what they choose from."""

from __future__ import annotations

from math import ceil

import pytest
from planner_worlds import GIB, ask, holds_plan, make_cluster, make_model

from costmodel.specs import Infeasible, Objective, Recommendation
from planner.headroom import most_headroom
from planner.infeasible import least_memory
from planner.inquiry import Inquiry
from planner.objectives import cheapest, every_number, fewest_devices, worthwhile_numbers

LARGE = make_model(layers=6, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def recommended(answer: Recommendation | Infeasible) -> tuple[Recommendation, Objective]:
    assert isinstance(answer, Recommendation)
    assert answer.objective is not None
    return answer, answer.objective


def on_every_number(inquiry: Inquiry, numbers: list[int]) -> dict[int, Recommendation]:
    """The fastest plan on each number of devices that has one, by one search each."""
    found = {}
    for number in numbers:
        space = inquiry.narrowed(num_devices_used=number)
        if holds_plan(space):
            answer = inquiry.search(space)
            assert isinstance(answer, Recommendation)
            found[number] = answer
    return found


def test_numbers_that_are_tried() -> None:
    cluster = make_cluster(nodes=3, per_node=4)
    assert every_number(cluster) == [1, 2, 3, 4, 8, 12]
    assert worthwhile_numbers(cluster) == [1, 2, 4, 8, 12]
    assert worthwhile_numbers(make_cluster(nodes=24, per_node=2)) == [1, 2, 4, 6, 8, 12, 16, 24, 32, 48]


@pytest.mark.parametrize("memory_gib", [4.5, *(pytest.param(gib, marks=pytest.mark.slow) for gib in (4.9, 5.65)), 8.0])
def test_the_fewest_devices_are_those_of_the_exhaustive_trial(memory_gib: float) -> None:
    cluster = make_cluster(nodes=2, per_node=6, memory_bytes=int(memory_gib * GIB))
    inquiry = ask(model=LARGE, cluster=cluster, batch=12)
    numbers = every_number(inquiry.cluster)
    fitting = on_every_number(inquiry, numbers)
    found, objective = recommended(fewest_devices(inquiry))
    least = min(fitting)
    assert found.best.num_devices_used == objective.value == objective.bound == least
    assert found.best.parallel == fitting[least].best.parallel
    assert found.certificate.upper_seconds == fitting[least].certificate.upper_seconds
    assert [trial.value for trial in objective.trials] == [number for number in numbers if number <= least]
    assert [trial.fits for trial in objective.trials] == [False] * (len(objective.trials) - 1) + [True]


def test_fitting_is_not_monotone_in_the_number_of_devices() -> None:
    """Five devices hold less than four: heads and hidden size divide by four alone."""
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=6, memory_bytes=5 * GIB), batch=12)
    assert set(on_every_number(inquiry, every_number(inquiry.cluster))) == {4, 6}
    _, objective = recommended(fewest_devices(inquiry))
    assert objective.value == 4


def test_the_next_smaller_number_is_shown_with_its_nearest_miss() -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(nodes=2, per_node=4, memory_bytes=49 * GIB // 10))
    _, objective = recommended(fewest_devices(inquiry))
    before = objective.trials[-2]
    least = least_memory(inquiry.narrowed(num_devices_used=before.value))
    assert least is not None
    assert objective.nearest_miss is not None
    assert before.needed_bytes == objective.nearest_miss.needed_bytes == ceil(least.needed_bytes) > 49 * GIB // 10
    assert sum(term.bytes for term in objective.nearest_miss.terms) == pytest.approx(before.needed_bytes, abs=2)
    assert before.plan_summary == objective.nearest_miss.plan_summary == least.summary


def test_stated_numbers_of_devices_are_the_ones_tried() -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(memory_bytes=40 * GIB), allow={"num_devices_used": "8,2,4"})
    for answer in (fewest_devices(inquiry), cheapest(inquiry, 1.0)):
        _, objective = recommended(answer)
        assert {trial.value for trial in objective.trials} <= {2, 4, 8}
    assert recommended(fewest_devices(inquiry))[0].best.num_devices_used == 2


def test_nothing_fits_is_an_answer_with_the_closest_miss() -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=4, memory_bytes=49 * GIB // 10))
    for answer in (fewest_devices(inquiry), cheapest(inquiry, 1.0), most_headroom(inquiry, 0.1)):
        assert isinstance(answer, Infeasible)
        assert answer.nearest_miss is not None
        assert answer.nearest_miss.needed_bytes > 49 * GIB // 10


@pytest.mark.parametrize(("between", "memory_gib"), [(25e9, 40), (0.2e9, 40), (25e9, 5)])
def test_the_cheapest_plan_is_that_of_the_exhaustive_trial(between: float, memory_gib: int) -> None:
    cluster = make_cluster(nodes=2, per_node=4, between=between, memory_bytes=memory_gib * GIB)
    inquiry = ask(model=LARGE, cluster=cluster, batch=16)
    fitting = on_every_number(inquiry, worthwhile_numbers(cluster))
    price, tokens = 3.6, 16 * 512
    costs = {n: price / 3600 * n * one.certificate.upper_seconds / tokens * 1e9 for n, one in fitting.items()}
    found, objective = recommended(cheapest(inquiry, price))
    least = min(costs, key=lambda number: costs[number])
    assert objective.value == pytest.approx(costs[least], rel=1e-12)
    assert found.best.num_devices_used == least
    assert objective.bound <= objective.value
    assert objective.gap == pytest.approx((objective.value - objective.bound) / objective.value)
    for trial in objective.trials:  # those without a search could not have been cheaper
        if trial.fits:
            assert trial.lower_seconds is not None
            assert trial.lower_seconds <= fitting[trial.value].certificate.upper_seconds * (1 + 1e-12)
            if trial.step_time_seconds is None:
                assert price / 3600 * trial.value * trial.lower_seconds / tokens * 1e9 >= objective.value


def test_the_price_scales_the_cost_and_changes_no_plan() -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(nodes=2, per_node=2, memory_bytes=40 * GIB))
    one, first = recommended(cheapest(inquiry, 1.0))
    seven, second = recommended(cheapest(inquiry, 7.0))
    assert one.best.plan_hash == seven.best.plan_hash
    assert second.value == pytest.approx(7 * first.value)
    assert second.gap == pytest.approx(first.gap)
    priced = inquiry.changed(cluster=inquiry.cluster.model_copy(update={"price_per_device_hour": 7.0}))
    fastest, again = inquiry.search(inquiry.space()), priced.search(priced.space())
    assert isinstance(fastest, Recommendation)
    assert isinstance(again, Recommendation)
    assert fastest.best.parallel == again.best.parallel
    assert fastest.certificate.upper_seconds == again.certificate.upper_seconds


def test_devices_that_stay_free_are_not_paid_for() -> None:
    cluster = make_cluster(nodes=4, per_node=2, between=0.1e9, memory_bytes=40 * GIB)
    found, _ = recommended(cheapest(ask(model=LARGE, cluster=cluster, total_tokens=10**9), 1.0))
    assert found.best.num_devices_used < 8
    assert found.duration is not None
    assert found.duration.device_hours == pytest.approx(found.duration.seconds * found.best.num_devices_used / 3600)
    assert any("as the objective cost asks" in warning for warning in found.warnings)

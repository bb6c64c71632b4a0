"""Scaling: every row is a search of its own, and the rest is arithmetic that a reader can repeat."""

from __future__ import annotations

import pytest
from planner_worlds import GIB, ask, make_cluster, make_link, make_model

from costmodel.specs import Infeasible, LevelSpec, Recommendation, Scaling
from hardware_profiles.loader import load_cluster
from planner.inquiry import Inquiry
from planner.scale import Terms, default_nodes, first_nodes, scale

LARGE = make_model(layers=6, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def question(nodes: int, *, batch: int = 64, between: float = 25e9, memory_gib: float = 40) -> Inquiry:
    cluster = make_cluster(nodes=nodes, per_node=2, between=between, memory_bytes=int(memory_gib * GIB))
    return ask(model=LARGE, cluster=cluster, batch=batch, sequence=1024)


def scaled(inquiries: list[Inquiry], *, per_node: bool = False, **terms: float | int) -> Scaling:
    answer = scale(inquiries, terms=Terms(**terms), per_node=per_node)  # type: ignore[arg-type]
    assert isinstance(answer, Scaling)
    return answer


def test_every_row_is_the_search_of_its_cluster_and_costs_follow() -> None:
    inquiries = [question(nodes) for nodes in (1, 2, 4)]
    answer = scaled(inquiries, price_per_device_hour=2.0, total_tokens=10**12)
    for point, inquiry in zip(answer.points, inquiries, strict=True):
        alone = inquiry.search(inquiry.space())
        assert isinstance(alone, Recommendation)
        seconds = alone.certificate.upper_seconds
        rate = 64 * 1024 / seconds
        devices = 2 * point.num_nodes
        assert point.num_devices == devices
        assert point.step_time_seconds == seconds
        assert point.best is not None
        assert point.best.plan_hash == alone.best.plan_hash
        assert point.tokens_per_second == pytest.approx(rate)
        assert point.cost_per_billion_tokens == pytest.approx(2.0 * devices * (1e9 / rate) / 3600)
        assert point.cost == pytest.approx(1000 * (point.cost_per_billion_tokens or 0))
        assert point.training_seconds == pytest.approx(1e12 / rate)


def test_efficiencies_are_ratios_to_the_first_row() -> None:
    answer = scaled([question(nodes, between=0.5e9) for nodes in (1, 2, 4, 8)])
    rates = [point.tokens_per_second or 0.0 for point in answer.points]
    assert answer.points[0].efficiency == 1.0
    assert answer.points[0].marginal_efficiency is None
    for index in (1, 2, 3):
        nodes, before = 2**index, 2 ** (index - 1)
        assert answer.points[index].efficiency == pytest.approx(rates[index] / nodes / rates[0])
        added = (rates[index] - rates[index - 1]) / (nodes - before)
        assert answer.points[index].marginal_efficiency == pytest.approx(added / rates[0])


def test_more_nodes_stop_paying_where_the_added_ones_bring_too_little() -> None:
    inquiries = [question(nodes, between=0.5e9) for nodes in (1, 2, 4, 8)]
    answer = scaled(inquiries)
    added = {
        point.num_nodes: point.marginal_efficiency for point in answer.points if point.marginal_efficiency is not None
    }
    first = next((nodes for nodes, share in added.items() if share < 0.5), None)
    assert first is not None, "the network of this test is slow enough"
    assert answer.stops_paying_at == first
    assert answer.statement.startswith(
        f"more nodes stop paying at {first}: the nodes added there bring {added[first]:.0%}"
    )


def test_where_every_number_pays_none_is_named() -> None:
    answer = scaled([question(nodes, between=100e9) for nodes in (1, 2)], wanted=0.1)
    assert answer.points[1].marginal_efficiency is not None
    assert answer.points[1].marginal_efficiency > 0.1
    assert answer.stops_paying_at is None
    assert answer.statement.startswith("every number of nodes up to 2 pays (marginal efficiency at least 10%)")


def test_the_cheapest_number_of_nodes_has_the_lowest_cost_whatever_the_price() -> None:
    inquiries = [question(nodes, between=0.5e9, memory_gib=7) for nodes in (1, 2, 4)]
    without, with_price = scaled(inquiries), scaled(inquiries, price_per_device_hour=3.0)
    costs = {point.num_nodes: point.cost_per_billion_tokens for point in with_price.points if point.best is not None}
    assert with_price.cheapest == without.cheapest == min(costs, key=lambda nodes: costs[nodes] or 0.0)
    assert all(point.cost_per_billion_tokens is None for point in without.points)


def test_weak_scaling_takes_the_batches_it_is_given() -> None:
    answer = scaled([question(nodes, batch=16 * nodes) for nodes in (1, 2, 4)], per_node=True)
    assert answer.batch == "per_node"
    assert [point.global_batch_size for point in answer.points] == [16, 32, 64]


def test_numbers_of_nodes_without_a_plan_are_rows_with_the_nearest_miss() -> None:
    answer = scaled([question(nodes, memory_gib=5.5) for nodes in (1, 2)])
    first, second = answer.points
    assert first.best is None
    assert first.nearest_miss is not None
    assert first.nearest_miss.needed_bytes > 5.5 * GIB
    assert second.efficiency == 1.0
    assert second.marginal_efficiency is None
    assert answer.cheapest == 2


def test_nothing_fits_anywhere() -> None:
    answer = scale([question(nodes, memory_gib=4.9) for nodes in (1, 2)], terms=Terms(), per_node=False)
    assert isinstance(answer, Infeasible)
    assert answer.nearest_miss is not None


def test_warnings_name_the_numbers_of_nodes_they_are_about() -> None:
    answer = scaled([question(nodes) for nodes in (1, 2, 4)])
    assert any(text.startswith("on 2, 4 nodes: only nominal rates of between") for text in answer.warnings)


def test_powers_of_two_and_the_whole_cluster() -> None:
    assert default_nodes(make_cluster(nodes=1)) == [1]
    assert default_nodes(make_cluster(nodes=8)) == [1, 2, 4, 8]
    assert default_nodes(make_cluster(nodes=12)) == [1, 2, 4, 8, 12]


def test_the_first_nodes_of_a_named_cluster_are_the_smaller_named_cluster() -> None:
    whole = load_cluster("8x8xH100-SXM")
    for count, name in ((1, "8xH100-SXM"), (3, "3x8xH100-SXM"), (8, "8x8xH100-SXM")):
        assert first_nodes(whole, count) == load_cluster(name)


def test_racks_are_filled_from_the_inside() -> None:
    pair = make_cluster(nodes=4, per_node=2)
    rack = LevelSpec(name="racks", size=3, link=make_link("spine", 5e9))
    racks = pair.model_copy(update={"name": "racks of four", "levels": (*pair.levels, rack)})
    sizes = {count: first_nodes(racks, count) for count in range(1, 13)}
    assert {n: [level.size for level in place.levels] for n, place in sizes.items() if place is not None} == {
        1: [2], 2: [2, 2], 3: [2, 3], 4: [2, 4], 8: [2, 4, 2], 12: [2, 4, 3],
    }  # fmt: skip
    assert default_nodes(racks) == [1, 2, 4, 8, 12]

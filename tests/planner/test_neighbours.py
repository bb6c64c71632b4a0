"""One step away from the best on every axis: priced, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from planner_worlds import GIB, make_cluster, make_model, make_training, plan_space, recommend

from costmodel.build import build_plan
from costmodel.estimate import estimate
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Neighbour, ParallelConfig, Recommendation
from planner.axes import AXES

LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def by_axis(found: Recommendation) -> dict[str, list[Neighbour]]:
    result: dict[str, list[Neighbour]] = {}
    for neighbour in found.neighbours:
        result.setdefault(neighbour.axis, []).append(neighbour)
    return result


@pytest.mark.parametrize(
    "world",
    [
        {"cluster": make_cluster(nodes=2, per_node=4, between=1e9), "batch": 32},
        {"model": LARGE, "cluster": make_cluster(memory_bytes=int(5.2 * GIB))},
        {"model": LARGE, "cluster": make_cluster(nodes=2, per_node=4), "runtime": "megatron", "batch": 48},
    ],
    ids=["two nodes", "tight memory", "megatron"],
)
def test_no_neighbour_beats_a_proven_optimum(world: dict[str, Any]) -> None:
    found = recommend(plan_space(**world))
    assert found.certificate.gap == 0
    assert len(found.neighbours) >= 4
    assert {neighbour.axis for neighbour in found.neighbours} <= set(AXES)
    for neighbour in found.neighbours:
        priced = neighbour.step_time_seconds is not None
        assert priced != (neighbour.rejection is not None)
        if neighbour.step_time_seconds is not None and neighbour.slowdown is not None:
            assert neighbour.slowdown >= -1e-12
            expected = found.certificate.upper_seconds * (1 + neighbour.slowdown)
            assert neighbour.step_time_seconds == pytest.approx(expected)


def test_a_fixed_axis_shows_the_price_of_fixing_it() -> None:
    world: dict[str, Any] = {"model": LARGE, "batch": 64, "sequence": 2048}
    fixed = recommend(plan_space(**world, fix={"pipeline_parallel_size": "2"}))
    (down, up) = sorted(by_axis(fixed)["pipeline_parallel_size"], key=lambda neighbour: int(neighbour.value))
    assert (down.value, up.value) == ("1", "4")
    free = recommend(plan_space(**world))
    assert free.best.parallel.pipeline_parallel_size == 1
    assert down.slowdown is not None
    assert down.slowdown < 0  # without a pipeline it would be faster


def test_neighbours_that_do_not_fit_say_how_much_they_need() -> None:
    found = recommend(plan_space(model=LARGE, cluster=make_cluster(memory_bytes=int(5.0 * GIB))))
    texts = [neighbour.rejection for neighbour in found.neighbours if neighbour.rejection]
    assert any("GiB a device of 5.0 GiB" in text for text in texts)


def test_memory_alone_against_a_neighbour_is_a_number() -> None:
    found = recommend(plan_space(model=LARGE, cluster=make_cluster(memory_bytes=int(5.0 * GIB))))
    for neighbour in found.neighbours:
        large = neighbour.rejection is not None and "GiB a device" in neighbour.rejection
        assert (neighbour.needed_bytes is not None) == large
        if neighbour.needed_bytes is not None:
            assert neighbour.needed_bytes > 5.0 * GIB


def test_fewer_devices_are_priced() -> None:
    # The next smaller divisor of the batch is the next smaller number of replicas.
    found = recommend(plan_space(model=LARGE, batch=24, sequence=2048, fix={"tensor_parallel_size": "1"}))
    (fewer,) = by_axis(found)["num_devices_used"]
    assert found.best.num_devices_used == 8
    assert fewer.value == "6"
    assert fewer.slowdown is not None
    assert fewer.slowdown > 0


def test_a_plan_on_fewer_devices_has_a_step_up() -> None:
    space = plan_space(model=LARGE, batch=24, sequence=2048, fix={"tensor_parallel_size": "1", "num_devices_used": "6"})
    values = [int(neighbour.value) for neighbour in by_axis(recommend(space))["num_devices_used"]]
    assert values == [4, 8]


def test_switches_of_tensor_parallelism_are_neighbours() -> None:
    found = recommend(plan_space(model=LARGE, cluster=make_cluster(per_node=2), fix={"tensor_parallel_size": "2"}))
    on = {name: getattr(found.best.parallel, name) for name in ("sequence_parallel", "loss_parallel")}
    for name, value in on.items():
        (neighbour,) = by_axis(found)[name]
        assert neighbour.value == str(not value).lower()


def test_a_copy_per_node_is_a_neighbour_of_zero_3_over_nodes() -> None:
    fix = {"zero_stage": "3", "data_parallel_shard_size": "8", "hierarchical_partition_size": "off"}
    off = recommend(plan_space(model=LARGE, cluster=make_cluster(nodes=2, per_node=4), batch=32, fix=fix))
    (on,) = by_axis(off)["hierarchical_partition_size"]
    assert on.value == "4"
    back = recommend(
        plan_space(
            model=LARGE,
            cluster=make_cluster(nodes=2, per_node=4),
            batch=32,
            fix=fix | {"hierarchical_partition_size": "4"},
        )
    )
    (down,) = by_axis(back)["hierarchical_partition_size"]
    assert down.value == "off"
    assert down.step_time_seconds == pytest.approx(off.certificate.upper_seconds, rel=0.2)
    inside = recommend(plan_space(model=LARGE, batch=32, fix=fix))
    assert "hierarchical_partition_size" not in by_axis(inside)


def test_neighbours_that_break_a_rule_name_the_numbers() -> None:
    # batch 6 on 4 devices: more data parallelism does not divide it.
    found = recommend(plan_space(model=LARGE, cluster=make_cluster(per_node=4), batch=6, sequence=4096))
    texts = [neighbour.rejection for neighbour in found.neighbours if neighbour.rejection]
    assert any("global_batch_size 6 is not divisible" in text for text in texts)


def test_the_price_is_the_estimate_of_that_plan() -> None:
    space = plan_space(model=LARGE, cluster=make_cluster(per_node=4), sequence=2048)
    found = recommend(space)
    parallel = found.best.parallel
    context = space.context
    checked = 0
    for neighbour in by_axis(found)["micro_batch_size"]:
        if neighbour.step_time_seconds is None:
            continue
        share = parallel.micro_batch_size * parallel.num_micro_batches
        size = int(neighbour.value)
        changed = ParallelConfig.model_validate(
            {**parallel.model_dump(), "micro_batch_size": size, "num_micro_batches": share // size}
        )
        plan = build_plan(context.model, context.cluster, context.training, context.runtime, changed)
        expected = estimate(plan, context.runtime).step_time_seconds.value
        assert neighbour.step_time_seconds == pytest.approx(expected, rel=1e-9)
        checked += 1
    assert checked >= 1


def test_an_unfinished_search_climbs_to_a_local_optimum() -> None:
    profile = load_runtime("torch")
    assert make_training(profile).precision == profile.precisions["bf16"]
    limited = recommend(plan_space(cluster=make_cluster(nodes=2, per_node=4), batch=32), node_budget=0)
    assert all(n.slowdown is None or n.slowdown >= -1e-12 for n in limited.neighbours)

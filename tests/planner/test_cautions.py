"""Warnings appear when their condition holds, with its numbers, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from planner_worlds import GIB, make_cluster, make_model, plan_space, recommend

from benchmarks.explanations import check
from planner.cautions import BORDERLINE_FRACTION, BUBBLE_FRACTION, plan_cautions
from planner.explain import explain

WINDOWS = [(512, "torch", True), (2048, "torch", False), (4096, "torch", False), (512, "megatron", False)]
LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def test_an_ordinary_plan_has_no_warning() -> None:
    assert recommend(plan_space(model=LARGE, batch=64, sequence=2048)).warnings == ()


def test_idle_devices_are_named() -> None:
    found = recommend(plan_space(cluster=make_cluster(per_node=7)))
    assert found.best.num_devices_used == 6
    assert any("1 of 7 devices stay idle: no valid sizes" in warning for warning in found.warnings)
    stated = recommend(plan_space(fix={"num_devices_used": "4"}))
    assert any("4 of 8 devices stay idle: as num_devices_used states" in warning for warning in stated.warnings)


def test_a_borderline_plan_names_a_safer_one() -> None:
    ample = recommend(plan_space(model=LARGE))
    assert ample.best.estimate is not None
    exact = ample.best.estimate.peak_memory_bytes.device
    found = recommend(plan_space(model=LARGE, cluster=make_cluster(memory_bytes=int(exact / 0.95))))
    assert found.best.estimate is not None
    share = found.best.estimate.peak_memory_bytes.device / found.best.estimate.memory_capacity_bytes
    assert share > BORDERLINE_FRACTION
    (warning,) = [text for text in found.warnings if "borderline" in text]
    assert f"{share:.1%}" in warning
    assert "safer: " in warning or "no plan of the space is safer" in warning


def test_a_large_bubble_is_named() -> None:
    # 4 micro-batches on 4 stages: bubble (p - 1)/(m + p - 1) = 43% (arXiv 2104.04473, section 2.2.1).
    fix = {
        "pipeline_parallel_size": "4",
        "pipeline_schedule": "1f1b",
        "num_micro_batches": "4",
        "data_parallel_size": "1",
    }
    found = recommend(plan_space(cluster=make_cluster(per_node=4), fix=fix))
    assert found.best.estimate is not None
    total = found.best.estimate.step_time_seconds.value
    bubble = sum(term.exposed_seconds for term in found.best.estimate.terms if term.name == "bubble")
    assert bubble / total > BUBBLE_FRACTION
    assert any("pipeline bubble: 4 micro-batches for 4 stages" in text for text in found.warnings)
    naive = fix | {"pipeline_schedule": "naive", "num_micro_batches": "1"}
    found = recommend(plan_space(cluster=make_cluster(per_node=4), fix=naive))
    assert any("pipeline bubble: 1 micro-batch for 4 stages" in text for text in found.warnings)


def test_zero3_over_a_slow_link_is_named() -> None:
    fix = {"zero_stage": "3", "data_parallel_shard_size": "8", "hierarchical_partition_size": "off"}
    slow = recommend(plan_space(model=LARGE, cluster=make_cluster(nodes=2, per_node=4, between=1e8), fix=fix))
    assert any("ZeRO-3 gathers parameters over between" in text for text in slow.warnings)
    inside = recommend(plan_space(model=LARGE, cluster=make_cluster(per_node=8, inside=1e8), fix=fix))
    assert not any("ZeRO-3 gathers" in text for text in inside.warnings)


def test_zero_on_one_device_is_normalised_with_a_warning() -> None:
    found = recommend(plan_space(cluster=make_cluster(per_node=1), fix={"zero_stage": "3"}))
    assert found.best.parallel.zero_stage == 0
    assert any("normalised to zero_stage 0" in text for text in found.warnings)
    assert not any("normalised" in text for text in recommend(plan_space(fix={"zero_stage": "3"})).warnings)


@pytest.mark.parametrize(("sequence", "warned"), [(4096, False), (8192, True)])
def test_rotary_positions_beyond_the_configured_ones_are_named(sequence: int, warned: bool) -> None:
    found = recommend(plan_space(sequence=sequence, cluster=make_cluster(memory_bytes=200 * GIB), batch=8))
    assert any("exceeds the 4,096 positions" in text for text in found.warnings) == warned


BUBBLE = {
    "pipeline_parallel_size": "4",
    "pipeline_schedule": "1f1b",
    "num_micro_batches": "4",
    "data_parallel_size": "1",
}
SHARDED = {"zero_stage": "3", "data_parallel_shard_size": "8", "hierarchical_partition_size": "off"}


@pytest.mark.parametrize(
    ("world", "said"),
    [
        ({"cluster": make_cluster(per_node=7)}, "devices stay idle"),
        ({"model": LARGE, "cluster": make_cluster(memory_bytes=int(5.2 * GIB))}, "memory is borderline"),
        ({"cluster": make_cluster(per_node=4), "fix": BUBBLE}, "pipeline bubble"),
        ({"model": LARGE, "cluster": make_cluster(nodes=2, per_node=4, between=1e8), "fix": SHARDED}, "ZeRO-3 gathers"),
        ({"cluster": make_cluster(per_node=1), "fix": {"zero_stage": "3"}}, "normalised to zero_stage 0"),
        ({"sequence": 8192, "cluster": make_cluster(memory_bytes=200 * GIB), "batch": 8}, "positions"),
        ({"cluster": make_cluster(nodes=2, per_node=4)}, "nominal rates"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_warning_is_explained_from_its_numbers(world: dict[str, Any], said: str) -> None:
    answer = recommend(plan_space(**world))
    told = [one for one in explain(answer) if one.section == "warnings"]
    assert [one.sentence for one in told] == [f"{warning}." for warning in answer.warnings]
    (sentence,) = [one for one in told if said in one.sentence]
    assert sentence.numbers
    assert not any(path.startswith("warnings") for figure in sentence.numbers for path in figure.paths)
    assert check(answer.model_dump(mode="json"), [one.model_dump(mode="json") for one in told]) == []


def test_the_safer_plan_is_stored_and_stays_below_the_limit() -> None:
    answer = recommend(plan_space(model=LARGE, cluster=make_cluster(memory_bytes=int(5.2 * GIB))))
    assert answer.best.estimate is not None
    assert answer.best.estimate.peak_memory_bytes.device > BORDERLINE_FRACTION * 5.2 * GIB
    assert answer.safer is not None
    assert answer.safer.needed_bytes <= BORDERLINE_FRACTION * int(5.2 * GIB)
    assert answer.safer.step_time_seconds >= answer.certificate.upper_seconds
    # It is what the search finds on devices with that much memory, with the stages and recomputation that fit there.
    lean = recommend(
        plan_space(model=LARGE, cluster=make_cluster(memory_bytes=int(BORDERLINE_FRACTION * int(5.2 * GIB))))
    )
    assert lean.best.estimate is not None
    assert answer.safer.step_time_seconds == pytest.approx(lean.best.estimate.step_time_seconds.value, rel=1e-9)
    assert answer.safer.needed_bytes == lean.best.estimate.peak_memory_bytes.device
    assert recommend(plan_space(model=LARGE)).safer is None


def windowed(window: int, runtime: str = "torch") -> Any:
    model = make_model()
    group = model.layers[0]
    group = group.model_copy(update={"attention": group.attention.model_copy(update={"window": window})})
    return recommend(plan_space(model=model.model_copy(update={"layers": (group,)}), sequence=2048, runtime=runtime))


@pytest.mark.parametrize(("window", "runtime", "said"), WINDOWS)
def test_a_window_that_saves_nothing_is_named(window: int, runtime: str, said: bool) -> None:
    found = windowed(window, runtime)
    warnings = [text for text in found.warnings if "sliding window" in text]
    # 512 of 2,048 tokens: w s - w^2 / 2 of s^2 scores is 1/4 - 1/32.
    computed = "runtime torch computes all scores of 2,048 tokens and uses 21.9% of them"
    assert warnings == [f"the sliding window of 512 tokens saves nothing: {computed}"] * said
    assert list(plan_cautions(found.best)) == warnings
    told = [one for one in explain(found) if one.section == "warnings"]
    assert check(found.model_dump(mode="json"), [one.model_dump(mode="json") for one in told]) == []


def test_what_was_stated_is_stored() -> None:
    answer = recommend(plan_space(fix={"zero_stage": "1"}, allow={"micro_batch_size": "1,2"}))
    assert {axis.axis: axis.values for axis in answer.stated} == {"zero_stage": ("1",), "micro_batch_size": ("1", "2")}


def test_a_network_that_nobody_measured_is_named_once() -> None:
    fix = {"num_devices_used": "8"}
    nominal = recommend(plan_space(cluster=make_cluster(nodes=2, per_node=4), fix=fix))
    (warning,) = [text for text in nominal.warnings if "nominal rates" in text]
    efficiency = nominal.best.cluster.levels[1].link.efficiency
    assert warning.startswith(f"only nominal rates of between are known, of which {efficiency:.1%} is assumed")
    assert "meshwright hardware measure under torchrun" in warning
    cluster = make_cluster(nodes=2, per_node=4)
    level = cluster.levels[1]
    link = level.link.model_copy(update={"measured_bytes_per_second": 2e10})
    known = cluster.model_copy(update={"levels": (cluster.levels[0], level.model_copy(update={"link": link}))})
    assert not any("nominal rates" in text for text in recommend(plan_space(cluster=known, fix=fix)).warnings)


def test_a_plan_inside_one_node_needs_no_network() -> None:
    found = recommend(plan_space(cluster=make_cluster(nodes=2, per_node=4), fix={"num_devices_used": "4"}))
    assert not any("nominal rates" in text for text in found.warnings)

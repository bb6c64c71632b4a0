"""The search against brute force, its certificate, and the laws of the optimum."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from planner_worlds import GIB, answer, make_cluster, make_model, plan_space, recommend

from costmodel.bounds import step_time_column, step_time_lower_bound
from costmodel.build import build_plan
from costmodel.estimate import estimate
from costmodel.memory import grid_peak_bytes
from costmodel.runtimes.grid import distinct_rows, group_rows
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import check, obeys_rules
from costmodel.specs import Infeasible, Plan, Recommendation
from planner.candidates import sift
from planner.certificate import make_certificate
from planner.evaluation import Search
from planner.space import Space, completer_of

LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)
# Brute force estimates every candidate, so each world allows fewer values than the default space, and leaves no stage open:
# test_completions.py has the worlds that do.
CLOSED = {"layers_per_stage": "even", "recompute_layers": "all"}
SMALL = {"micro_batch_size": "1,2", "num_model_chunks": "1,2", "pipeline_schedule": "none,gpipe,1f1b,interleaved_1f1b"}
WORLDS: dict[str, dict[str, Any]] = {
    "one node, ample memory": {"cluster": make_cluster(per_node=4), "batch": 8, "allow": SMALL},
    "one node, tight memory": {
        "model": LARGE,
        "cluster": make_cluster(memory_bytes=int(5.2 * GIB)),
        "allow": {**SMALL, "recompute": "none,full", "tensor_parallel_size": "1,4", "zero_stage": "0,1,3"},
    },
    "two nodes, slow link": {
        "model": make_model(layers=6, hidden=512, feed_forward=2048),
        "cluster": make_cluster(nodes=2, per_node=2, between=1e9),
        "allow": {**SMALL, "recompute": "none"},
        "batch": 32,
    },
    "odd devices, uneven stages": {
        "cluster": make_cluster(per_node=6),
        "model": make_model(layers=5),
        "batch": 12,
        "allow": {**SMALL, "recompute": "full", "tensor_parallel_size": "1,2"},
    },
    "megatron": {
        "runtime": "megatron",
        "batch": 24,
        "cluster": make_cluster(nodes=2, per_node=4),
        "allow": {"micro_batch_size": "1,3", "recompute": "none,full", "tensor_parallel_size": "2,4"},
    },
    "stated stages": {
        "fix": {"pipeline_parallel_size": "4", "layers_per_stage": "2,3,2,1"},
        "model": make_model(layers=8),
        "batch": 8,
        "allow": {"recompute": "none,core_attention"},
    },
}


def all_plans(space: Space) -> list[Plan]:
    """Every candidate that obeys the rules as an estimated plan, one at a time."""
    context = space.context
    grid = space.grid.take(obeys_rules(context, space.grid))
    plans = []
    for row in range(len(grid)):
        plan = build_plan(
            context.model,
            context.cluster,
            context.training,
            context.runtime,
            grid.parallel(row),
            recompute=grid.recompute_kind(row),
            layers_per_stage=context.layers_per_stage,
            axis_order=grid.order(row),
        )
        plans.append(plan.model_copy(update={"estimate": estimate(plan, context.runtime)}))
    return plans


@lru_cache
def world(name: str) -> tuple[Space, list[Plan], Recommendation]:
    stated = WORLDS[name]
    space = plan_space(**{**stated, "fix": {**CLOSED, **stated.get("fix", {})}})
    return space, all_plans(space), recommend(space)


def seconds(plan: Plan) -> float:
    assert plan.estimate is not None
    return plan.estimate.step_time_seconds.value


def fits(plan: Plan) -> bool:
    assert plan.estimate is not None
    return plan.estimate.fits


@pytest.mark.parametrize("name", WORLDS)
def test_the_best_equals_brute_force(name: str) -> None:
    _, plans, found = world(name)
    feasible = [plan for plan in plans if fits(plan)]
    assert len(plans) >= 60
    assert seconds(found.best) == pytest.approx(min(seconds(plan) for plan in feasible), rel=1e-9)
    assert found.certificate.gap == 0
    assert found.certificate.upper_seconds == pytest.approx(seconds(found.best), rel=1e-9)
    assert check(found.best) == []


def test_some_world_has_plans_that_do_not_fit() -> None:
    _, plans, found = world("one node, tight memory")
    assert 0 < sum(fits(plan) for plan in plans) < len(plans)
    unlimited = min(plans, key=seconds)
    assert seconds(unlimited) < seconds(found.best)  # memory really decides here


@pytest.mark.parametrize("name", WORLDS)
def test_certificate_counts_add_up(name: str) -> None:
    space, plans, found = world(name)
    certificate = found.certificate
    assert certificate.candidates == len(space.grid)
    assert certificate.rejected_by_rule == len(space.grid) - len(plans)
    # A candidate that its bound excludes is not asked whether it fits.
    assert (name == "one node, tight memory") <= certificate.rejected_by_memory <= sum(not fits(plan) for plan in plans)
    parts = (
        certificate.rejected_by_rule
        + certificate.rejected_by_memory
        + certificate.pruned_by_bound
        + certificate.evaluated
    )
    assert parts == certificate.candidates
    assert certificate.lower_seconds == certificate.upper_seconds
    by_rule = sum(rejection.count for rejection in found.rejections if rejection.rule != "memory")
    assert by_rule == certificate.rejected_by_rule
    assert all(rejection.example and rejection.fix for rejection in found.rejections)


@pytest.mark.parametrize("name", WORLDS)
def test_columns_equal_single_estimates(name: str) -> None:
    # Bounds, exact step times and memory of the whole grid are those of the plans one by one.
    space, plans, _ = world(name)
    context = space.context
    grid = space.grid.take(obeys_rules(context, space.grid))
    inputs = (context.model, context.cluster, context.training, context.runtime, grid)
    single = np.array([seconds(plan) for plan in plans])
    layers = context.layers_per_stage
    assert step_time_column(*inputs, layers_per_stage=layers) == pytest.approx(single, rel=1e-9)
    bounds = step_time_lower_bound(*inputs, layers_per_stage=layers)
    assert (bounds <= single * (1 + 1e-9)).all()
    assert (bounds > 0).all()
    if layers is None:
        needed = np.array([plan.estimate.peak_memory_bytes.device for plan in plans if plan.estimate])
        assert grid_peak_bytes(*inputs) == pytest.approx(needed, abs=2)


@pytest.mark.parametrize("name", WORLDS)
def test_alternatives_are_different_layouts_in_order(name: str) -> None:
    _, _, found = world(name)
    shown = [found.best, *found.alternatives]
    times = [seconds(plan) for plan in shown]
    assert times == sorted(times)
    assert all(fits(plan) and check(plan) == [] for plan in shown)
    assert len({plan.plan_hash for plan in shown}) == len(shown)
    layouts = {
        (
            plan.parallel.tensor_parallel_size,
            plan.parallel.pipeline_parallel_size,
            plan.parallel.data_parallel_replicate_size,
            plan.parallel.data_parallel_shard_size,
            plan.parallel.zero_stage,
        )
        for plan in shown
    }
    assert len(layouts) == len(shown)


def test_top_limits_the_plans_shown() -> None:
    space, _, _ = world("one node, ample memory")
    assert recommend(space, top=1).alternatives == ()
    assert len(recommend(space, top=3).alternatives) == 2


def test_an_unfinished_search_leaves_an_honest_gap() -> None:
    # Evaluate one poor candidate only: U is its time, and L still bounds the true optimum from below.
    space, plans, _ = world("two nodes, slow link")
    truth = min(seconds(plan) for plan in plans if fits(plan))
    found = Search(sift(space), completer_of(space), 0)
    worst = int(np.argmax(np.where(np.isfinite(found.lower), found.lower, 0)))
    found.refine(np.array([worst]))
    certificate = make_certificate(space, found, seconds=0.0)
    assert certificate.upper_seconds > truth
    assert 0 < certificate.lower_seconds <= truth * (1 + 1e-9)
    assert certificate.gap == pytest.approx(1 - certificate.lower_seconds / certificate.upper_seconds)
    assert certificate.gap > 0
    assert certificate.evaluated == 1
    open_rows = certificate.candidates - certificate.rejected_by_rule - certificate.rejected_by_memory
    open_rows -= certificate.pruned_by_bound + 1
    assert f"gap {certificate.gap:.2%} ({open_rows:,} candidates" in certificate.statement


def test_a_budget_of_nothing_still_gives_a_plan_that_fits() -> None:
    space, plans, _ = world("two nodes, slow link")
    truth = min(seconds(plan) for plan in plans if fits(plan))
    limited = recommend(space, node_budget=0)
    assert fits(limited.best)
    assert limited.certificate.lower_seconds <= truth * (1 + 1e-9) <= limited.certificate.upper_seconds * (1 + 2e-9)


def test_fastest_of_a_subset_equals_brute_force() -> None:
    space, plans, _ = world("one node, ample memory")
    candidates = sift(space)
    found = Search(candidates, completer_of(space), 10**9)
    times = np.array([seconds(plan) for plan in plans])
    for size in (1, 2, 4):  # tensor parallel sizes of the world
        rows = candidates.grid.tensor_parallel_size == size
        row = found.fastest(rows)
        assert row is not None
        assert rows[row]
        assert found.time[row] == pytest.approx(times[rows].min(), rel=1e-9)
    assert found.fastest(candidates.grid.tensor_parallel_size == 3) is None


def test_more_memory_never_slows_the_optimum_nor_makes_it_infeasible() -> None:
    times = []
    for gib in (4.2, 4.8, 5.0, 5.2, 5.5, 6.0, 80.0):
        space = plan_space(model=LARGE, cluster=make_cluster(memory_bytes=int(gib * GIB)), allow=SMALL)
        found = answer(space)
        times.append(float("inf") if isinstance(found, Infeasible) else found.certificate.upper_seconds)
    assert times[0] == float("inf")
    assert times[-1] < float("inf")
    assert all(later <= earlier for earlier, later in pairwise(times))
    assert len(set(times)) >= 3  # memory matters at several sizes, so the law is not vacuous


def test_more_bandwidth_never_slows_the_optimum() -> None:
    model = make_model(layers=6, hidden=512, feed_forward=2048)
    times = []
    for rate in (1e8, 1e9, 1e10, 1e11):
        cluster = make_cluster(nodes=2, per_node=4, between=rate)
        times.append(recommend(plan_space(model=model, cluster=cluster, allow=SMALL)).certificate.upper_seconds)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(times))
    assert times[-1] < times[0]


def test_a_larger_space_is_never_slower() -> None:
    free = recommend(plan_space(allow=SMALL)).certificate.upper_seconds
    for fix in ({"zero_stage": "3"}, {"pipeline_parallel_size": "4"}, {"recompute": "full"}):
        assert recommend(plan_space(allow=SMALL, fix=fix)).certificate.upper_seconds >= free


def test_ties_lie_within_the_error_of_the_model() -> None:
    _, _, found = world("one node, ample memory")
    assert found.ties
    shares = [float(tie.rsplit(":", 1)[1].strip().rstrip("%")) / 100 for tie in found.ties]
    band = load_runtime("torch").error_band
    assert all(0 <= share <= band + 0.001 for share in shares)  # printed to a tenth of a percent


def test_search_refuses_a_space_of_other_inputs() -> None:
    space = plan_space()
    context = space.context
    from planner.search import search

    with pytest.raises(ValueError, match="declared for another"):
        search(make_model(layers=7), context.cluster, context.training, context.runtime, space)


def test_training_time_counts_whole_steps_on_all_devices() -> None:
    space, _, _ = world("one node, ample memory")
    found = recommend(space, total_tokens=8 * 512 * 10 + 1)
    assert found.duration is not None
    assert found.duration.num_steps == 11
    assert found.duration.seconds == pytest.approx(11 * seconds(found.best))
    assert found.duration.device_hours == pytest.approx(found.duration.seconds * 4 / 3600)
    assert recommend(space).duration is None


def test_rows_are_grouped_by_equal_columns() -> None:
    rng = np.random.default_rng(1)
    columns = [rng.integers(0, 4, 200) for _ in range(3)]
    group = group_rows(columns)
    keys = list(zip(*columns, strict=True))
    for i in range(0, 200, 7):
        for j in range(200):
            assert (group[i] == group[j]) == (keys[i] == keys[j])


@pytest.mark.parametrize("number", [300, 5000])
@pytest.mark.parametrize("largest", [4, 1000, 1 << 40])
def test_one_row_stands_for_all_that_agree(largest: int, number: int) -> None:
    rng = np.random.default_rng(2)
    columns = [rng.integers(0, 4, number) * (largest // 4) for _ in range(3)]
    rows, which = distinct_rows(columns)
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    assert [keys[row] for row in rows[which]] == keys
    assert [keys[row] for row in rows] == sorted(set(keys))
    assert [keys.index(keys[row]) for row in rows] == rows.tolist()
    assert distinct_rows([np.zeros(0, dtype=np.int64)])[0].tolist() == []


def test_zero_stages_1_and_2_are_one_answer_under_a_pipeline() -> None:
    found = recommend(plan_space(fix={"pipeline_parallel_size": "2"}, allow={"zero_stage": "1,2"}), top=20)
    shown = [plan.parallel for plan in (found.best, *found.alternatives)]
    sizes = [(p.tensor_parallel_size, p.data_parallel_replicate_size, p.data_parallel_shard_size) for p in shown]
    assert len(sizes) > 2
    assert len(set(sizes)) == len(sizes)

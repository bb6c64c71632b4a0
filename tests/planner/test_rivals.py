"""Layouts people ask about: each is the fastest of its kind on this problem, or refused for a reason that can be checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planner_worlds import GIB, make_cluster, make_model, plan_space, recommend

from costmodel.build import build_plan
from costmodel.estimate import estimate
from costmodel.memory import grid_peak_bytes
from costmodel.runtimes.rules import obeys_rules
from costmodel.specs import MemoryLimit, ParallelConfig, Recommendation, Rival
from meshwright.inputs import load_cluster, load_model
from planner.candidates import sift
from planner.evaluation import exact_seconds
from planner.guide import deciding_terms
from planner.rivals import with_rivals
from planner.space import Space, declare_space
from planner.summary import summarize_parallel

LARGE = make_model(layers=8, hidden=1024, heads=16, key_values=16, feed_forward=4096, vocab=32000)
NODES = make_cluster(nodes=2, per_node=4)
DDP, ZERO3, ACROSS, MEGATRON = "pure DDP", "pure ZeRO-3", "TP across nodes", "Megatron's usual layout"


def rivals(space: Space) -> dict[str, Rival]:
    return {rival.name: rival for rival in with_rivals(recommend(space), space).rivals}


def fastest(space: Space, **allow: str) -> tuple[str, float]:
    """The fastest plan of a part of the default space, by evaluating all of it."""
    context = space.context
    inputs = (context.model, context.cluster, context.training, context.runtime)
    found = sift(declare_space(*inputs, allow=allow))
    grid = found.grid.take(found.fits)
    seconds = exact_seconds(context, grid)
    row = int(np.argmin(seconds))
    return summarize_parallel(grid.parallel(row), grid.recompute_kind(row)), float(seconds[row])


def test_a_rival_that_is_the_plan_says_so() -> None:
    found = rivals(plan_space(fix={"zero_stage": "0", "tensor_parallel_size": "1", "pipeline_parallel_size": "1"}))
    assert found[DDP].is_best
    assert found[DDP].slowdown == 0
    assert not found[ZERO3].is_best


def test_every_rival_is_the_fastest_of_its_kind() -> None:
    space = plan_space(model=LARGE, cluster=NODES, batch=32, sequence=1024)
    found = rivals(space)
    alone = {"tensor_parallel_size": "1", "pipeline_parallel_size": "1"}
    ddp = fastest(space, **alone, zero_stage="0", data_parallel_shard_size="1")
    assert (found[DDP].plan_summary, found[DDP].step_time_seconds) == (ddp[0], pytest.approx(ddp[1], rel=1e-12))
    zero = {"zero_stage": "3", "data_parallel_shard_size": "8", "hierarchical_partition_size": "off"}
    assert found[ZERO3].step_time_seconds == pytest.approx(fastest(space, **alone, **zero)[1], rel=1e-12)
    schedules = "none,1f1b,interleaved_1f1b"
    usual = fastest(
        space, tensor_parallel_size="4", pipeline_parallel_size="1", zero_stage="0,1", pipeline_schedule=schedules
    )
    assert found[MEGATRON].step_time_seconds == pytest.approx(usual[1], rel=1e-12)


def test_the_price_is_the_estimate_of_that_plan() -> None:
    space = plan_space(model=LARGE, cluster=NODES, batch=32, sequence=1024)
    answer = with_rivals(recommend(space), space)
    rival = next(rival for rival in answer.rivals if rival.name == ZERO3)
    count = int(rival.plan_summary.split(" m")[2].split()[0]) if rival.plan_summary else 0
    parallel = ParallelConfig(
        data_parallel_shard_size=8, zero_stage=3, micro_batch_size=32 // 8 // count, num_micro_batches=count
    )
    context = space.context
    plan = build_plan(context.model, context.cluster, context.training, context.runtime, parallel)
    made = estimate(plan, context.runtime)
    assert rival.step_time_seconds == pytest.approx(made.step_time_seconds.value, rel=1e-12)
    assert answer.best.estimate is not None
    best = answer.best.estimate.step_time_seconds.value
    assert rival.slowdown == pytest.approx(made.step_time_seconds.value / best - 1, abs=1e-12)
    assert rival.deciding == deciding_terms(plan.model_copy(update={"estimate": made}), answer.best)


def test_what_does_not_fit_says_what_its_leanest_needs() -> None:
    space = plan_space(model=LARGE, cluster=make_cluster(memory_bytes=int(6 * GIB)), batch=32)
    rival = rivals(space)[DDP]
    assert rival.step_time_seconds is None
    context = space.context
    inputs = (context.model, context.cluster, context.training, context.runtime)
    alone = {"tensor_parallel_size": "1", "pipeline_parallel_size": "1", "data_parallel_shard_size": "1"}
    grid = declare_space(*inputs, allow={**alone, "zero_stage": "0"}).grid
    needed = grid_peak_bytes(*inputs, grid.take(obeys_rules(context, grid)))
    assert rival.needed_bytes == needed.min() > context.cluster.device.memory_bytes


def test_a_runtime_without_zero_3_is_named() -> None:
    found = rivals(plan_space(model=LARGE, cluster=NODES, batch=48, runtime="megatron"))
    assert found[ZERO3].rejection == "runtime megatron does not support zero_stage 3; supported: 0, 1"
    assert found[ZERO3].plan_summary is None


def test_tensor_parallelism_across_nodes_is_priced_outside_the_searched_space() -> None:
    space = plan_space(model=LARGE, cluster=NODES, batch=32, sequence=1024)
    assert space.grid.tensor_parallel_size.max() == 4
    across = rivals(space)[ACROSS]
    assert across.plan_summary is not None
    assert across.plan_summary.startswith("tp8")
    assert across.slowdown is not None
    assert across.slowdown > 0
    assert "tensor_parallel" in {term.name for term in across.deciding}


def test_the_fastest_is_found_where_graphs_are_large() -> None:
    """GPT-3 on 1,024 devices: one graph takes most of the nodes that a rival may build, and is not the fastest's."""
    model, machine = load_model("gpt3-175b"), load_cluster("128x8xA100-SXM-80GB")
    fix = {"tensor_parallel_size": "8", "pipeline_parallel_size": "16", "pipeline_schedule": "1f1b"}
    space = plan_space(model=model, cluster=machine, batch=1536, sequence=2048, fix=fix)
    context = space.context
    across = {"tensor_parallel_size": "16", "context_parallel_size": "1", "zero_stage": "0,1"}
    usual = {"pipeline_schedule": "none,1f1b,interleaved_1f1b", "num_model_chunks": "1,2,4,8"}
    found = sift(
        declare_space(
            context.model, context.cluster, context.training, context.runtime,
            fix={"layers_per_stage": "even", "recompute_layers": "all"},
            allow={**across, **usual, "micro_batch_size": "1,2,4,8"},
        )
    )  # fmt: skip
    seconds = exact_seconds(context, found.grid.take(found.fits))
    assert len(seconds) > 500
    assert rivals(space)[ACROSS].step_time_seconds == pytest.approx(seconds.min(), rel=1e-12)


def test_heads_that_do_not_divide_stand_against_it() -> None:
    few = make_model(layers=4, hidden=1024, heads=4, key_values=4, feed_forward=4096)
    rejection = rivals(plan_space(model=few, cluster=NODES))[ACROSS].rejection
    assert rejection is not None
    assert "tensor_parallel_size 8 does not divide num_attention_heads 4" in rejection


def test_megatron_takes_the_shortest_pipeline_that_fits() -> None:
    space = plan_space(
        model=LARGE, cluster=make_cluster(nodes=2, per_node=2, memory_bytes=5_900_000_000), batch=16, sequence=1024
    )
    context = space.context
    inputs = (context.model, context.cluster, context.training, context.runtime)
    usual = {"tensor_parallel_size": "2", "zero_stage": "0,1", "pipeline_schedule": "none,1f1b"}
    fitting = [
        size
        for size in (1, 2)
        if sift(declare_space(*inputs, allow={**usual, "pipeline_parallel_size": str(size)})).fits.any()
    ]
    rival = rivals(space)[MEGATRON]
    assert fitting == [2]
    assert rival.plan_summary is not None
    assert " pp2 " in rival.plan_summary


def test_one_node_has_no_tensor_parallelism_across_nodes_and_one_device_no_rivals() -> None:
    assert set(rivals(plan_space())) == {DDP, ZERO3, MEGATRON}
    space = plan_space(cluster=make_cluster(per_node=1))
    alone = with_rivals(recommend(space), space)
    assert alone.rivals == ()
    assert alone.gradient_exchange is None


def test_fewer_devices_are_said() -> None:
    # 6 samples over 8 devices: data parallelism alone can use 6 of them.
    space = plan_space(model=LARGE, batch=6, sequence=1024)
    assert rivals(space)[DDP].num_devices_used == 6


@pytest.mark.parametrize("stated", [{"fix": {"tensor_parallel_size": "2"}}, {"fix": {"micro_batch_size": "2"}}])
def test_what_is_stated_of_the_batch_holds_for_rivals_and_what_is_stated_of_the_layout_does_not(
    stated: dict[str, Any],
) -> None:
    space = plan_space(model=LARGE, batch=32, **stated)
    summary = rivals(space)[DDP].plan_summary
    assert summary is not None
    assert summary.startswith("tp1 pp1 dp8 ")
    if "micro_batch_size" in stated["fix"]:
        assert " mb2 " in summary


def test_a_memory_limit_holds_for_rivals() -> None:
    free = plan_space(model=LARGE, batch=32)
    context = free.context
    limit = MemoryLimit(device_bytes=80 * GIB, fraction=0.075, usable_bytes=6 * GIB)
    inputs = (context.model, context.cluster, context.training, context.runtime)
    limited = declare_space(*inputs, memory_limit=limit)
    assert rivals(free)[DDP].needed_bytes is None
    assert rivals(limited)[DDP].needed_bytes is not None


def test_the_answer_itself_stays_the_same() -> None:
    space = plan_space()
    found = recommend(space)
    told: Recommendation = with_rivals(found, space)
    assert told.model_copy(update={"rivals": (), "gradient_exchange": None}) == found

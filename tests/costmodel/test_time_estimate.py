"""Whole estimates: the laws of step time, and the bound under it, on random plans."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from time_worlds import cluster, device, gpt, link, llama, with_constants, world

from costmodel.bounds import step_time_column, step_time_lower_bound
from costmodel.estimate import TERMS, estimate
from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.placement import LOOPED_SCHEDULES, SPLIT_BACKWARD_SCHEDULES, V_SCHEDULES
from costmodel.specs import Estimate, InputError, Plan, RuntimeProfile
from costmodel.uncertainty import error_band


def exposed(result: Estimate) -> dict[str, float]:
    return {term.name: term.exposed_seconds for term in result.terms}


@st.composite
def plans(draw) -> tuple[Plan, RuntimeProfile]:
    """Random valid layouts of an 8-layer model on up to 32 devices."""
    runtime = draw(st.sampled_from(["torch", "megatron"]))
    ranks = draw(st.sampled_from([1, 1, 2, 4]))
    schedules = SCHEDULES[1:] if runtime == "torch" else ("1f1b", "interleaved_1f1b")
    schedule = draw(st.sampled_from(schedules)) if ranks > 1 else "none"
    chunks = 2 if schedule in (*LOOPED_SCHEDULES, *V_SCHEDULES) else 1
    tensor = draw(st.sampled_from([1, 2, 4]))
    shard, replicate = draw(st.sampled_from([(1, 1), (1, 4), (4, 1), (2, 2)]))
    stages = [1, 2] if schedule in SPLIT_BACKWARD_SCHEDULES else [1, 2, 3]
    zero = 0 if shard == 1 else draw(st.sampled_from(stages if runtime == "torch" else [1]))
    sizes: dict[str, Any] = {
        "tensor_parallel_size": tensor,
        "sequence_parallel": tensor > 1 and draw(st.booleans()),
        "loss_parallel": tensor > 1,
        "pipeline_parallel_size": ranks,
        "pipeline_schedule": schedule,
        "num_model_chunks": chunks,
        "data_parallel_replicate_size": replicate if runtime == "torch" or shard == 1 else 1,
        "data_parallel_shard_size": shard,
        "zero_stage": zero,
        "hierarchical_partition_size": 2 if zero == 3 and shard == 4 and draw(st.booleans()) else None,
        "micro_batch_size": draw(st.sampled_from([1, 2])),
        "num_micro_batches": ranks * draw(st.integers(1 + (schedule == "dualpipe_v"), 4)),
    }
    return world(
        runtime=runtime,
        model=draw(st.sampled_from([gpt(), llama(), llama(window=256)])),
        machine=cluster(across=draw(st.sampled_from([1e8, 1e9, 1e10])), of=device(launch=2e-6)),
        recompute=draw(st.sampled_from(["none", "core_attention", "full"])),
        attention=draw(st.sampled_from(["fused", "unfused"])),
        clip=draw(st.booleans()),
        **sizes,
    )


def replaced(plan: Plan, **levels: float) -> Plan:
    """The plan on a cluster whose links are that many times as fast."""
    changed = [
        level.model_copy(
            update={"link": link(level.link.nominal_bytes_per_second * factor, latency=level.link.latency_seconds)}
        )
        for level, factor in zip(plan.cluster.levels, levels.values(), strict=True)
    ]
    return plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"levels": tuple(changed)})})


@given(plans())
@settings(max_examples=80, deadline=None)
def test_terms_sum_to_the_step_time_and_the_bound_lies_below(case):
    plan, runtime = case
    result = estimate(plan, runtime)
    seconds = result.step_time_seconds.value
    assert tuple(term.name for term in result.terms) == tuple(TERMS)
    assert sum(exposed(result).values()) == pytest.approx(seconds, rel=1e-9)
    grid = Grid.from_plan(plan)
    arguments = (plan.model, plan.cluster, plan.training, runtime, grid)
    assert step_time_column(*arguments)[0] == pytest.approx(seconds, rel=1e-12)
    assert step_time_lower_bound(*arguments)[0] <= seconds
    assert result.bound_by == max(result.terms, key=lambda term: term.exposed_seconds).name


@given(plans(), st.floats(1.0, 50.0))
@settings(max_examples=60, deadline=None)
def test_more_bandwidth_never_slows_a_step(case, factor):
    plan, runtime = case
    before = estimate(plan, runtime).step_time_seconds.value
    for inside, across in ((factor, 1.0), (1.0, factor)):
        faster = replaced(plan, inside=inside, across=across)
        assert estimate(faster, runtime).step_time_seconds.value <= before * (1 + 1e-12)
    memory = plan.cluster.device.model_copy(
        update={"memory_bandwidth_bytes_per_second": plan.cluster.device.memory_bandwidth_bytes_per_second * factor}
    )
    richer = plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"device": memory})})
    assert estimate(richer, runtime).step_time_seconds.value <= before * (1 + 1e-12)


@given(plans())
@settings(max_examples=40, deadline=None)
def test_one_device_per_axis_has_no_traffic_on_it(case):
    plan, runtime = case
    result, parallel = estimate(plan, runtime), plan.parallel
    axes = {entry.axis for entry in result.communication}
    seconds = exposed(result)
    if parallel.tensor_parallel_size == 1:
        assert "tp" not in axes
        assert seconds["tensor_parallel"] == 0
    if parallel.pipeline_parallel_size == 1:
        assert "pp" not in axes
        assert seconds["bubble"] == pytest.approx(0, abs=1e-9)
        assert seconds["pipeline_p2p"] == 0
    if parallel.data_parallel_size == 1 and not (plan.model.tie_word_embeddings and "pp" in axes):
        assert seconds["data_parallel_gradient"] == seconds["zero_gather"] == 0


QUIET = {"host_operations": 0.2, "straggler_growth": 0.0, "elementwise_traffic": 1.0, "sustained_rate": 0.9}


def test_the_bubble_of_even_stages_is_p_minus_1_over_m():
    """Ends that cost next to nothing beside 32 layers: the bubble over the rest of the lane is (p - 1)/m, over v chunks / v."""
    sizes = {"pipeline_parallel_size": 4, "num_micro_batches": 16, "micro_batch_size": 4}
    for schedule, chunks in (("1f1b", 1), ("interleaved_1f1b", 2)):
        plan, runtime = world(
            model=gpt(layers=32, vocab=8, tied=False),
            machine=cluster(across=1e13, inside=1e13, latency=0.0),
            pipeline_schedule=schedule,
            num_model_chunks=chunks,
            **sizes,
        )
        seconds = exposed(estimate(plan, with_constants(runtime, **QUIET)))
        lane = sum(seconds[name] for name in ("gemm", "attention", "memory_bound", "launch"))
        assert seconds["bubble"] / lane == pytest.approx(3 / 16 / chunks, rel=0.02)


def test_a_slow_last_stage_makes_the_others_wait():
    even, runtime = world(
        model=llama(vocab=128), pipeline_parallel_size=2, pipeline_schedule="1f1b", num_micro_batches=8, runtime="torch"
    )
    uneven, _ = world(
        model=llama(vocab=128),
        pipeline_parallel_size=2,
        pipeline_schedule="1f1b",
        num_micro_batches=8,
        runtime="torch",
        layers_per_stage=(2, 6),
    )
    slow, fast = estimate(uneven, runtime), estimate(even, runtime)
    assert slow.step_time_seconds.value > 1.3 * fast.step_time_seconds.value
    assert exposed(slow)["gemm"] > 1.4 * exposed(fast)["gemm"]  # the busiest rank is reported


def test_recomputation_costs_one_forward_in_four():
    """Full recomputation of a compute-bound step takes about 4/3 of it (arXiv 2205.05198: 30-40% more time)."""
    sizes = {"model": gpt(layers=24, hidden=4096, heads=32), "length": 2048, "num_micro_batches": 2}
    plain, runtime = world(**sizes)
    full, _ = world(**sizes, recompute="full")
    ratio = estimate(full, runtime).step_time_seconds.value / estimate(plain, runtime).step_time_seconds.value
    assert 1.25 < ratio < 1.36


def test_utilization_and_throughput_follow_from_the_step_time():
    plan, runtime = world(num_micro_batches=2, data_parallel_replicate_size=8)
    result = estimate(plan, runtime)
    seconds = result.step_time_seconds.value
    assert result.model_flops_utilization == pytest.approx(result.flops.model / (seconds * 8 * 1e14))
    assert result.tokens_per_second == pytest.approx(16 * 1024 / seconds)
    assert result.tokens_per_second_per_device == pytest.approx(result.tokens_per_second / 8)
    band = error_band(runtime, plan.cluster.device)
    assert result.step_time_seconds.low == pytest.approx(seconds / (1 + band))
    assert result.step_time_seconds.high == pytest.approx(seconds * (1 + band))


def test_a_plan_that_does_not_fit_is_estimated_all_the_same_and_marked():
    plan, runtime = world(model=gpt(layers=96, hidden=12288, heads=96), num_micro_batches=1)
    honest, ignored = estimate(plan, runtime), estimate(plan, runtime, ignore_memory=True)
    assert not honest.fits
    assert not honest.memory_ignored
    assert ignored.memory_ignored
    assert ignored.step_time_seconds == honest.step_time_seconds
    small, _ = world(num_micro_batches=1)
    assert not estimate(small, runtime, ignore_memory=True).memory_ignored


def test_optimizer_step_is_bytes_over_bandwidth_and_zero_divides_it():
    plan, runtime = world(runtime="torch", model=llama(), num_micro_batches=1, precision="fp32")
    exact = with_constants(runtime, sustained_rate=1.0, optimizer_traffic_factor=1.0)
    alone = exposed(estimate(plan, exact))["optimizer"]
    # fp32 AdamW with clipping: gradient 5 passes, parameter and two moments read and written.
    parameters = 8 * (1024 * 1024 * 2.5 + 3 * 1024 * 3072 + 2 * 1024) + 2 * 32000 * 1024 + 1024
    assert alone == pytest.approx(parameters * 4 * (5 + 2 * 3) / 1e12)
    sharded, _ = world(
        runtime="torch", model=llama(), num_micro_batches=1, precision="fp32", zero_stage=1, data_parallel_shard_size=8
    )
    assert exposed(estimate(sharded, exact))["optimizer"] == pytest.approx(
        alone / 8 + 2 * 7 * 1e-5
    )  # the norm's all-reduce


def test_clipping_waits_for_one_all_reduce_over_all_devices():
    sizes = {"num_micro_batches": 1, "data_parallel_replicate_size": 32}
    clipped, runtime = world(**sizes)
    free, _ = world(**sizes, clip=False)
    passes = 3 * (8 * (12 * 1024**2 + 13 * 1024) + (51200 + 4096 + 2) * 1024) * 4
    passes /= 1e12 * runtime.constants["sustained_rate"].value
    hops = 2 * (7 + 2) * 1e-5  # 8 devices in a ring, 4 nodes in a tree
    difference = exposed(estimate(clipped, runtime))["optimizer"] - exposed(estimate(free, runtime))["optimizer"]
    assert difference == pytest.approx(passes + hops, rel=1e-3)


def test_a_runtime_without_a_constant_is_bad_input():
    plan, runtime = world(num_micro_batches=1)
    constants = {name: value for name, value in runtime.constants.items() if name != "sustained_rate"}
    with pytest.raises(InputError, match="runtime 'megatron' states no constant sustained_rate"):
        estimate(plan, runtime.model_copy(update={"constants": constants}))


def test_bounds_of_a_large_grid_are_tight():
    """Thousands of rows; rows of one grid equal rows alone."""
    columns = {name: [] for name in Grid.__dataclass_fields__}
    axes = ((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4), (0, 1, 2, 3), (0, 1, 2), (0, 1), (8, 16, 32, 64))
    for tensor, ranks, micro, zero, recompute, sequence, count in product(*axes):
        row = dict.fromkeys(columns, 1) | {
            "tensor_parallel_size": tensor,
            "sequence_parallel": sequence * (tensor > 1),
            "loss_parallel": int(tensor > 1),
            "pipeline_parallel_size": ranks,
            "pipeline_schedule": 3 if ranks > 1 else 0,
            "data_parallel_replicate_size": 1 if zero else 8,
            "data_parallel_shard_size": 8 if zero else 1,
            "zero_stage": zero,
            "hierarchical_partition_size": 0,
            "micro_batch_size": micro,
            "num_micro_batches": count,
            "recompute": recompute,
            "context_parallel_size": 1,
            "context_parallel_method": 0,
            "axis_order": 0,
        }
        for name, value in row.items():
            columns[name].append(value)
    grid = Grid(**{name: np.array(values, dtype=np.int64) for name, values in columns.items()})
    plan, runtime = world(runtime="torch", model=llama(layers=32, hidden=4096, heads=32), num_micro_batches=1)
    arguments = (plan.model, cluster(nodes=64), plan.training, runtime)
    bound = step_time_lower_bound(*arguments, grid)
    assert len(grid) == 4608
    exact = step_time_column(*arguments, grid)
    assert (bound <= exact).all()
    assert np.median(1 - bound / exact) < 0.02
    assert np.quantile(1 - bound / exact, 0.99) < 0.02
    for row in (0, 1234, 4607):
        alone = step_time_lower_bound(*arguments, grid.take(np.array([row])))
        assert alone[0] == pytest.approx(bound[row], rel=1e-12)

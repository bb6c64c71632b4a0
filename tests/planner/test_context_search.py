"""Context parallelism in the search: which sizes and methods a space holds, what is proven of them, and the plans found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from planner_worlds import GIB, ask, holds_plan, make_cluster, make_model, plan_space, recommend

from costmodel.completions import StageColumns, completion_bytes, completion_seconds
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import check, obeys_rules
from costmodel.specs import InputError, ParallelConfig, Recommendation
from planner.candidates import device_bytes, sift
from planner.completion import problem_of
from planner.evaluation import exact_seconds
from planner.fewer_devices import least_device_seconds
from planner.maximize import largest_global_batch, longest_sequence
from planner.space import Space, describe_space

NONE, RING, ALL_GATHER, ALL_TO_ALL = range(4)
WIDE = make_model(layers=8, hidden=1024, heads=8, key_values=4, feed_forward=3072, vocab=32000)


def sizes_of(**world: Any) -> set[int]:
    return set(plan_space(**world).grid.context_parallel_size.tolist())


def methods_of(**world: Any) -> set[int]:
    return set(plan_space(**world).grid.context_parallel_method.tolist())


@pytest.mark.parametrize(
    ("sequence", "sizes"),
    [(4096, {1}), (8191, {1}), (8192, {1, 2}), (16384, {1, 2, 4}), (32768, {1, 2, 4, 8}), (1 << 20, {1, 2, 4, 8})],
)
def test_sequences_are_cut_where_4096_tokens_are_left_to_each_of_eight_devices(sequence: int, sizes: set[int]) -> None:
    assert sizes_of(runtime="megatron", sequence=sequence) == sizes


@pytest.mark.parametrize("runtime", ["torch", "transformers", "internevo"])
def test_a_runtime_that_cuts_no_sequences_has_one_value(runtime: str) -> None:
    space = plan_space(runtime=runtime, sequence=1 << 17)
    values = {axis.axis: axis.values for axis in describe_space(space)}
    assert values["context_parallel_size"] == ("1",)
    assert values["context_parallel_method"] == ("none",)


@pytest.mark.parametrize(
    ("runtime", "methods"),
    [
        ("megatron", {NONE, RING}),
        ("deepspeed", {NONE, ALL_TO_ALL}),
        ("torchtitan", {NONE, ALL_GATHER}),
        ("accelerate", {NONE, ALL_GATHER}),
    ],
)
def test_methods_are_those_of_the_runtime_that_others_do_not_beat(runtime: str, methods: set[int]) -> None:
    assert methods_of(runtime=runtime, sequence=1 << 17) == methods


def test_exchanges_join_where_a_ring_waits_for_slow_links() -> None:
    """Every head has its own keys, and two nodes share a sequence over a network that attention cannot hide."""
    world: dict[str, Any] = {
        "model": make_model(heads=8, key_values=8), "runtime": "megatron", "sequence": 16384,
        "allow": {"context_parallel_size": "4"}, "batch": 4,
    }  # fmt: skip
    fast = {**world, "cluster": make_cluster(per_node=4)}
    slow = {**world, "cluster": make_cluster(nodes=4, per_node=1, between=1e8)}
    assert methods_of(**fast) == {RING}
    assert methods_of(**slow) == {RING, ALL_TO_ALL}
    assert recommend(plan_space(**slow)).best.parallel.context_parallel_method == "all_to_all"


def test_a_ring_is_never_slower_than_gathering_and_never_needs_more() -> None:
    """Equation (2), on fast and slow links, for every candidate of a space that holds both."""
    for between in (1e9, 25e9, 200e9):
        space = plan_space(
            model=WIDE, cluster=make_cluster(nodes=2, per_node=4, between=between), runtime="megatron", sequence=16384,
            allow={"context_parallel_size": "2,4,8", "context_parallel_method": "ring,all_gather"},
        )  # fmt: skip
        grid = space.grid.take(obeys_rules(space.context, space.grid))
        ring = grid.take(grid.context_parallel_method == RING)
        gather = grid.take(grid.context_parallel_method == ALL_GATHER)
        assert len(ring) == len(gather) > 50
        assert (exact_seconds(space.context, ring) <= exact_seconds(space.context, gather) * (1 + 1e-12)).all()
        assert (device_bytes(space.context, ring) <= device_bytes(space.context, gather)).all()


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan", "deepspeed"])
def test_the_grid_holds_every_valid_configuration(runtime: str) -> None:
    """Independent of the enumeration: all combinations of plain ranges, filtered by the rules alone."""
    profile = load_runtime(runtime)
    space = plan_space(runtime=runtime, cluster=make_cluster(per_node=4), batch=4, sequence=16384)
    schedules = [name for name in ("none", "naive", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")]
    method = {"megatron": "ring", "torchtitan": "all_gather", "deepspeed": "all_to_all"}[runtime]
    ranges: Sequence[Sequence[Any]] = (
        (1, 2, 4), (False, True), (1, 2, 4), (1, 2, 4), [s for s in schedules if s in profile.schedules], (1, 2, 4),
        (1, 2, 4), (1, 2, 4), (0, 1, 2, 3), (1, 2, 4), (1, 2, 4),
    )  # fmt: skip
    expected = set()
    for tp, sp, cp, pp, schedule, v, replicate, shard, zero, micro, count in itertools.product(*ranges):
        if tp * cp * pp * replicate * shard != 4 or (schedule == "none") != (pp == 1):
            continue
        parallel = ParallelConfig(
            tensor_parallel_size=tp, sequence_parallel=sp, loss_parallel=tp > 1, context_parallel_size=cp,
            context_parallel_method=method if cp > 1 else None, pipeline_parallel_size=pp, pipeline_schedule=schedule,
            num_model_chunks=v, data_parallel_replicate_size=replicate, data_parallel_shard_size=shard, zero_stage=zero,
            micro_batch_size=micro, num_micro_batches=count,
        )  # fmt: skip
        if obeys_rules(space.context, Grid.from_parallel(parallel, "none"))[0]:
            expected.add(parallel)
    valid = space.grid.take(obeys_rules(space.context, space.grid))
    assert {valid.parallel(row) for row in range(len(valid))} == expected
    cut = [parallel for parallel in expected if parallel.context_parallel_size > 1]
    assert cut
    assert any(parallel.data_parallel_size == 1 and parallel.zero_stage > 0 for parallel in cut)


def every_time(space: Space) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Step times of the candidates that obey the rules and fit."""
    grid = space.grid.take(obeys_rules(space.context, space.grid))
    fits = device_bytes(space.context, grid) <= space.context.usable_bytes
    return exact_seconds(space.context, grid.take(fits))


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan", "deepspeed"])
def test_the_best_is_the_fastest_of_all_and_has_context_parallelism(runtime: str) -> None:
    """Two sequences on eight devices: data parallelism alone leaves six of them idle."""
    space = plan_space(
        model=WIDE, cluster=make_cluster(nodes=2, per_node=4), batch=2, sequence=32768, runtime=runtime,
        fix={"layers_per_stage": "even", "recompute_layers": "all"},
    )  # fmt: skip
    found = recommend(space)
    assert found.best.parallel.context_parallel_size > 1
    assert found.certificate.gap == 0
    assert found.certificate.upper_seconds == pytest.approx(float(every_time(space).min()), rel=1e-9)
    assert check(found.best) == []


def test_stated_sizes_and_methods_are_the_only_ones() -> None:
    world: dict[str, Any] = {"runtime": "megatron", "sequence": 2048, "model": WIDE}
    fixed = recommend(plan_space(**world, fix={"context_parallel_size": "2", "context_parallel_method": "all_gather"}))
    assert fixed.best.parallel.context_parallel_size == 2
    assert fixed.best.parallel.context_parallel_method == "all_gather"
    allowed = plan_space(**world, allow={"context_parallel_size": "1,4"})
    assert set(allowed.grid.context_parallel_size) == {1, 4}
    by_method = plan_space(**world, fix={"context_parallel_method": "ring"})
    assert set(by_method.grid.context_parallel_size) == {2}
    assert recommend(by_method).best.parallel.context_parallel_method == "ring"
    off = plan_space(**{**world, "sequence": 32768}, fix={"context_parallel_method": "none"})
    assert set(off.grid.context_parallel_size) == {1}


@pytest.mark.parametrize(
    ("runtime", "fix", "words"),
    [
        ("torch", {"context_parallel_size": "4"}, ["torch has no context parallelism", "valid: 1"]),
        ("megatron", {"context_parallel_size": "2", "context_parallel_method": "none"}, ["ring, all_gather, all_to_all"]),
        ("megatron", {"context_parallel_size": "1", "context_parallel_method": "ring"}, ["valid: null"]),
        ("deepspeed", {"context_parallel_method": "ring"}, ["does not support", "all_to_all"]),
        (
            "deepspeed",
            {"context_parallel_size": "8", "tensor_parallel_size": "1", "data_parallel_size": "2"},
            ["multiply to 16 devices", "has 8"],
        ),
        ("megatron", {"num_devices_used": "8", "context_parallel_size": "3"}, ["8 is not a multiple", "size 3"]),
        (
            "megatron",
            {"context_parallel_size": "4", "sequence_parallel": "true", "tensor_parallel_size": "2"},
            ["into 16 equal pieces", "valid context_parallel_size: 1, 2, 257, 514"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(runtime: str, fix: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        plan_space(runtime=runtime, sequence=2056, fix=fix)
    for word in words:
        assert word in str(error.value)


def test_zero_may_shard_over_context_parallel_devices_alone() -> None:
    """What one data-parallel device could not: so stage and shard size alone are no contradiction where sequences are cut."""
    fix = {"zero_stage": "1", "data_parallel_shard_size": "1"}
    space = plan_space(model=WIDE, runtime="megatron", sequence=16384, batch=1, fix=fix)
    valid = space.grid.take(obeys_rules(space.context, space.grid))
    assert set(valid.context_parallel_size[valid.zero_stage == 1]) == {2, 4}
    assert set(valid.context_parallel_size[valid.zero_stage == 0]) == {1}
    with pytest.raises(InputError, match="nothing to shard"):
        plan_space(runtime="torch", sequence=16384, fix=fix)


def neighbours_of(found: Recommendation, axis: str) -> dict[str, float | None]:
    return {step.value: step.step_time_seconds for step in found.neighbours if step.axis == axis}


def test_a_step_up_and_a_step_down_are_priced() -> None:
    world: dict[str, Any] = {"model": WIDE, "batch": 4, "sequence": 32768, "runtime": "megatron"}
    found = recommend(plan_space(**world, fix={"context_parallel_size": "4"}))
    steps = neighbours_of(found, "context_parallel_size")
    assert set(steps) == {"2", "8"}
    assert all(seconds is not None for seconds in steps.values())
    assert set(neighbours_of(found, "context_parallel_method")) == {"all_gather", "all_to_all"}
    free = recommend(plan_space(**world))
    for seconds in neighbours_of(free, "context_parallel_size").values():
        assert seconds is None or seconds >= free.certificate.upper_seconds * (1 - 1e-12)


def test_short_sequences_have_no_step() -> None:
    found = recommend(plan_space(runtime="megatron", sequence=4096))
    assert neighbours_of(found, "context_parallel_size") == {}


@pytest.mark.parametrize("runtime", ["megatron", "deepspeed", "torchtitan"])
def test_computation_alone_is_below_every_candidate(runtime: str) -> None:
    """Equation (1) of fewer_devices.py with sizes that share a sequence."""
    question = ask(model=WIDE, cluster=make_cluster(nodes=2, per_node=4), batch=8, sequence=32768, runtime=runtime)
    space = question.space()
    least = least_device_seconds(space.context, space.declared)
    assert least > 0
    for number in (1, 2, 4, 8):
        candidates = sift(question.narrowed(num_devices_used=number))
        assert least / number <= candidates.bounds.min(initial=float("inf"))
        assert number == 1 or (candidates.grid.context_parallel_size > 1).any()


@pytest.mark.parametrize("memory_gib", [8, 12])
def test_the_longest_sequence_is_that_of_a_linear_trial(memory_gib: int) -> None:
    """Sizes that are searched from 32,768 tokens on count at all lengths, so that none is missed."""
    cluster = make_cluster(per_node=4, memory_bytes=memory_gib * GIB)
    question = ask(model=WIDE, cluster=cluster, batch=4, sequence=4096, runtime="megatron", fix={"recompute": "full"})
    found = longest_sequence(question, 8192)
    assert isinstance(found, Recommendation)
    assert found.maximum is not None
    assert found.best.parallel.context_parallel_size > 1
    fitting = [length for length in range(8192, found.maximum.value + 6 * 8192, 8192) if holds(question, length)]
    assert found.maximum.value == fitting[-1]


def holds(question: Any, length: int) -> bool:
    """Whether a search finds a plan that fits, all sizes tried."""
    training = question.training.model_copy(update={"sequence_length": length})
    space = question.changed(training=training, allow={"context_parallel_size": "1,2,4"}).space()
    return holds_plan(space)


def test_the_largest_batch_counts_what_is_cut() -> None:
    """d = n / (t c p): a sequence that one device cannot hold is shared, and the others take more sequences."""
    cluster = make_cluster(per_node=4, memory_bytes=8 * GIB)
    question = ask(model=WIDE, cluster=cluster, batch=4, sequence=32768, runtime="deepspeed")
    found = largest_global_batch(question)
    assert isinstance(found, Recommendation)
    assert found.maximum is not None
    parallel = found.best.parallel
    assert found.maximum.value == parallel.data_parallel_size * parallel.micro_batch_size
    whole = largest_global_batch(question.changed(fix={"context_parallel_size": "1"}))
    assert not isinstance(whole, Recommendation) or whole.maximum is None or whole.maximum.value <= found.maximum.value


def test_memory_and_time_of_completions_equal_those_of_plans() -> None:
    """Tables of stages are made for rows that share a sequence too."""
    space = plan_space(
        model=WIDE, cluster=make_cluster(nodes=2, per_node=4), batch=4, sequence=16384, runtime="megatron",
        allow={"pipeline_parallel_size": "2", "context_parallel_size": "2", "num_model_chunks": "1"},
    )  # fmt: skip
    grid = space.grid.take(obeys_rules(space.context, space.grid))
    layers = np.full((len(grid), 2), 4, dtype=np.int64)
    recomputed = np.where((grid.recompute > 0)[:, None], layers, 0)
    stages = StageColumns.contiguous(layers, recomputed)
    problem = problem_of(space.context)
    assert completion_seconds(problem, grid, stages) == pytest.approx(exact_seconds(space.context, grid), rel=1e-11)
    assert completion_bytes(problem, grid, stages).max(axis=1) == pytest.approx(device_bytes(space.context, grid))

"""What a dry step counts: against closed forms, against later steps, and the whole against what is extended."""

from __future__ import annotations

from typing import Any

import pytest
from dry_worlds import INTERLEAVED, PIPELINE, SEQUENCE, TENSOR, dry, make_plan, zero

from costmodel.specs import Plan
from executor.dry_run_extend import extend, micro_batch_counts, representatives, with_micro_batches
from executor.dry_run_memory import NO_TASK, Span, windows_of
from executor.dry_run_traffic import Route, axis_between, sent_bytes

HIDDEN, WIDTH, VOCABULARY, LAYERS, TOKENS = 64, 176, 259, 4, 256


@pytest.mark.parametrize(
    "sizes", [{"num_micro_batches": 2}, zero(3), {**SEQUENCE, **PIPELINE}], ids=["one", "zero3", "pp"]
)
def test_a_step_after_the_optimizer_alone_is_like_any_later_step(sizes: dict[str, Any]) -> None:
    """Optimizer state is all that an earlier step leaves behind."""
    plan = make_plan(**sizes)
    assert dry(plan) == dry(plan, earlier_steps=1)


def test_flops_are_those_of_the_products_and_the_causal_half_of_attention() -> None:
    step = dry(make_plan(num_micro_batches=1))
    projections = HIDDEN * (2 * HIDDEN + 2 * HIDDEN // 2 + 3 * WIDTH)
    products = 2 * TOKENS * (LAYERS * projections + HIDDEN * VOCABULARY)
    scores = 2 * TOKENS * TOKENS * HIDDEN / 2  # one product of 8 heads of 8
    assert step.flops == 3 * products + LAYERS * (2 + 5) * scores


def test_state_is_fp32_parameters_gradients_and_moments() -> None:
    """Rows of every tensor are padded to a multiple of the shards, moments are not."""
    plan = make_plan(**zero(3, shards=2))
    parameters, gradients, optimizer_state = dry(plan).state
    layer = HIDDEN * (2 * HIDDEN + 2 * HIDDEN // 2 + 3 * WIDTH) + 2 * HIDDEN
    rows = (VOCABULARY + 1) // 2
    shard = LAYERS * layer // 2 + HIDDEN // 2 + 2 * rows * HIDDEN
    tensors = LAYERS * 9 + 3
    assert parameters == gradients == 4 * shard
    assert optimizer_state == 2 * 4 * shard + 4 * tensors


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        pytest.param({"zero_stage": 1, "data_parallel_shard_size": 2}, 5, marks=pytest.mark.slow),
        pytest.param({"zero_stage": 2, "data_parallel_shard_size": 2}, 5, marks=pytest.mark.slow),
        ({"zero_stage": 3, "data_parallel_shard_size": 2}, 5),
        (PIPELINE, 7),
        pytest.param({**PIPELINE, "pipeline_schedule": "gpipe"}, 7, marks=pytest.mark.slow),
        (INTERLEAVED, 8),
    ],
    ids=["zero1", "zero2", "zero3", "1f1b", "gpipe", "interleaved"],
)
def test_two_counts_of_micro_batches_say_exactly_what_more_do(sizes: dict[str, Any], count: int) -> None:
    plan = make_plan(**{**sizes, "num_micro_batches": count})
    counts = micro_batch_counts(plan.parallel)
    assert len(counts) == 2
    assert count > max(counts)
    for rank in range(plan.parallel.pipeline_parallel_size):
        steps = {each: dry(with_micro_batches(plan, each), rank) for each in counts}
        whole, extended = dry(plan, rank), extend(steps, plan)
        assert extended == whole


def test_only_gpipe_s_ranks_in_the_middle_stand_for_one_another() -> None:
    def chosen(**sizes: Any) -> dict[int, int]:
        plan = make_plan(**{**PIPELINE, "pipeline_parallel_size": 4, **sizes})
        return representatives(plan)

    assert chosen() == {0: 0, 1: 1, 2: 2, 3: 3}
    assert chosen(pipeline_schedule="gpipe") == {0: 0, 1: 1, 2: 1, 3: 3}
    uneven = make_plan(
        **{**PIPELINE, "pipeline_parallel_size": 3, "pipeline_schedule": "gpipe"}, layers_per_stage=(1, 2, 1)
    )
    assert representatives(uneven) == {0: 0, 1: 1, 2: 2}


def test_tensor_parallel_traffic_is_what_the_styles_say() -> None:
    """2 all-reduces forward and 2 backward a layer; the embedding's output and the logits are gathered, the head's input
    gradient is reduced; and the step's own sum of 2 float64.
    """
    block = TOKENS * HIDDEN * 2
    traffic = dry(make_plan(**TENSOR)).traffic
    assert set(traffic) == {Route("tp", "all_gather", 2), Route("tp", "all_reduce", 2)}
    reduced, gathered = traffic[Route("tp", "all_reduce", 2)], traffic[Route("tp", "all_gather", 2)]
    assert (reduced.count, reduced.payload_bytes) == (4 * LAYERS + 1 + 1, (4 * LAYERS + 1) * block + 16)
    assert (gathered.count, gathered.payload_bytes) == (2, block + TOKENS * (VOCABULARY + 1) * 2)


def test_axis_of_a_group() -> None:
    sizes = {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "tp": 2}
    assert axis_between([0, 1], sizes) == "tp"
    assert axis_between([1, 3], sizes) == "dp_shard"
    assert axis_between([2, 6], sizes) == "pp"
    assert axis_between(list(range(8)), sizes) == "world"


def test_bytes_of_rings() -> None:
    for op, sent in (
        ("all_gather", 75),
        ("reduce_scatter", 75),
        ("all_reduce", 150),
        ("all_to_all", 75),
        ("send", 100),
    ):
        assert sent_bytes(Route("dp_shard", op, 4), 100) == sent
    assert sent_bytes(Route("dp_shard", "reduce_scatter", 4), 100, gloo=True) == 150


def test_windows_end_with_the_first_and_begin_with_the_last_backward() -> None:
    tasks = (NO_TASK, 5, NO_TASK, 6, NO_TASK, 7, NO_TASK)
    spans = [Span(index, "forward", task) for index, task in enumerate(tasks)] + [Span(7, "optimizer", NO_TASK)]
    assert windows_of(spans) == ["first", "first", "steady", "steady", "steady", "last", "last", "optimizer"]


def test_a_plan_keeps_its_batch_with_fewer_micro_batches() -> None:
    plan: Plan = make_plan(**{**zero(3), "num_micro_batches": 8})
    fewer = with_micro_batches(plan, 2)
    assert (fewer.parallel.num_micro_batches, fewer.training.global_batch_size) == (2, 4)

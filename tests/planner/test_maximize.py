"""The largest values that fit, against trying them all."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from planner_worlds import GIB, ask, holds_plan, make_cluster, make_model

from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules import divisors, evaluate
from costmodel.specs import Infeasible, InputError, Maximum, Recommendation
from planner.infeasible import least_memory
from planner.inquiry import Inquiry
from planner.maximize import largest, largest_global_batch, largest_micro_batch, longest_sequence

LARGE = make_model(layers=6, hidden=1024, heads=12, key_values=12, feed_forward=4096, vocab=32000)


def recommended(answer: Recommendation | Infeasible) -> tuple[Recommendation, Maximum]:
    assert isinstance(answer, Recommendation)
    assert answer.maximum is not None
    return answer, answer.maximum


def fits(inquiry: Inquiry, **axes: int) -> bool:
    """Whether a search finds a plan that fits."""
    return holds_plan(inquiry.narrowed(**axes))


def with_length(inquiry: Inquiry, length: int) -> Inquiry:
    return inquiry.changed(training=inquiry.training.model_copy(update={"sequence_length": length}))


@pytest.mark.parametrize("seed", range(40))
def test_largest_finds_what_trying_every_value_finds(seed: int) -> None:
    """Where fitting is monotone along every residue modulo the period, and only there."""
    draw = random.Random(seed)
    step = draw.choice([1, 2, 5])
    period = step * draw.choice([1, 2, 3, 6])
    limit = draw.randrange(1, 300)
    most = {residue: draw.randrange(-50, 400) for residue in range(0, period, step)}
    start = step * draw.randrange(1, 4)

    def value_fits(value: int) -> bool:
        return value <= most[value % period]

    everything = [value for value in range(start, limit + 1, step) if value_fits(value)]
    found = largest(value_fits, start=start, step=step, period=period, limit=limit)
    assert found == max(everything, default=None)


@pytest.mark.parametrize(("per_node", "memory_gib"), [pytest.param(4, 8, marks=pytest.mark.slow), (2, 8), (4, 6)])
def test_the_longest_sequence_is_that_of_a_linear_trial(per_node: int, memory_gib: int) -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=per_node, memory_bytes=memory_gib * GIB), batch=4)
    found, maximum = recommended(longest_sequence(inquiry, 512))
    tried = [512 * k for k in range(1, 3 + maximum.value // 512)]
    assert maximum.value == max(length for length in tried if fits(with_length(inquiry, length)))
    assert found.best.training.sequence_length == maximum.value
    assert maximum.next_value == maximum.value + 512
    assert maximum.nearest_miss is not None
    assert maximum.nearest_miss.needed_bytes > memory_gib * GIB
    assert not {trial.value: trial for trial in maximum.trials}[maximum.next_value].fits


def test_lengths_that_a_rule_needs_divisible_are_not_missed() -> None:
    """Three tensor ranks with sequence parallel take every third multiple of 512 alone, so neighbours prove nothing."""
    stated = {"tensor_parallel_size": "3", "sequence_parallel": "true"}
    model = make_model(layers=4, hidden=768, heads=12, key_values=12, feed_forward=3072, vocab=30720)
    inquiry = ask(model=model, cluster=make_cluster(per_node=3, memory_bytes=8 * GIB), batch=4, allow=stated)
    _, maximum = recommended(longest_sequence(inquiry, 512))
    tried = [512 * k for k in range(1, 4 + maximum.value // 512)]
    fitting = [length for length in tried if fits(with_length(inquiry, length))]
    assert maximum.value == fitting[-1]
    assert all(length % 1536 == 0 for length in fitting)
    assert "breaks a rule in every layout" in maximum.statement
    assert maximum.nearest_miss is None


def test_short_sequences_are_found_in_finer_steps() -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=1, memory_bytes=16 * GIB), batch=4)
    _, whole = recommended(longest_sequence(inquiry))
    assert (whole.granularity, whole.value % 1024) == (1024, 0)
    # One device whose memory ends between the lengths of 128 and 1024.
    need = [least_memory(with_length(inquiry, length).narrowed()) for length in (128, 1024)]
    assert need[0] is not None
    assert need[1] is not None
    between = int((need[0].needed_bytes + need[1].needed_bytes) / 2)
    _, fine = recommended(longest_sequence(inquiry.changed(cluster=make_cluster(per_node=1, memory_bytes=between))))
    assert (fine.granularity, fine.value % 128) == (128, 0)
    assert 128 <= fine.value < 1024


def test_not_even_the_shortest_sequence_fits() -> None:
    answer = longest_sequence(ask(model=LARGE, cluster=make_cluster(per_node=2, memory_bytes=4 * GIB), batch=4))
    assert isinstance(answer, Infeasible)
    assert answer.nearest_miss is not None
    assert answer.nearest_miss.needed_bytes > 4 * GIB


@pytest.mark.parametrize("memory_gib", [6, 8, 16])
def test_the_largest_micro_batch_is_that_of_a_linear_trial(memory_gib: int) -> None:
    batch = 96
    inquiry = ask(
        model=LARGE, cluster=make_cluster(per_node=4, memory_bytes=memory_gib * GIB), batch=batch, sequence=1024
    )
    found, maximum = recommended(largest_micro_batch(inquiry))
    fitting = [size for size in divisors(batch) if fits(inquiry, micro_batch_size=size)]
    assert maximum.value == max(fitting) == found.best.parallel.micro_batch_size
    larger = [size for size in divisors(batch) if size > maximum.value]
    assert maximum.next_value == min(larger, default=None)


def test_the_largest_micro_batch_is_one_of_those_stated() -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(memory_bytes=40 * GIB), batch=64, allow={"micro_batch_size": "2,4"})
    found, maximum = recommended(largest_micro_batch(inquiry))
    assert maximum.value == found.best.parallel.micro_batch_size == 4
    assert maximum.next_value is None


def test_fixed_micro_batches_contradict_the_question() -> None:
    fixed = ask(fix={"micro_batch_size": "2"})
    for question, name in ((largest_micro_batch, "micro_batch_size"), (largest_global_batch, "global_batch_size")):
        with pytest.raises(InputError, match=f"--maximize {name} decides micro_batch_size; leave out --fix"):
            question(fixed)


def held_at_once(inquiry: Inquiry, batch: int) -> bool:
    """Whether some candidate trains the batch with one micro-batch per pipeline stage and fits."""
    training = inquiry.training.model_copy(update={"global_batch_size": batch})
    question = inquiry.changed(training=training)
    space = question.narrowed(num_devices_used=inquiry.cluster.num_devices, micro_batch_size=divisors(batch))
    kept: Grid = space.grid.take(np.flatnonzero(space.grid.num_micro_batches == space.grid.pipeline_parallel_size))
    return bool(len(kept)) and holds_plan(replace(space, grid=kept, outcomes=evaluate(space.context, kept)))


@pytest.mark.parametrize("memory_gib", [6, 7])
def test_the_largest_batch_without_accumulation_is_that_of_a_linear_trial(memory_gib: int) -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=4, memory_bytes=memory_gib * GIB), batch=1, sequence=4096)
    found, maximum = recommended(largest_global_batch(inquiry))
    most = max(batch for batch in range(1, maximum.value + 9) if held_at_once(inquiry, batch))
    assert maximum.value == most == found.best.training.global_batch_size
    assert found.best.parallel.num_micro_batches == found.best.parallel.pipeline_parallel_size
    assert maximum.next_value is not None
    assert not held_at_once(inquiry, maximum.next_value)


def test_a_stated_number_of_micro_batches_is_accumulation_that_is_asked_for() -> None:
    cluster = make_cluster(per_node=2, memory_bytes=8 * GIB)
    once = ask(model=LARGE, cluster=cluster, sequence=2048, fix={"pipeline_parallel_size": "1"})
    four = once.changed(fix={**once.fix, "num_micro_batches": "4"})
    _, alone = recommended(largest_global_batch(once))
    found, more = recommended(largest_global_batch(four))
    assert found.best.parallel.num_micro_batches == 4
    assert more.value > alone.value


def test_no_batch_fits() -> None:
    answer = largest_global_batch(ask(model=LARGE, cluster=make_cluster(per_node=2, memory_bytes=4 * GIB)))
    assert isinstance(answer, Infeasible)
    assert answer.nearest_miss is not None


def test_learned_positions_end_the_sequence() -> None:
    """A model of 4,096 learned positions trains no longer sequences, however much memory there is."""
    model = make_model().model_copy(update={"learned_position_embeddings": True})
    inquiry = ask(model=model, cluster=make_cluster(), batch=4)
    found = longest_sequence(inquiry)
    assert isinstance(found, Recommendation)
    assert found.maximum is not None
    assert (found.maximum.value, found.maximum.next_value) == (4096, None)
    assert "the model has 4,096 positions" in found.maximum.statement
    with pytest.raises(InputError, match=r"steps of 8192 exceed the 4096 learned .* at most 4096"):
        longest_sequence(inquiry, granularity=8192)

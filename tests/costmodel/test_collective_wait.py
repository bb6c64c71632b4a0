"""What a runtime's ranks wait for one another adds to a step: a time per collective, whatever the micro-batch."""

import pytest
from time_worlds import cluster, gpt, with_constants, world

from costmodel.bounds import step_time_lower_bound
from costmodel.estimate import estimate
from costmodel.runtimes.grid import Grid, RecomputeKind

WAIT, LAYERS, MICRO_BATCHES = 1e-4, 8, 3
COLLECTIVES_OF_ENDS = 5
"""The embedding's output, the input gradient of the head, and three of the parallel loss."""


def added(*, tensor: int, micro_batch: int = 1, recompute: RecomputeKind = "none") -> float:
    """Seconds that waiting adds to a step on one node."""
    plan, runtime = world(
        runtime="megatron-deepspeed",
        model=gpt(layers=LAYERS),
        machine=cluster(nodes=1),
        recompute=recompute,
        tensor_parallel_size=tensor,
        loss_parallel=tensor > 1,
        micro_batch_size=micro_batch,
        num_micro_batches=MICRO_BATCHES,
    )
    without, waiting = (
        estimate(plan, with_constants(runtime, collective_wait_seconds=wait)).step_time_seconds.value
        for wait in (0.0, WAIT)
    )
    return waiting - without


@pytest.mark.parametrize(("tensor", "doublings"), [(2, 1), (8, 3)])
def test_every_all_reduce_of_a_layer_waits_twice_per_doubling(tensor: int, doublings: int) -> None:
    reductions = 4 * LAYERS + COLLECTIVES_OF_ENDS
    assert added(tensor=tensor) == pytest.approx(MICRO_BATCHES * reductions * 2 * doublings * WAIT)


def test_a_larger_micro_batch_does_not_wait_longer() -> None:
    assert added(tensor=8, micro_batch=4) == pytest.approx(added(tensor=8))


def test_a_recomputed_forward_waits_again() -> None:
    once, again = added(tensor=8), added(tensor=8, recompute="full")
    assert again - once == pytest.approx(MICRO_BATCHES * 2 * LAYERS * 2 * 3 * WAIT)


def test_nobody_waits_without_tensor_parallelism() -> None:
    assert added(tensor=1) == 0


def test_the_lower_bound_waits_too() -> None:
    plan, runtime = world(
        runtime="megatron-deepspeed", machine=cluster(nodes=1), tensor_parallel_size=8, loss_parallel=True
    )
    slow = with_constants(runtime, collective_wait_seconds=1e-3)
    bound = step_time_lower_bound(plan.model, plan.cluster, plan.training, slow, Grid.from_plan(plan))
    assert bound[0] == pytest.approx(estimate(plan, slow).step_time_seconds.value, rel=1e-9)

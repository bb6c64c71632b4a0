"""The longest path against a plain simulation, closed forms of even stages, and the bounds made of explicit paths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.paths import Paths
from costmodel.pipeline import build_topology, longest_path
from costmodel.schedules import rank_operations

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved_1f1b")


def ends(schedule, ranks, chunks, micro_batches, forward, backward, transfer, start=None) -> np.ndarray:
    """Ends of the ranks for one candidate."""
    topology = build_topology(schedule, ranks, chunks, micro_batches)
    begin = np.zeros(ranks) if start is None else start
    return longest_path(
        topology,
        forward=np.asarray(forward)[:, None],
        backward=np.asarray(backward)[:, None],
        transfer=np.asarray(transfer)[:, None],
        start=begin[:, None],
    )[:, 0]


def simulate(schedule, ranks, chunks, micro_batches, forward, backward, transfer, start) -> np.ndarray:
    """The same by events, one operation at a time, without levels or arrays."""
    total = ranks * chunks
    orders = [
        list(rank_operations(schedule, rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=micro_batches))
        for rank in range(ranks)
    ]
    clock, arrived = list(start), {}
    lane_free = [[0.0] * ranks, [0.0] * ranks]
    while any(orders):
        for rank, order in enumerate(orders):
            while order:
                operation = order[0]
                stage = operation.chunk * ranks + rank
                source = stage + (1 if operation.backward else -1)
                key = (operation.backward, source, operation.micro_batch)
                if 0 <= source < total and key not in arrived:
                    break
                order.pop(0)
                durations = backward if operation.backward else forward
                clock[rank] = max(clock[rank], arrived.get(key, 0.0)) + durations[stage]
                target = stage + (-1 if operation.backward else 1)
                if 0 <= target < total:
                    free = lane_free[operation.backward]
                    edge = (rank - 1) % ranks if operation.backward else rank
                    free[rank] = max(clock[rank], free[rank]) + transfer[edge]
                    arrived[operation.backward, stage, operation.micro_batch] = free[rank]
    return np.array(clock)


@st.composite
def pipelines(draw, even=False):
    schedule = draw(st.sampled_from(SCHEDULES))
    ranks = draw(st.integers(2, 6))
    chunks = draw(st.integers(1, 3)) if schedule == "interleaved_1f1b" else 1
    micro_batches = draw(st.integers(1, 14))
    if schedule == "interleaved_1f1b" and micro_batches % max(1, micro_batches // ranks):
        micro_batches = micro_batches // ranks * ranks
    seconds = st.floats(0.01, 10.0)
    stages = ranks * chunks
    if even:
        forward, backward = [draw(seconds)] * stages, [draw(seconds)] * stages
    else:
        forward = draw(st.lists(seconds, min_size=stages, max_size=stages))
        backward = draw(st.lists(seconds, min_size=stages, max_size=stages))
    transfer = draw(st.lists(st.floats(0.0, 5.0), min_size=ranks, max_size=ranks))
    return schedule, ranks, chunks, micro_batches, forward, backward, transfer


@given(pipelines(), st.floats(0.0, 5.0))
@settings(max_examples=150, deadline=None)
def test_longest_path_equals_a_simulation_by_events(pipeline, first):
    start = np.linspace(first, 0.0, pipeline[1])
    assert ends(*pipeline, start=start) == pytest.approx(simulate(*pipeline, start), rel=1e-12)


@given(pipelines(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_longer_operation_never_shortens_the_step(pipeline, data):
    schedule, ranks, chunks, micro_batches, forward, backward, transfer = pipeline
    index = data.draw(st.integers(0, ranks * chunks - 1))
    slower = list(forward)
    slower[index] += 1.0
    base = ends(*pipeline)
    assert (ends(schedule, ranks, chunks, micro_batches, slower, backward, transfer) >= base).all()
    assert (ends(schedule, ranks, chunks, micro_batches, forward, backward, [c + 0.1 for c in transfer]) >= base).all()


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 4), (4, 16), (8, 64)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_even_stages_take_m_plus_p_minus_1_slots(schedule, ranks, micro_batches):
    """(m + p - 1) t, hence a bubble of (p - 1)/m of the ideal time (arXiv 2104.04473, section 2.2.1)."""
    forward, backward = 1.0, 2.0
    step = ends(schedule, ranks, 1, micro_batches, [forward] * ranks, [backward] * ranks, [0.0] * ranks).max()
    ideal = micro_batches * (forward + backward)
    assert step == pytest.approx((micro_batches + ranks - 1) * (forward + backward))
    assert (step - ideal) / ideal == pytest.approx((ranks - 1) / micro_batches)
    assert (step - ideal) / step == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 6])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks):
    """(p - 1) t / v (arXiv 2104.04473, section 2.2.2)."""
    ranks, micro_batches, total = 4, 16, 3.0
    stages = ranks * chunks
    step = ends(
        "interleaved_1f1b",
        ranks,
        chunks,
        micro_batches,
        [1.0 / chunks] * stages,
        [2.0 / chunks] * stages,
        [0.0] * ranks,
    ).max()
    assert step - micro_batches * total == pytest.approx((ranks - 1) * total / chunks)


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_a_naive_pipeline_is_never_faster_than_one_device(pipeline):
    _, ranks, _, micro_batches, forward, backward, transfer = pipeline
    one = micro_batches * (sum(forward[:ranks]) + sum(backward[:ranks]))
    step = ends("naive", ranks, 1, micro_batches, forward[:ranks], backward[:ranks], transfer).max()
    hops = 2 * micro_batches * sum(transfer[: ranks - 1])
    assert step == pytest.approx(one + hops)


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_every_rank_is_busy_for_its_own_work_at_least(pipeline):
    _, ranks, chunks, micro_batches, forward, backward, _ = pipeline
    work = np.array(forward) + np.array(backward)
    assert (ends(*pipeline) >= micro_batches * work.reshape(chunks, ranks).sum(axis=0) * (1 - 1e-12)).all()


def bounds(schedule, ranks, micro_batches, forward, backward, transfer) -> np.ndarray:
    paths = Paths(
        forward=np.array([forward]),
        backward=np.array([backward]),
        transfer=np.array([transfer]),
        micro_batches=np.array([[float(micro_batches)]]),
    )
    method = {
        "naive": paths.naive,
        "gpipe": paths.gpipe,
        "1f1b": paths.one_forward_one_backward,
        "interleaved_1f1b": paths.interleaved,
    }[schedule]
    return method()[0]


@given(pipelines())
@settings(max_examples=600, deadline=None)
def test_explicit_paths_never_exceed_the_longest_path_on_any_rank(pipeline):
    schedule, ranks, _, micro_batches, *durations = pipeline
    assert (bounds(schedule, ranks, micro_batches, *durations) <= ends(*pipeline) * (1 + 1e-12)).all()


@given(pipelines())
@settings(max_examples=100, deadline=None)
def test_explicit_paths_of_naive_and_gpipe_are_the_longest(pipeline):
    schedule, ranks, _, micro_batches, *durations = pipeline
    if schedule in ("naive", "gpipe"):
        slow_lane = max(durations[2]) > min(durations[0] + durations[1])
        if not slow_lane:  # a message slower than a pass queues, which a path over compute lanes does not see
            assert bounds(schedule, ranks, micro_batches, *durations)[0] == pytest.approx(ends(*pipeline)[0])


@pytest.mark.parametrize(("schedule", "worst"), [("1f1b", 0.02), ("interleaved_1f1b", 0.02)])
def test_explicit_paths_are_tight(schedule, worst):
    """Median gap under 2% on random uneven stages with messages of up to a tenth of a pass."""
    random, gaps = np.random.default_rng(0), []
    for _ in range(300):
        ranks, chunks = int(random.integers(2, 9)), int(random.integers(1, 4)) if schedule != "1f1b" else 1
        micro_batches = ranks * int(random.integers(1, 6))
        forward, backward = random.uniform(0.8, 1.2, ranks * chunks), random.uniform(1.6, 2.4, ranks * chunks)
        transfer = random.uniform(0.0, 0.1, ranks)
        exact = ends(schedule, ranks, chunks, micro_batches, forward, backward, transfer)[0]
        gaps.append(1 - bounds(schedule, ranks, micro_batches, forward, backward, transfer)[0] / exact)
    assert 0 <= np.median(gaps) < worst


def test_candidates_of_one_topology_are_evaluated_together():
    random = np.random.default_rng(1)
    forward, backward = random.uniform(1, 2, (8, 20)), random.uniform(1, 2, (8, 20))
    transfer, start = random.uniform(0, 1, (4, 20)), random.uniform(0, 1, (4, 20))
    topology = build_topology("interleaved_1f1b", 4, 2, 8)
    together = longest_path(topology, forward=forward, backward=backward, transfer=transfer, start=start)
    for index in range(20):
        alone = ends(
            "interleaved_1f1b", 4, 2, 8, forward[:, index], backward[:, index], transfer[:, index], start[:, index]
        )
        assert (together[:, index] == alone).all()

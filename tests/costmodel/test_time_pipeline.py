"""The longest path against a plain simulation, closed forms of even stages, and the bounds made of explicit paths."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel.paths import Paths
from costmodel.pipeline import build_topology, longest_path
from costmodel.runtimes.placement import stages_of_ranks
from costmodel.schedules import rank_operations

LOOPED = ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
V_SHAPED = ("zbv_zero_bubble", "dualpipe_v")
SCHEDULES = ("naive", "gpipe", "1f1b", *LOOPED, *V_SHAPED)


def halves(backward) -> np.ndarray:
    """Weight gradients unlike any stage's half: a tenth to nine tenths of the backward; all of it on the first stage."""
    shares = np.linspace(0.1, 0.9, len(backward))
    return np.asarray(backward) * np.concatenate([[1.0], shares[1:]])


def ends(schedule, ranks, chunks, micro_batches, forward, backward, transfer, start=None, weight=None) -> np.ndarray:
    """Ends of the ranks for one candidate."""
    topology = build_topology(schedule, ranks, chunks, micro_batches)
    begin = np.zeros(ranks) if start is None else start
    return longest_path(
        topology,
        forward=np.asarray(forward)[:, None],
        backward=np.asarray(backward)[:, None],
        transfer=np.asarray(transfer)[:, None],
        start=begin[:, None],
        weight=(halves(backward) if weight is None else np.asarray(weight))[:, None],
    )[:, 0]


def simulate(schedule, ranks, chunks, micro_batches, forward, backward, transfer, start, weight) -> np.ndarray:
    """The same by events, one operation at a time, without levels or arrays."""
    total, v_shaped = ranks * chunks, schedule in V_SHAPED
    rank_of = {}
    for rank in range(ranks):
        rank_of |= {stage_of(v_shaped, ranks, rank, chunk): rank for chunk in range(chunks)}
    orders = [
        list(rank_operations(schedule, rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=micro_batches))
        for rank in range(ranks)
    ]
    seconds = [forward, backward, backward - weight, weight, np.zeros(total)]
    late = {
        (rank, order.chunk, order.micro_batch) for rank in range(ranks) for order in orders[rank] if order.kind == 4
    }
    clock, arrived, lane_free = list(start), {}, {}
    while any(orders):
        for rank, order in enumerate(orders):
            while order:
                operation = order[0]
                stage = stage_of(v_shaped, ranks, rank, operation.chunk)
                back = operation.kind in (1, 2)
                source = stage + (1 if back else -1)
                key = (back, source, operation.micro_batch)
                waits = operation.kind < 3 and 0 <= source < total
                if waits and key not in arrived:
                    break
                order.pop(0)
                clock[rank] = max(clock[rank], arrived[key] if waits else 0.0) + seconds[operation.kind][stage]
                target = stage + (-1 if back else 1)
                put_off = operation.kind == 0 and (rank, operation.chunk, operation.micro_batch) in late
                if operation.kind == 3 or not 0 <= target < total or put_off:
                    continue
                lane, edge = (back, rank, rank_of[target]), link(v_shaped, rank, rank_of[target], back)
                if rank_of[target] == rank:
                    arrived[back, stage, operation.micro_batch] = clock[rank]
                else:
                    lane_free[lane] = max(clock[rank], lane_free.get(lane, 0.0)) + transfer[edge]
                    arrived[back, stage, operation.micro_batch] = lane_free[lane]
    return np.array(clock)


def stage_of(v_shaped, ranks, rank, chunk) -> int:
    return chunk * ranks + (ranks - 1 - rank if v_shaped and chunk else rank)


def link(v_shaped, rank, target, back) -> int:
    """Which pair of neighbours (r, r + 1 mod p) a message crosses."""
    if v_shaped:
        return min(rank, target)
    return target if back else rank


@st.composite
def pipelines(draw, even=False):
    schedule = draw(st.sampled_from(SCHEDULES))
    ranks = draw(st.integers(2, 6))
    chunks = draw(st.integers(1, 3)) if schedule in LOOPED else 1 + (schedule in V_SHAPED)
    micro_batches = draw(st.integers(2 * ranks if schedule == "dualpipe_v" else 1, 14))
    if schedule in LOOPED and micro_batches % max(1, micro_batches // ranks):
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
    expected = simulate(*pipeline, start, halves(pipeline[5]))
    assert ends(*pipeline, start=start) == pytest.approx(expected, rel=1e-12)


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


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("micro_batches", [8, 16])
def test_breadth_first_has_the_bubble_of_depth_first(chunks, micro_batches):
    """(p - 1) t / v (arXiv 2211.05953, table 1)."""
    stages = 4 * chunks
    even = ([1.0 / chunks] * stages, [2.0 / chunks] * stages, [0.0] * 4)
    assert ends("looped_bfs", 4, chunks, micro_batches, *even).max() == pytest.approx(
        (micro_batches + 3.0 / chunks) * 3.0
    )


@pytest.mark.parametrize("micro_batches", [8, 16, 32])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("schedule", "bubble"), [("interleaved_zero_bubble", 1.0), ("zbv_zero_bubble", 1.0), ("dualpipe_v", 2.0)]
)
def test_equal_thirds_leave_the_bubble_of_the_fill_alone(schedule, bubble, ranks, micro_batches):
    """(p - 1) (f + i - w) / v where forward, input and weight gradients take the same: a third of interleaved 1F1B's (ZB-H1,
    arXiv 2401.10241, table 1; ZBV's ranks each have none, but the last starts p - 1 forwards late). dualpipe_v without overlap
    has twice as much.
    """
    stages = 2 * ranks
    even = ([0.5] * stages, [1.0] * stages, [0.0] * ranks)
    step = ends(schedule, ranks, 2, micro_batches, *even, weight=[1.0] + [0.5] * (stages - 1)).max()
    assert step - 3.0 * micro_batches == pytest.approx(bubble * (ranks - 1) / 2.0)


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
    own = work.reshape(chunks, ranks)
    if pipeline[0] in V_SHAPED:
        own = np.stack([own[0], own[1, ::-1]])
    assert (ends(*pipeline) >= micro_batches * own.sum(axis=0) * (1 - 1e-12)).all()


def bounds(schedule, ranks, micro_batches, forward, backward, transfer) -> np.ndarray:
    paths = Paths(
        forward=np.array([forward]),
        backward=np.array([backward]),
        transfer=np.array([transfer]),
        micro_batches=np.array([[float(micro_batches)]]),
        held=stages_of_ranks(schedule, ranks, len(forward) // ranks),
        weight=halves(backward)[None],
    )
    method = {
        "naive": paths.naive,
        "gpipe": paths.gpipe,
        "1f1b": paths.one_forward_one_backward,
        "interleaved_1f1b": paths.interleaved,
        "looped_bfs": paths.looped_bfs,
        **dict.fromkeys(("interleaved_zero_bubble", *V_SHAPED), paths.split),
    }[schedule]
    return np.maximum(method(), paths.messages())[0]


@given(pipelines())
@example(("zbv_zero_bubble", 2, 2, 1, [1.0] * 4, [1.0] * 4, [0.0, 1.0]))
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


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved_1f1b", "looped_bfs"])
def test_messages_that_take_all_the_time_are_seen(schedule):
    """With messages a hundred times as long as a pass the lane is the step: at most 3% is left."""
    chunks = 1 if schedule in ("1f1b", "gpipe") else 3
    forward, backward, transfer = np.full(2 * chunks, 0.01), np.full(2 * chunks, 0.02), np.array([1.0, 0.0])
    exact = ends(schedule, 2, chunks, 60, forward, backward, transfer)[0]
    bound = bounds(schedule, 2, 60, forward, backward, transfer)[0]
    if schedule in ("gpipe", "looped_bfs"):  # all forwards first: one lane after the other
        assert exact == pytest.approx(2 * bound, rel=0.02)
    else:
        assert 0.97 * exact <= bound <= exact


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

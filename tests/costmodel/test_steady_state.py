"""Ends of many micro-batches from the graph of a few, against the whole graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import steady_state
from costmodel.pipeline import build_topology, longest_path
from costmodel.runtimes.grid import SCHEDULES
from costmodel.runtimes.placement import LOOPED_SCHEDULES, V_SCHEDULES
from costmodel.steady_state import Shape, pipeline_ends


def times(shape, seed, *, even=False, message=1.0, candidates=3):
    """Random durations of some candidates; ``even``: stages alike but for the first and the last."""
    rng = np.random.default_rng(seed)
    stages = (shape.ranks * shape.chunks, candidates)
    forward = np.ones(stages) * rng.uniform(0.5, 1.5, candidates) if even else rng.uniform(0.01, 10.0, stages)
    backward = 2.0 * forward if even else rng.uniform(0.01, 10.0, stages)
    forward[-1] *= 1.3
    transfer = message * rng.uniform(0.0, 5.0, (shape.ranks, candidates))
    return {
        "forward": forward,
        "backward": backward,
        "transfer": transfer,
        "weight": backward * rng.uniform(0.0, 1.0, stages),
        "start": np.linspace(rng.uniform(0.0, 5.0), 0.0, shape.ranks)[:, None] * np.ones(candidates),
    }


@st.composite
def shapes(draw):
    schedule = draw(st.sampled_from(SCHEDULES[1:]))
    ranks = draw(st.integers(2, 6))
    if schedule in V_SCHEDULES:
        return Shape(schedule, ranks, 2, draw(st.integers(2 * ranks, 40)))
    if schedule in LOOPED_SCHEDULES:
        return Shape(schedule, ranks, draw(st.integers(1, 4)), ranks * draw(st.integers(1, 30)))
    return Shape(schedule, ranks, 1, draw(st.integers(1, 150)))


@given(shapes(), st.integers(0, 2**32), st.booleans(), st.sampled_from((0.0, 0.01, 1.0)))
@settings(max_examples=150, deadline=None)
def test_ends_are_those_of_the_whole_graph(shape, seed, even, message):
    durations = times(shape, seed, even=even, message=message)
    expected = longest_path(build_topology(*shape), **durations)
    np.testing.assert_allclose(pipeline_ends(shape, **durations), expected, rtol=1e-12)


@given(shapes(), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_candidate_ends_at_the_same_instant_whoever_it_is_computed_with(shape, seed):
    durations = times(shape, seed)
    together = pipeline_ends(shape, **durations)
    for index in range(together.shape[1]):
        alone = pipeline_ends(shape, **{name: each[:, [index]] for name, each in durations.items()})
        assert (alone[:, 0] == together[:, index]).all()


@pytest.mark.parametrize("shape", [Shape("1f1b", 8, 1, 100_000), Shape("interleaved_1f1b", 8, 4, 80_000)])
def test_a_hundred_thousand_micro_batches_take_the_closed_form_of_even_stages(shape):
    """(m v + p - 1) t of a stage: arXiv 2104.04473, section 2.2."""
    stages = (shape.ranks * shape.chunks, 1)
    forward, backward = np.full(stages, 1.0), np.full(stages, 2.0)
    free = np.zeros((shape.ranks, 1))
    step = pipeline_ends(shape, forward=forward, backward=backward, transfer=free, start=free).max()
    assert step == pytest.approx((shape.micro_batches * shape.chunks + shape.ranks - 1) * 3.0, rel=1e-12)
    assert shape.first_nodes < 10_000


@given(st.integers(0, 2**32), st.sampled_from(("1f1b", "interleaved_1f1b")))
@settings(max_examples=40, deadline=None)
def test_a_graph_out_of_reach_gives_an_upper_bound(seed, schedule):
    shape = Shape(schedule, 4, 2 if schedule == "interleaved_1f1b" else 1, 120)
    durations = times(shape, seed)
    expected = longest_path(build_topology(*shape), **durations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady_state, "MOST_NODES", 0)
        patch.setattr(steady_state, "TOLERANCE", -1.0)
        bound = pipeline_ends(shape, **durations)
    assert (bound >= expected * (1.0 - 1e-12)).all()
    assert (bound <= 2.0 * expected).all()

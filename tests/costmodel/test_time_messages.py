"""Messages between pipeline ranks on gloo, where nothing else takes time: one after the other, and in turns where two meet."""

import pytest
from time_worlds import cluster, device, gpt, world

from costmodel.estimate import estimate

RATE = 1e6
MICRO_BATCHES = 8
ELEMENTS = 1024 * 1024
MESSAGE = 4 * ELEMENTS / RATE


def seconds(kind: str, schedule: str, *, micro_batches: int = MICRO_BATCHES, chunks: int = 1) -> float:
    """Step time over its message's, two ranks that compute infinitely fast."""
    machine = cluster(nodes=1, per_node=2, inside=RATE, latency=0.0, of=device(kind=kind, peak=1e24, bandwidth=1e24))
    plan, runtime = world(
        runtime="torch", model=gpt(tied=False), machine=machine, precision="fp32", clip=False,
        pipeline_parallel_size=2, pipeline_schedule=schedule, num_model_chunks=chunks, num_micro_batches=micro_batches,
    )  # fmt: skip
    found = estimate(plan, runtime, ignore_memory=True)
    terms = {term.name: term.exposed_seconds for term in found.terms}
    assert terms["pipeline_p2p"] == pytest.approx(found.step_time_seconds.value)
    assert terms["bubble"] == pytest.approx(0.0, abs=1e-6)
    return found.step_time_seconds.value / MESSAGE


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_messages_of_gpipe_never_meet(kind: str) -> None:
    assert seconds(kind, "gpipe") == pytest.approx(2 * MICRO_BATCHES)
    assert seconds(kind, "gpipe", micro_batches=1) == pytest.approx(2)


def test_messages_of_1f1b_meet_and_take_turns_on_gloo() -> None:
    """The first rank has all but one of m messages met: each takes 1 + (m - 1)/m, in m + 1 rounds."""
    met = (MICRO_BATCHES - 1) / MICRO_BATCHES
    assert seconds("cpu", "1f1b") == pytest.approx((1 + met) * (MICRO_BATCHES + 1))
    assert seconds("cuda", "1f1b") == pytest.approx(MICRO_BATCHES + 1)


def test_interleaved_messages_travel_both_ways_at_once() -> None:
    """A single micro-batch crosses three boundaries forward and back; of many, every rank receives three messages each."""
    assert seconds("cpu", "interleaved_1f1b", chunks=2, micro_batches=1) == pytest.approx(6)
    assert 3 * MICRO_BATCHES < seconds("cpu", "interleaved_1f1b", chunks=2) < 3 * MICRO_BATCHES + 6


def test_a_receiver_waits_for_its_message_before_it_computes() -> None:
    """On a GPU the next message arrives while the rank computes; on gloo it is only asked for then."""
    times = {}
    for kind in ("cpu", "cuda"):
        machine = cluster(nodes=1, per_node=2, inside=1e9, latency=0.0, of=device(kind=kind, peak=1e13, bandwidth=1e24))
        plan, runtime = world(
            runtime="torch", model=gpt(tied=False), machine=machine, precision="fp32", clip=False,
            pipeline_parallel_size=2, pipeline_schedule="gpipe", num_micro_batches=MICRO_BATCHES,
        )  # fmt: skip
        found = estimate(plan, runtime, ignore_memory=True)
        times[kind] = {term.name: term.exposed_seconds for term in found.terms}["pipeline_p2p"]
    message = 4 * ELEMENTS / 1e9
    assert times["cpu"] > (MICRO_BATCHES + 1) * message
    assert times["cuda"] == pytest.approx(2 * message)

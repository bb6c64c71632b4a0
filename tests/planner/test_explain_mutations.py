"""One hardware number changes, and the sentence that speaks of it says another number: no sentence is a mere template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from planner_worlds import GIB, make_cluster, make_model, plan_space, recommend

from costmodel.specs import Recommendation
from planner.explain import explain
from planner.figures import Explanation, Figure
from planner.rivals import with_rivals

MODEL = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)
# The same plan on both machines, so that the number alone can change a sentence.
FIX = {"data_parallel_size": "8", "zero_stage": "3", "micro_batch_size": "1", "recompute": "none"}


def tell(fix: dict[str, str] | None = None, **cluster: Any) -> tuple[Explanation, ...]:
    space = plan_space(model=MODEL, cluster=make_cluster(**cluster), batch=32, fix=FIX if fix is None else fix)
    return explain(with_rivals(recommend(space), space))


def speaking_of(sentences: tuple[Explanation, ...], path: str) -> tuple[str, Figure]:
    """The first sentence with a number from one path, and that number."""
    return next(
        (sentence.sentence, figure)
        for sentence in sentences
        for figure in sentence.numbers
        if any(name.startswith(path) for name in figure.paths)
    )


def halves(before: float, after: float) -> bool:
    return after == pytest.approx(before / 2, rel=1e-9)


def doubles(before: float, after: float) -> bool:
    return after == pytest.approx(2 * before, rel=1e-9)


def falls(before: float, after: float) -> bool:
    return after < before


NODES = {"nodes": 2, "per_node": 4}
# what is changed, the path of the number that must follow, and how
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, Callable[[float, float], bool]]] = [
    ("peak", {"flops": 300e12}, {"flops": 600e12}, "best.cluster.device.peak_flops_per_second", doubles),
    ("peak, in seconds", {"flops": 300e12}, {"flops": 600e12}, "best.estimate.terms[0].exposed_seconds", falls),
    ("device memory", {"memory_bytes": 40 * GIB}, {"memory_bytes": 80 * GIB}, "best.estimate.memory_capacity", doubles),
    ("device memory of the guide", {"memory_bytes": 40 * GIB}, {"memory_bytes": 80 * GIB}, "guide.steps[0].numbers.cap", doubles),
    ("node link", {"inside": 1e11}, {"inside": 2e11}, "gradient_exchange.ring_bytes_per_second", doubles),
    ("node link, ring", {"inside": 1e11}, {"inside": 2e11}, "gradient_exchange.ring_seconds", halves),
    ("node link, server", {"inside": 1e11}, {"inside": 2e11}, "gradient_exchange.server_seconds", halves),
    ("network of the guide", {**NODES, "between": 1e9}, {**NODES, "between": 2e9}, "guide.steps[1].numbers.link_bytes", doubles),
    ("network, server", {**NODES, "between": 1e9}, {**NODES, "between": 2e9}, "gradient_exchange.server_seconds", halves),
    ("network, ring", {**NODES, "between": 1e9}, {**NODES, "between": 2e9}, "gradient_exchange.ring_seconds", halves),
]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "path", "follows"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_number_follows_the_hardware(
    one: dict[str, Any], other: dict[str, Any], path: str, follows: Callable[[float, float], bool]
) -> None:
    (before, old), (after, new) = speaking_of(tell(**one), path), speaking_of(tell(**other), path)
    assert before != after
    assert old.text != new.text
    assert new.text in after
    assert follows(float(old.value), float(new.value))


def test_memory_bandwidth_is_what_memory_bound_kernels_take() -> None:
    answers = []
    for rate in (2e12, 1e12):
        space = plan_space(model=MODEL, cluster=make_cluster(), batch=32, fix=FIX)
        context = space.context
        device = context.cluster.device.model_copy(update={"memory_bandwidth_bytes_per_second": rate})
        slower = plan_space(
            model=MODEL, cluster=context.cluster.model_copy(update={"device": device}), batch=32, fix=FIX
        )
        answers.append(with_rivals(recommend(slower), slower))
    (before, _), (after, rate_said) = (
        speaking_of(explain(found), "best.cluster.device.memory_bandwidth") for found in answers
    )
    assert before != after
    assert rate_said.text == "1.00 TB/s"
    first, second = (memory_seconds(found) for found in answers)
    assert second == pytest.approx(2 * first, rel=1e-9)


def memory_seconds(answer: Recommendation) -> float:
    assert answer.best.estimate is not None
    return next(term.exposed_seconds for term in answer.best.estimate.terms if term.name == "memory_bound")


def test_the_slow_link_is_in_the_warning_and_in_the_wait() -> None:
    fix = FIX | {"data_parallel_shard_size": "8", "hierarchical_partition_size": "off"}
    slow, slower = (tell(fix, **NODES, between=rate) for rate in (1e8, 0.5e8))
    for section in ("warnings", "links"):
        first, second = (next(one.sentence for one in told if one.section == section) for told in (slow, slower))
        assert "between" in first
        assert first != second


def test_a_tighter_device_turns_prices_into_refusals() -> None:
    ample, tight = (tell({}, memory_bytes=size) for size in (40 * GIB, int(5.2 * GIB)))
    refused = ["too much" in one.sentence for one in ample if one.section == "usual layouts"]
    assert not any(refused)
    assert any("too much" in one.sentence for one in tight if one.section == "usual layouts")


def test_a_rival_gets_slower_with_its_link() -> None:
    # Tensor parallelism over two nodes pays for every byte of the network.
    first, second = (
        next(one for one in tell({}, **NODES, between=rate) if one.sentence.startswith("TP across nodes"))
        for rate in (1e10, 1e9)
    )
    taken = [next(figure for figure in one.numbers if "step_time" in figure.paths[0]) for one in (first, second)]
    assert float(taken[1].value) > 2 * float(taken[0].value)

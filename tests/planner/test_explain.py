"""Explanations are made of stored numbers: every sentence can be checked against the recommendation."""

from __future__ import annotations

import pytest
from planner_worlds import GIB, make_cluster, make_model, plan_space, recommend

from costmodel.estimate import TERMS
from costmodel.runtimes.grid import Grid
from costmodel.specs import InputError, ParallelConfig, Recommendation
from planner.explain import _ENGLISH, Explanation, explain
from planner.summary import summarize, summarize_parallel


@pytest.fixture(scope="module")
def found() -> Recommendation:
    model = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)
    cluster = make_cluster(nodes=2, per_node=4, memory_bytes=int(5.2 * GIB))
    return recommend(plan_space(model=model, cluster=cluster, batch=32))


def of(sentences: tuple[Explanation, ...], section: str) -> list[Explanation]:
    return [sentence for sentence in sentences if sentence.section == section]


def test_every_term_of_the_estimate_has_words() -> None:
    assert set(TERMS) <= set(_ENGLISH)


def test_all_sections_appear_in_reading_order(found: Recommendation) -> None:
    sections = list(dict.fromkeys(sentence.section for sentence in explain(found)))
    assert sections == ["plan", "guide", "time", "memory", "links", "neighbours", "runner-up", "certificate"]


def test_numbers_are_those_of_the_estimate(found: Recommendation) -> None:
    estimate = found.best.estimate
    assert estimate is not None
    sentences = explain(found)
    times = {term.name: term.exposed_seconds for term in estimate.terms}
    largest = max(times, key=lambda name: times[name])
    first = of(sentences, "time")[0]
    assert first.numbers["exposed_seconds"] == times[largest]
    assert _ENGLISH[largest] in first.sentence
    assert f"{times[largest] / estimate.step_time_seconds.value:.0%}" in first.sentence
    (memory,) = of(sentences, "memory")
    assert memory.numbers["needed_bytes"] == estimate.peak_memory_bytes.device
    assert f"{estimate.peak_memory_bytes.device / GIB:.1f} of 5.2 GiB" in memory.sentence
    links = of(sentences, "links")
    sent = {link.numbers["bytes_per_rank"] for link in links}
    assert sent <= {traffic.bytes_per_rank for traffic in estimate.communication}
    told = of(sentences, "neighbours")
    assert len(told) == len(found.neighbours)
    refused = {neighbour.rejection for neighbour in found.neighbours if neighbour.rejection}
    assert sum("this plan would not run: " in sentence.sentence for sentence in told) >= len(refused)
    certificate = of(sentences, "certificate")[0]
    assert f"{found.certificate.candidates:,} candidates" in certificate.sentence
    assert found.certificate.statement in certificate.sentence


def test_the_runner_up_lost_by_named_terms(found: Recommendation) -> None:
    other = found.alternatives[0]
    assert other.estimate is not None
    assert found.best.estimate is not None
    slower = other.estimate.step_time_seconds.value / found.best.estimate.step_time_seconds.value - 1
    sentence = of(explain(found), "runner-up")[0]
    assert sentence.numbers["slowdown"] == pytest.approx(slower)
    assert summarize(other) in sentence.sentence


def test_a_plan_alone_explains_its_own_terms(found: Recommendation) -> None:
    sections = {sentence.section for sentence in explain(found.best)}
    assert sections == {"plan", "time", "memory", "links"}
    assert explain(found.best)[0] == explain(found)[0]
    with pytest.raises(InputError, match="no estimate"):
        explain(found.best.model_copy(update={"estimate": None}))


def test_explanations_are_plain_data(found: Recommendation) -> None:
    for sentence in explain(found):
        assert Explanation.model_validate_json(sentence.model_dump_json()) == sentence
        assert sentence.sentence.endswith(".")


def test_summaries() -> None:
    parallel = ParallelConfig(
        tensor_parallel_size=8,
        pipeline_parallel_size=16,
        pipeline_schedule="1f1b",
        data_parallel_shard_size=8,
        zero_stage=1,
        num_micro_batches=192,
    )
    assert summarize_parallel(parallel, "full") == "tp8 pp16 dp8 (zero1) mb1 m192 1f1b full"
    hybrid = ParallelConfig(
        data_parallel_replicate_size=2,
        data_parallel_shard_size=32,
        zero_stage=3,
        hierarchical_partition_size=8,
        micro_batch_size=4,
    )
    assert summarize_parallel(hybrid, "none") == "tp1 pp1 dp2x32 (zero3 hpz8) mb4 m1 no-recompute"
    assert Grid.from_parallel(hybrid, "none").parallel(0) == hybrid


def test_a_summary_names_uneven_stages() -> None:
    space = plan_space(
        fix={"pipeline_parallel_size": "4", "layers_per_stage": "2,4,1,1"}, model=make_model(layers=8), batch=8
    )
    assert summarize(recommend(space).best).endswith("layers 2/4/1/1")

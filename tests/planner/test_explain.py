"""Explanations are made of stored numbers: every sentence can be checked against the answer.

benchmarks/explanations.py checks all numbers of all sentences; here is what the sentences must say.
"""

from __future__ import annotations

from typing import Any

import pytest
from planner_worlds import GIB, answer, make_cluster, make_model, plan_space, recommend

from benchmarks.explanations import check
from costmodel.estimate import TERMS
from costmodel.runtimes.grid import Grid
from costmodel.specs import Infeasible, InputError, MemoryLimit, ParallelConfig, Recommendation
from planner.explain import explain
from planner.explain_bounds import _ENGLISH
from planner.figures import Explanation, Figure, in_search, spell, value_at
from planner.rivals import with_advice, with_rivals
from planner.summary import summarize, summarize_parallel

LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def full_answer(**world: Any) -> Recommendation:
    """What `meshwright plan` answers: the search with its rivals."""
    space = plan_space(**world)
    return with_rivals(recommend(space), space)


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return full_answer(model=LARGE, cluster=make_cluster(nodes=2, per_node=4, memory_bytes=int(5.2 * GIB)), batch=32)


def of(sentences: tuple[Explanation, ...], section: str) -> list[Explanation]:
    return [sentence for sentence in sentences if sentence.section == section]


def figure(sentence: Explanation, path: str) -> Figure:
    return next(figure for figure in sentence.numbers if path in figure.paths)


def test_every_term_of_the_estimate_has_words() -> None:
    assert set(TERMS) <= set(_ENGLISH)


def test_all_sections_appear_in_reading_order(found: Recommendation) -> None:
    sections = list(dict.fromkeys(sentence.section for sentence in explain(found)))
    assert sections == [
        "plan", "warnings", "guide", "time", "memory", "links", "neighbours", "runner-up", "usual layouts",
        "gradient exchange", "certificate",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "world",
    [
        {},
        {"cluster": make_cluster(per_node=1)},
        {"model": LARGE, "cluster": make_cluster(nodes=2, per_node=4, between=1e9), "batch": 32},
        {"model": LARGE, "cluster": make_cluster(nodes=2, per_node=4), "runtime": "megatron", "batch": 48},
        {"fix": {"pipeline_parallel_size": "4", "layers_per_stage": "1,1,1,1"}, "cluster": make_cluster(per_node=4)},
    ],
    ids=["small", "one device", "slow network", "megatron", "stated stages"],
)
def test_no_number_is_without_a_path(world: dict[str, Any]) -> None:
    answered = full_answer(**world)
    told = [sentence.model_dump(mode="json") for sentence in explain(answered)]
    assert check(answered.model_dump(mode="json"), told) == []


def test_shares_of_the_step_add_up_to_all_of_it(found: Recommendation) -> None:
    kinds = of(explain(found), "time")[0]
    shares = [figure.value for figure in kinds.numbers if figure.text.endswith("%")]
    assert sum(float(share) for share in shares) == pytest.approx(1, abs=3e-3)


def test_numbers_are_those_of_the_estimate(found: Recommendation) -> None:
    estimate = found.best.estimate
    assert estimate is not None
    sentences = explain(found)
    index = max(range(len(estimate.terms)), key=lambda index: estimate.terms[index].exposed_seconds)
    largest = of(sentences, "time")[1]
    assert _ENGLISH[estimate.terms[index].name] in largest.sentence
    share = figure(largest, "best.estimate.step_time_seconds.value")
    assert share.value == estimate.terms[index].exposed_seconds / estimate.step_time_seconds.value
    full, contents = of(sentences, "memory")
    assert figure(full, "best.estimate.peak_memory_bytes.device").value == estimate.peak_memory_bytes.device
    assert "of 5.20 GiB" in full.sentence
    stage = max(estimate.memory, key=lambda stage: stage.peak_bytes)
    held = max(term.bytes for term in stage.terms if term.phase == stage.peak_phase)
    assert spell(held, "memory") in contents.sentence
    told = of(sentences, "neighbours")
    assert len(told) == len(found.neighbours) + 1
    refused = {neighbour.rejection for neighbour in found.neighbours if neighbour.rejection}
    assert sum("would not run: " in one.sentence or "too much" in one.sentence for one in told) >= len(refused)
    (certificate,) = of(sentences, "certificate")
    assert f"{found.certificate.candidates:,} candidates" in certificate.sentence
    assert found.certificate.statement in certificate.sentence


def test_the_link_that_is_waited_for_is_the_one_that_carries_the_traffic() -> None:
    # Stages in different nodes over 10 MB/s: nothing costs as much as what crosses them.
    slow = full_answer(cluster=make_cluster(nodes=2, per_node=2, between=1e7), fix={"pipeline_parallel_size": "2"})
    waiting = of(explain(slow), "links")[0]
    assert waiting.sentence.endswith(" over between.")


def test_the_end_of_an_axis_is_named(found: Recommendation) -> None:
    last = of(explain(found), "neighbours")[-1]
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size", "zero_stage"):
        values = {int(neighbour.value) for neighbour in found.neighbours if neighbour.axis == name}
        current = getattr(found.best.parallel, name)
        end = "smallest" if min(values) > current else "largest"
        assert (f"{name} {current} is the {end}" in last.sentence) == (len(values) == 1)


def test_the_runner_up_lost_by_named_terms(found: Recommendation) -> None:
    other = found.alternatives[0]
    assert other.estimate is not None
    assert found.best.estimate is not None
    sentence = of(explain(found), "runner-up")[0]
    taken = figure(sentence, "alternatives[0].estimate.step_time_seconds.value")
    assert taken.value == other.estimate.step_time_seconds.value
    assert summarize(other) in sentence.sentence
    assert "because of" in sentence.sentence
    after = {term.name: term.exposed_seconds for term in found.best.estimate.terms}
    gains = {term.name: term.exposed_seconds - after[term.name] for term in other.estimate.terms}
    assert _ENGLISH[max(gains, key=lambda name: gains[name])] in sentence.sentence


def test_a_plan_alone_explains_its_own_terms(found: Recommendation) -> None:
    sentences = explain(found.best)
    assert {sentence.section for sentence in sentences} == {"plan", "time", "memory", "links"}
    assert sentences[0].sentence == explain(found)[0].sentence
    assert check(found.best.model_dump(mode="json"), [one.model_dump(mode="json") for one in sentences]) == []
    with pytest.raises(InputError, match="no estimate"):
        explain(found.best.model_copy(update={"estimate": None}))


def test_paths_into_a_search_made_again_say_so(found: Recommendation) -> None:
    told = [sentence.model_dump(mode="json") for sentence in in_search(explain(found))]
    assert all(path.startswith("search:") for one in told for number in one["numbers"] for path in number["paths"])
    assert check(None, told, search=found.model_dump(mode="json")) == []


def test_an_answer_without_a_plan_is_explained() -> None:
    space = plan_space(model=LARGE, cluster=make_cluster(per_node=1, memory_bytes=GIB))
    missed = answer(space)
    assert isinstance(missed, Infeasible)
    told = explain(with_advice(missed, space))
    assert missed.nearest_miss is not None
    assert told[0].sentence.startswith(f"No plan fits. The nearest miss, {missed.nearest_miss.plan_summary}, needs ")
    assert [one.sentence for one in of(told, "what would fix it")] == [f"{fix}." for fix in missed.nearest_miss.fixes]
    assert "'single device, the model does not fit'" in of(told, "guide")[-1].sentence
    document = with_advice(missed, space).model_dump(mode="json")
    assert check(document, [one.model_dump(mode="json") for one in told]) == []


def test_a_stated_limit_is_what_a_plan_may_use() -> None:
    space = plan_space(model=LARGE)
    limit = MemoryLimit(device_bytes=80 * GIB, fraction=0.2, usable_bytes=16 * GIB)
    from planner.space import declare_space

    context = space.context
    inputs = (context.model, context.cluster, context.training, context.runtime)
    limited = declare_space(*inputs, memory_limit=limit)
    told = explain(with_rivals(recommend(limited), limited))
    assert "of 16.0 GiB" in of(told, "memory")[0].sentence


def test_explanations_are_plain_data(found: Recommendation) -> None:
    for sentence in explain(found):
        assert Explanation.model_validate_json(sentence.model_dump_json()) == sentence
        assert sentence.sentence.endswith(".")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (41.94, "seconds", "41.9 s"),
        (0.0472, "seconds", "47.2 ms"),
        (0.0, "seconds", "0 s"),
        (3e-9, "seconds", "0.00300 us"),
        (1_373_000_000_000, "memory", "1,279 GiB"),
        (0.63 * GIB, "memory", "0.630 GiB"),
        (2.67e11, "rate", "267 GB/s"),
        (9.89e14, "flops", "989 TFLOP/s"),
        (0.5266, "percent", "52.7%"),
        (37770, "number", "37,770"),
        (1234.5, "seconds", "1,234 s"),
    ],
)
def test_numbers_as_a_person_reads_them(value: float, unit: str, text: str) -> None:
    assert spell(value, unit) == text


def test_two_times_against_each_other_share_a_unit() -> None:
    assert spell(0.0472, "seconds", beside=58.8) == "0.0 s"
    assert spell(58.8, "seconds", beside=0.0472) == "58.8 s"
    assert spell(0.0723, "seconds", beside=0.113) == "0.072 s"


def test_a_path_that_leads_nowhere_is_refused(found: Recommendation) -> None:
    assert value_at(found, "best.parallel.zero_stage") == found.best.parallel.zero_stage
    for path in ("best.colour", "neighbours[999].value", "guide.steps[0].numbers.weight", "best[0]"):
        with pytest.raises(KeyError):
            value_at(found, path)


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

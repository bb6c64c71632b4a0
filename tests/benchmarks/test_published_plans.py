"""Published layouts beside the plans found: what is outside of the space is named, what is inside is never beaten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.published_plans import (
    MOST_REJECTED,
    Answer,
    Judge,
    Verdict,
    best_of,
    missing,
    rejected_share,
    rows_that_ran,
)
from meshwright.validation.adapters.layout import adapt
from planner.space import declare_space

ROWS = {row.id: row for row in rows_that_ran()}


def test_rows_out_of_memory_and_mixtures_of_experts_are_left_out() -> None:
    assert len(ROWS) > 600
    assert not any(row.measured.oom or row.model.moe for row in ROWS.values())


def test_what_a_paper_computed_and_did_not_run_is_left_out() -> None:
    """Figure 1 of arXiv 2205.05198 shows requirements beyond 80 GB; its table 5 has runs of the same models."""
    papers = {name for name in ROWS if name.startswith("korthikanti")}
    assert papers
    assert not any("fig1" in name for name in papers)


def test_the_plan_found_is_not_slower_than_a_layout_of_its_space() -> None:
    verdict = Judge().verdict(ROWS["amp-homogeneous-04-tp1pp8dp2mb1"])
    assert verdict.outcome == "at least as fast"
    assert verdict.found_seconds is not None
    assert verdict.own_seconds is not None
    assert verdict.found_seconds <= verdict.own_seconds * (1 + 1e-9)


def test_a_layout_that_breaks_a_rule_is_listed_with_it() -> None:
    row = ROWS["bloom-prequel-034-187B-tp8pp10dp4mbs1gbs2048"]
    heads = row.model.model_copy(update={"n_heads": 108, "n_kv_heads": 108})
    verdict = Judge().verdict(row.model_copy(update={"model": heads}))
    assert verdict.outcome == "breaks a rule"
    assert verdict.why.startswith("tensor_parallel_divides_num_attention_heads: ")


def test_what_the_model_does_not_have_is_not_predicted() -> None:
    verdict = Judge().verdict(ROWS["stas-zero3-offload-8b-H200-s8k"])
    assert (verdict.outcome, verdict.found_seconds) == ("not predicted", None)


def test_what_does_not_fit_is_said_with_its_memory() -> None:
    verdict = Judge().verdict(ROWS["amp-homogeneous-09-tp1pp2dp8mb4"])
    assert verdict.outcome == "does not fit"
    assert "GiB of 14.6 GiB" in verdict.why


def test_memory_is_unknown_of_a_run_that_saves_some_in_a_way_that_is_not_modelled() -> None:
    """64 layers keep 1024 x 16 x 8192 inputs of 2 bytes, 16 GiB, and ZeRO-3 over 64 devices 12 of 52e9 parameters' states:
    they run on 31.7 GiB since checkpoints are cut over the tensor-parallel ranks and made of two layers each.
    """
    row = ROWS["bs-gpt2-071-ds-zero3-52B-64gpu"]
    verdict = Judge().verdict(row)
    assert verdict.outcome == "memory unknown"
    assert verdict.why.endswith(
        "GiB of 31.7 GiB without activation checkpoints cut over tensor-parallel ranks, of 2 layers each"
    )
    assert verdict.own_seconds is not None
    silent = row.parallel.model_copy(update={"extra": {"framework": "ds-zero3"}})
    assert Judge().verdict(row.model_copy(update={"parallel": silent})).outcome == "does not fit"


def test_rows_of_unknown_memory_count_neither_as_rejected_nor_as_rows() -> None:
    outcomes = (
        "at least as fast",
        "at least as fast",
        "breaks a rule",
        "does not fit",
        "memory unknown",
        "memory unknown",
    )
    verdicts = [Verdict(id=str(index), dataset="a", outcome=outcome) for index, outcome in enumerate(outcomes)]
    assert rejected_share(verdicts, ("breaks a rule",)) == 0.25
    assert rejected_share(verdicts, ("breaks a rule", "does not fit")) == 0.5
    assert rejected_share(verdicts[-2:], ("does not fit",)) == 0.0


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("titan-8b-fsdp1-cp8-s262144", "context_parallel_size 8"),
        ("mosaic-138-125m-s512-a100_80gbx8-amp_bf16", ""),
        ("amp-homogeneous-04-tp1pp8dp2mb1", ""),
    ],
)
def test_what_a_space_lacks_is_named(name: str, lacks: str) -> None:
    run = adapt(ROWS[name])
    plan = run.plan
    inputs = (plan.model, plan.cluster, plan.training, run.runtime)
    found = missing(plan, declare_space(*inputs, allow={"context_parallel_size": "1,2,4"} if lacks else None))
    assert found.startswith(lacks)
    assert bool(found) == bool(lacks)


def test_a_search_that_misses_a_layout_of_its_space_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = adapt(ROWS["amp-homogeneous-04-tp1pp8dp2mb1"])
    slow: Answer = replace(best_of(run), seconds=1e6)
    monkeypatch.setattr(Judge, "answer", lambda self, run: slow)
    verdict = Judge().verdict(ROWS["amp-homogeneous-04-tp1pp8dp2mb1"])
    assert (verdict.outcome, verdict.why) == ("slower", "")


def test_every_published_size_of_context_parallelism_is_in_the_default_space() -> None:
    """Layouts that ran with it, one of each size, framework and length of sequence."""
    cut = {
        (row.parallel.cp, row.dataset, row.model.seq_len): row for row in ROWS.values() if (row.parallel.cp or 1) > 1
    }
    assert len(cut) >= 5
    for row in cut.values():
        run = adapt(row)
        space = declare_space(run.plan.model, run.plan.cluster, run.plan.training, run.runtime)
        assert missing(run.plan, space) == "", row.id


@pytest.mark.slow
def test_at_most_three_percent_of_the_rows_that_ran_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share that the benchmark prints; what is found is left out, as rules and memory judge a row's own layout alone."""
    some = best_of(adapt(ROWS["amp-homogeneous-04-tp1pp8dp2mb1"]))
    monkeypatch.setattr(Judge, "answer", lambda self, run: replace(some, seconds=0.0))
    verdicts = [Judge().verdict(row) for row in ROWS.values()]
    assert rejected_share(verdicts, ("breaks a rule",)) == 0.0
    assert rejected_share(verdicts, ("breaks a rule", "does not fit")) <= MOST_REJECTED
    unknown = {each.id for each in verdicts if each.outcome == "memory unknown"}
    assert all("ds-zero3-52B" in name and "hf" not in name for name in unknown)

"""Every number of an explanation is found in the JSON; and the checker that says so finds what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.explanations import SCENARIOS, check, check_figure, check_sentence, follow, run

QUICK = ("single GPU", "7B on 24 GB", "60 GPUs", "tiny model")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCENARIOS]
)
def test_every_number_of_a_scenario_has_its_path(name: str) -> None:
    document, explanations = run(*SCENARIOS[name])
    assert len(explanations) >= 8
    assert check(document, explanations) == []


DOCUMENT = {
    "best": {"step": 2.5, "bytes": 3 * 2**30, "name": "NVLink 4", "levels": [{"size": 8}, {"size": 4}]},
    "ties": ["a", "b"],
}


def sentence(text: str, *numbers: dict[str, Any]) -> dict[str, Any]:
    return {"section": "s", "sentence": text, "numbers": list(numbers)}


def number(text: str, value: Any, *paths: str, formula: str = "a") -> dict[str, Any]:
    return {"text": text, "value": value, "paths": list(paths), "formula": formula}


STEP = number("2.50 s", 2.5, "best.step")


@pytest.mark.parametrize(
    "good",
    [
        sentence("It takes 2.50 s.", STEP),
        sentence("Over NVLink 4.", number("NVLink 4", "NVLink 4", "best.name")),
        sentence("It holds 3.00 GiB.", number("3.00 GiB", 3 * 2**30, "best.bytes")),
        sentence("32 devices", number("32", 32, "best.levels[0].size", "best.levels[1].size", formula="a * b")),
        sentence(
            "50.0% of ZeRO-3", number("50.0%", 0.5, "best.levels[1].size", "best.levels[0].size", formula="a / b")
        ),
        sentence("2 ties", number("2", 2, "ties", formula="len(a)")),
    ],
)
def test_true_sentences_pass(good: dict[str, Any]) -> None:
    assert check_sentence({"": DOCUMENT}, good) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (sentence("It takes 2.50 s, or 3.", STEP), "a digit that no path accounts for"),
        (sentence("It takes long.", STEP), "is not in the sentence"),
        (sentence("It takes 2.51 s.", number("2.51 s", 2.5, "best.step")), "is printed for 2.5"),
        (sentence("It takes 2.50 ms.", number("2.50 ms", 2.5, "best.step")), "is printed for 2.5"),
        (sentence("It takes 2.50 s.", number("2.50 s", 2.6, "best.step")), "is stored for 2.5"),
        (sentence("It takes 2.50 s.", number("2.50 s", 2.5, "best.stop")), "lead nowhere"),
        (sentence("It takes 2.50 s.", number("2.50 s", 2.5, "best.levels[2].size")), "lead nowhere"),
        (sentence("It takes 2.50 x.", number("2.50 x", 2.5, "best.step")), "no number with a known unit"),
        (sentence("Over NVLink 3.", number("NVLink 3", "NVLink 3", "best.name")), "is not 'NVLink 4'"),
        (sentence("It takes 2.50 s.", number("2.50 s", 2.5, "best.step", formula="__import__('os')")), "is none"),
    ],
)
def test_false_sentences_are_found(bad: dict[str, Any], said: str) -> None:
    problems = check_sentence({"": DOCUMENT}, bad)
    assert any(said in problem for problem in problems), problems


def plan(**sizes: Any) -> dict[str, Any]:
    neutral = {"data_parallel_replicate_size": 2, "data_parallel_shard_size": 8, "zero_stage": 3}
    return {"parallel": {"tensor_parallel_size": 4, "micro_batch_size": 2, **neutral, **sizes}}


@pytest.mark.parametrize(
    ("text", "wrong"), [("tp4+sp dp2x8 (zero3) mb2", 0), ("tp4 dp16", 0), ("tp8 dp2x8", 1), ("tp4 dp8x2 (zero1)", 2)]
)
def test_a_plan_in_short_form_is_read_back(text: str, wrong: int) -> None:
    figure = {"text": text, "value": text, "paths": ["best"], "formula": "summary(a)"}
    assert len(check_figure(figure, [plan()])) == wrong


def test_paths_are_followed_in_plain_json() -> None:
    assert follow(DOCUMENT, "best.levels[1].size") == 4
    assert follow(DOCUMENT, "") is DOCUMENT

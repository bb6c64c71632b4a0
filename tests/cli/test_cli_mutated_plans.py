"""Plan files with any one value replaced: understood or refused, never an internal error."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from costmodel.specs import InputError, Interval
from meshwright import make_plan
from meshwright.estimating import refuse_infinite

VALUES = (0, -1, 3, 1e30, 10**15, 0.5, "x", "", None, True, [], {}, "fp64", "none", 1e-300)
Place = tuple[str | int, ...]


def places(content: Any, here: Place = ()) -> Iterator[Place]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*here, key)
        yield from places(value, (*here, key))


def replaced(content: dict[str, Any], place: Place, value: object) -> dict[str, Any]:
    result = copy.deepcopy(content)
    target: Any = result
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    return result


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "zero_stage": 1}
    plan = make_plan("llama-tiny-demo", "2x4xcpu", global_batch_size=16, sequence_length=32, sizes=sizes)
    return plan.model_dump(mode="json")


@pytest.mark.parametrize("seed", range(8))
def test_no_value_makes_a_plan_crash(seed: int, content: dict[str, Any], cli: Callable[..., Any]) -> None:
    chance = random.Random(seed)
    found = [place for place in places(content) if "sources" not in place]
    understood = 0
    for _ in range(40):
        place, value = chance.choice(found), chance.choice(VALUES)
        Path("mutated.json").write_text(json.dumps(replaced(content, place, value)))
        result = cli("estimate", "mutated.json", "--accept-edits", "--ignore-memory", "--json")
        assert result.code in (0, 2), (place, value, result.err)
        assert "internal error" not in result.err
        if result.code == 0:
            understood += 1
            json.loads(result.out)
        else:
            assert (result.out, len(result.err.splitlines())) == ("", 1), (place, value, result.err)
    assert understood  # some values, such as another seed, leave a valid plan


def test_rates_beyond_any_machine_are_bad_input(content: dict[str, Any], cli: Callable[..., Any]) -> None:
    place = ("cluster", "device", "memory_bandwidth_bytes_per_second")
    for rate, needed in ((1e-300, "at least 1"), (1e300, "at most 1e+32")):
        Path("odd.json").write_text(json.dumps(replaced(content, place, rate)))
        result = cli("estimate", "odd.json", "--accept-edits", "--ignore-memory")
        assert result.code == 2
        assert f"memory_bandwidth_bytes_per_second: found {rate}; needed a number of {needed}" in result.err


def _overflow() -> None:
    raise OverflowError("Python int too large to convert to C long")


@pytest.mark.parametrize("predict", [_overflow, lambda: Interval(value=float("inf"), low=0, high=0)])
def test_a_prediction_that_is_no_number_is_bad_input(predict: Callable[[], object]) -> None:
    with pytest.raises(InputError, match="the prediction is not a finite number"), refuse_infinite():
        predict()

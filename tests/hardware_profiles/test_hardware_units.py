"""Numbers with units, and the sentences about what a schema refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from hardware_profiles.errors import explain_validation_error, unknown_name
from hardware_profiles.spec import InputError, Spec
from hardware_profiles.types import DeviceSpec, LevelSpec, LinkSpec
from hardware_profiles.units import UNITS, dimension_of, parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("400 Gbit/s", "bytes_per_second", 50_000_000_000),
        ("50 GB/s", "bytes_per_second", 50_000_000_000),
        ("50GB/s", "bytes_per_second", 50_000_000_000),
        ("1.5 GiB/s", "bytes_per_second", 1_610_612_736),
        ("1 bit/s", "bytes_per_second", 0.125),
        ("80 GiB", "bytes", 85_899_345_920),
        ("80 GB", "bytes", 80_000_000_000),
        ("79.15 GiB", "bytes", 84_986_665_369),
        ("2 TB", "bytes", 2_000_000_000_000),
        ("10 us", "seconds", 1e-5),
        ("0.3 us", "seconds", 3e-7),
        ("7 ns", "seconds", 7e-9),
        ("1.5 ms", "seconds", 0.0015),
        ("312 TFLOP/s", "flops_per_second", 312e12),
        ("2 GFLOP", "flops", 2e9),
        ("0.7 kW", "watts", 700),
        ("1e12", "bytes_per_second", 1e12),
        (" -3.5 ", None, -3.5),
        (".5", None, 0.5),
        (7, "bytes", 7),
        (0.25, None, 0.25),
    ],
)
def test_quantities(text: object, dimension: str | None, value: float) -> None:
    parsed = parse_quantity(text, dimension, "key")
    assert parsed == value
    assert type(parsed) is int or not float(value).is_integer()


@settings(deadline=None)
@given(value=st.floats(1e-3, 1e12), dimension=st.sampled_from(sorted(UNITS)), data=st.data())
def test_every_unit_scales_by_its_factor(value: float, dimension: str, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(UNITS[dimension])))
    parsed = parse_quantity(f"{value:.12g} {unit}", dimension, "key")
    expected = float(f"{value:.12g}") * float(UNITS[dimension][unit])
    assert parsed == pytest.approx(expected, rel=1e-12, abs=1 if dimension == "bytes" else 0)


@settings(deadline=None)
@given(value=st.one_of(st.integers(-(2**120), 2**120), st.floats(allow_nan=False, allow_infinity=False)))
def test_plain_numbers_pass_unchanged(value: float) -> None:
    assert parse_quantity(value, "bytes_per_second", "key") == value


@pytest.mark.parametrize(
    ("value", "dimension", "said"),
    [
        ("80 gb", "bytes", "key: found '80 gb': unknown unit 'gb'; did you mean "),
        ("80 GB/s", "bytes", "unknown unit 'GB/s'"),
        ("400 Gbps", "bytes_per_second", "unknown unit 'Gbps'"),
        ("10 microseconds", "seconds", "unknown unit 'microseconds'; valid: s, ms, us, ns"),
        ("1 foo", "watts", "valid: W, kW"),
        ("eighty", "bytes", "found 'eighty'; needed a size such as 80 GiB"),
        ("", "bytes", "found ''"),
        ("1,000", "bytes", "unknown unit ',000'"),
        ("1_000", None, "needed a plain number without a unit"),
        ("nan", None, "found 'nan'; needed a plain number"),
        ("inf GB/s", "bytes_per_second", "found 'inf GB/s'; needed a rate"),
        ("1e999 GB", "bytes", "found inf"),
        ("80 80 GB", "bytes", "unknown unit '80 GB'"),
        ("٨ GB", "bytes", "found '٨ GB'; needed a size"),
        (float("nan"), None, "found nan"),
        (float("-inf"), None, "found -inf"),
        (10**100, "bytes", "found a whole number of 333 bits"),
        (True, None, "found true; needed a plain number"),
        (None, "seconds", "found null; needed a time such as 10 us"),
        ([1], "seconds", "found [1]"),
        ({"a": 1}, "seconds", "found {'a': 1}"),
    ],
)
def test_bad_quantities_say_the_path_the_value_and_what_is_needed(value: object, dimension: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_quantity(value, dimension, "key")
    assert said in str(refused.value)
    assert str(refused.value).startswith("key: found")


def test_the_dimension_follows_from_the_key() -> None:
    expected = {
        "memory_bytes": "bytes",
        "bytes": "bytes",
        "memory_bandwidth_bytes_per_second": "bytes_per_second",
        "flops_per_second": "flops_per_second",
        "half_flops": "flops",
        "launch_seconds": "seconds",
        "power_limit_watts": "watts",
        "efficiency": None,
        "cores": None,
        "price_per_device_hour": None,
    }
    assert {key: dimension_of(key) for key in expected} == expected


def explain(model: type[Spec], content: dict[str, object]) -> str:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(content)
    return explain_validation_error(refused.value, "file x", model)


class Sample(Spec):
    count: int = Field(default=1, ge=1, lt=10)
    word: str = Field(default="a", pattern="^[a-z]+$", max_length=3)
    flag: bool = False
    many: tuple[int, ...] = Field(default=(1,), min_length=1)
    table: dict[str, float] = Field(default={})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"count": 0}, "file x: count: found 0; needed a number of at least 1"),
        ({"count": 12}, "file x: count: found 12; needed a number below 10"),
        ({"count": "no"}, "file x: count: found 'no'; needed a whole number"),
        ({"count": 1.5}, "file x: count: found 1.5; needed a whole number"),
        ({"word": "ABC"}, "file x: word: found 'ABC'; needed text that matches ^[a-z]+$"),
        ({"word": "long"}, "file x: word: found 'long'; needed text of at most 3 character(s)"),
        ({"word": 3}, "file x: word: found 3; needed text"),
        ({"flag": "perhaps"}, "file x: flag: found 'perhaps'; needed true or false"),
        ({"many": []}, "file x: many: found []; needed at least 1 item(s)"),
        ({"many": 3}, "file x: many: found 3; needed a list"),
        ({"many": [1, "b"]}, "file x: many.1: found 'b'; needed a whole number"),
        ({"table": {"a": "b"}}, "file x: table.a: found 'b'; needed a number"),
        ({"table": 4}, "file x: table: found 4; needed a mapping of keys to values"),
        ({"table": {"a": float("nan")}}, "file x: table.a: found nan; needed a finite number"),
        ({"wrod": 1}, "file x: wrod: unknown key 'wrod'; did you mean word? valid: count, word, flag, many, table"),
        ({"count": 0, "word": 3}, "file x: count: found 0; needed a number of at least 1 (and 1 more problem)"),
        ({"count": 0, "word": 3, "flag": 9}, "(and 2 more problems)"),
    ],
)
def test_refusals_become_one_sentence(content: dict[str, object], said: str) -> None:
    sentence = explain(Sample, content)
    assert said in sentence
    assert "\n" not in sentence
    assert "Input should" not in sentence


def test_unknown_keys_deep_inside_are_answered_with_the_keys_at_their_place() -> None:
    link = {"name": "a", "nominal_bytes_per_second": 1, "efficiency": 1, "latency_seconds": 0, "latency": 1}
    sentence = explain(LevelSpec, {"name": "node", "size": 1, "link": link})
    assert (
        f"link.latency: unknown key 'latency'; did you mean latency_seconds? valid: {', '.join(LinkSpec.model_fields)}"
        in sentence
    )


def test_closed_choices_are_listed() -> None:
    assert "kind: found 'tpu'; needed one of 'cuda', 'cpu'" in explain(DeviceSpec, {"name": "x", "kind": "tpu"})


def test_long_values_are_cut() -> None:
    sentence = explain(Sample, {"count": "9" * 10_000})
    assert len(sentence) < 200


def test_unknown_names_without_a_close_one_get_the_list_alone() -> None:
    assert unknown_name("schedule", "zzz", ["gpipe", "1f1b"]) == "unknown schedule 'zzz'; valid: gpipe, 1f1b"
    assert unknown_name("schedule", "GPIPE", ["gpipe"]) == "unknown schedule 'GPIPE'; did you mean gpipe? valid: gpipe"

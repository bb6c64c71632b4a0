"""Numbers for people."""

import pytest

from meshwright import units

GIB = 1024**3
DAY = 86400.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(80 * GIB, "80 GiB"), (71.26 * GIB, "71.3 GiB"), (2048 * GIB, "2,048 GiB"), (0.5 * GIB, "512 MiB"), (0, "0 GiB")],
)
def test_memory(value: float, text: str) -> None:
    assert units.memory(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(6.4234, "6.42 s"), (32, "32 s"), (0.8121, "812 ms"), (9.51e-5, "95.1 us"), (0, "0 s"), (7998.6, "7,999 s")],
)
def test_seconds(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5 s"),
        (300, "5 minutes"),
        (9000, "2.5 hours"),
        (34 * DAY, "34 days"),
        (213 * DAY, "7 months (213 days)"),
        (36 * 365.25 * DAY, "36 years"),
    ],
)
def test_durations_are_said_in_the_unit_people_use(value: float, text: str) -> None:
    assert units.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(989.4e12, "989 TFLOP/s"), (48e9, "48 GFLOP/s"), (2e16, "20 PFLOP/s"), (918029, "918,029 FLOP/s")],
)
def test_rates_are_decimal(value: float, text: str) -> None:
    """1 TFLOP/s is 1e12, never 2**40."""
    assert units.rate(value, "FLOP/s") == text


def test_counts_and_shares() -> None:
    assert [units.count(value) for value in (3e11, 1.5e13, 124_439_808, 512)] == ["300B", "15T", "124M", "512"]
    assert [units.percent(share) for share in (0.4119, 0.0061, 1e-6, 0, 1)] == [
        "41.2%",
        "0.6%",
        "<0.1%",
        "0.0%",
        "100.0%",
    ]


def test_a_column_has_one_unit() -> None:
    column = units.MemoryColumn([3 * GIB, GIB // 2])
    assert (column.unit, column(3 * GIB), column(GIB // 2), column(0)) == ("GiB", "3.00", "0.50", "-")
    small = units.MemoryColumn([GIB // 2])
    assert (small.unit, small(GIB // 2)) == ("MiB", "512.0")
    time = units.TimeColumn([0.25, 0.001])
    assert (time.unit, time(0.25), time(0.001)) == ("ms", "250.0", "1.000")

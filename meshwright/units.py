"""Numbers for people. Every function takes SI and returns text with its unit."""

from __future__ import annotations

import math

GIB = 1024**3
MIB = 1024**2
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_YEAR = 365.25 * _DAY
_MONTH = _YEAR / 12


def memory(value_bytes: float) -> str:
    """``71.3 GiB``; below 1 GiB ``12.4 MiB``."""
    if value_bytes and abs(value_bytes) < GIB:
        return f"{significant(value_bytes / MIB)} MiB"
    return f"{significant(value_bytes / GIB)} GiB"


class MemoryColumn:
    """One unit for a whole table, chosen by its largest value, so that the digits line up."""

    def __init__(self, values_bytes: list[int]) -> None:
        largest = max(values_bytes, default=0)
        self.unit, self._divisor = ("MiB", MIB) if 0 < largest < GIB else ("GiB", GIB)

    def __call__(self, value_bytes: float) -> str:
        """The value in the column's unit, without it."""
        number = value_bytes / self._divisor
        return "-" if not number else f"{number:.2f}" if abs(number) < 100 else f"{number:,.1f}"


class TimeColumn:
    """One unit for a whole column of seconds, chosen by its largest value."""

    def __init__(self, values_seconds: list[float]) -> None:
        largest = max(values_seconds, default=0.0)
        self.unit, self._divisor = ("s", 1.0) if largest >= 1 else ("ms", 1e-3)

    def __call__(self, value_seconds: float) -> str:
        """The value in the column's unit, without it."""
        number = value_seconds / self._divisor
        return "-" if not number else f"{number:.3f}" if number < 100 else f"{number:,.1f}"


def seconds(value: float) -> str:
    """``6.42 s``, ``812 ms``, ``95.1 us``."""
    if value >= 1 or value == 0:
        return f"{significant(value)} s"
    return f"{significant(value * 1e3)} ms" if value >= 1e-3 else f"{significant(value * 1e6)} us"


def duration(value: float) -> str:
    """A training time in the unit people say it in: minutes, hours, days, months or years."""
    if value < 2 * _MINUTE:
        return f"{significant(value)} s"
    if value < 2 * _HOUR:
        return f"{significant(value / _MINUTE)} minutes"
    if value < 2 * _DAY:
        return f"{significant(value / _HOUR)} hours"
    if value < 100 * _DAY:
        return f"{significant(value / _DAY)} days"
    if value < 2 * _YEAR:
        return f"{significant(value / _MONTH)} months ({value / _DAY:,.0f} days)"
    return f"{significant(value / _YEAR)} years"


def rate(value: float, unit: str) -> str:
    """``989 TFLOP/s``, ``3.35 TB/s``, ``450 GB/s``, ``1,234 tokens/s``: powers of 1000."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale and not (scale == 1e15 and value < 1e16):
            return f"{significant(value / scale)} {prefix}{unit}"
    return f"{significant(value)} {unit}"


def count(value: float) -> str:
    """``300 billion``-like: ``300B``, ``15T``; below a million the plain number."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= scale:
            return f"{significant(value / scale)}{suffix}"
    return f"{value:,.0f}"


def percent(fraction: float) -> str:
    """``41.2%``; what rounds to nothing is ``<0.1%``."""
    return "<0.1%" if 0 < fraction < 0.0005 else f"{fraction:.1%}"


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant digits, thousands grouped, no exponent and no trailing dot."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    if "." in text and abs(value) >= 1:
        text = text.rstrip("0").rstrip(".")
    return text

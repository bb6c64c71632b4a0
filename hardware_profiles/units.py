"""Numbers with a unit, as people write them, to SI.

The dimension of a value follows from the end of its key (``_bytes``, ``_seconds``, ...), so a plain number is
always in the unit that the key names.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_DOWN, Decimal

from hardware_profiles.errors import show_value, unknown_name
from hardware_profiles.spec import InputError

_DECIMAL = {
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
}
_BINARY = {"Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40)}
_BYTES = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_BITS_PER_SECOND = {f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()}
_FLOPS = {f"{prefix}FLOP": factor for prefix, factor in _DECIMAL.items()}

# Decimal factors, because 10 us is 1e-05 s and not 10 * 1e-06 = 9.999999999999999e-06 s.
UNITS: dict[str, dict[str, Decimal]] = {
    "bytes_per_second": {**{f"{unit}/s": factor for unit, factor in _BYTES.items()}, **_BITS_PER_SECOND},
    "flops_per_second": {f"{unit}/s": factor for unit, factor in _FLOPS.items()},
    "bytes": _BYTES,
    "seconds": {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")},
    "flops": _FLOPS,
    "watts": {"W": Decimal(1), "kW": Decimal(1000)},
}
_QUANTITY = re.compile(
    r"\s*(?P<number>[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?)\s*(?P<unit>.*?)\s*",
    re.ASCII,
)


def dimension_of(key: str) -> str | None:
    """The dimension that the end of a key names, longest first; None for a count or a fraction."""
    for dimension in UNITS:
        if key == dimension or key.endswith(f"_{dimension}"):
            return dimension
    return None


def parse_quantity(value: object, dimension: str | None, path: str) -> int | float:
    """Turn ``400 Gbit/s``, ``80 GiB``, ``10 us`` or a plain number into SI.

    Args:
        value: a number (already SI) or text with one of the units of ``UNITS[dimension]``.
        dimension: a key of ``UNITS``, or None for a pure number.
        path: where the value stands, for the message.

    Returns:
        An int where the result is whole, else a float. A size in bytes with a unit is rounded down to whole bytes.
        Signs and zero are passed on.

    Raises:
        InputError: not a number, not finite, or an unknown unit.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{path}: found {show_value(value)}; needed {_describe(dimension)}")
    if isinstance(value, str):
        value = _parse_text(value, dimension, path)
    if isinstance(value, int) and value.bit_length() > 128:
        raise InputError(f"{path}: found a whole number of {value.bit_length()} bits; needed {_describe(dimension)}")
    if not math.isfinite(value):
        raise InputError(f"{path}: found {value}; needed {_describe(dimension)}, and a finite one")
    return value


def _parse_text(text: str, dimension: str | None, path: str) -> int | float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(f"{path}: found {show_value(text)}; needed {_describe(dimension)}")
    number, unit = match["number"], match["unit"]
    units = UNITS[dimension] if dimension else {}
    if unit and unit not in units:
        if not units:
            raise InputError(f"{path}: found {show_value(text)}; needed a plain number without a unit")
        raise InputError(f"{path}: found {show_value(text)}: {unknown_name('unit', unit, units)}")
    scaled = Decimal(number) * (units[unit] if unit else 1)
    if dimension == "bytes" and unit:
        scaled = scaled.to_integral_value(ROUND_DOWN)  # 79.15 GiB is no whole number of bytes
    rounded = float(scaled)
    return int(scaled) if abs(rounded) < 2**63 and scaled == scaled.to_integral_value() else rounded


def _describe(dimension: str | None) -> str:
    if dimension is None:
        return "a plain number"
    examples = {
        "bytes_per_second": "a rate such as 400 Gbit/s or 50 GB/s",
        "flops_per_second": "a rate such as 312 TFLOP/s",
        "bytes": "a size such as 80 GiB or 2 TB",
        "seconds": "a time such as 10 us",
        "flops": "a number of operations such as 2 GFLOP",
        "watts": "a power such as 700 W",
    }
    return f"{examples[dimension]}, or a plain number in {dimension.replace('_', ' ')}"

"""Measured points -> the two-parameter curves of the cost model.

Both curves are one straight line in linear space, with positive intercept and slope:

    (1) link     seconds              = latency + bytes / bytes_per_second
    (2) GEMM     peak * seconds       = (flops + half_flops) / max_fraction

Equation (2) is GemmCurve's fraction = max_fraction * F / (F + half_flops) solved for the time. So both are

    (3)          y = slope * (ratio + x)

with x = bytes or FLOP, ratio = latency * bytes_per_second or half_flops (the size at which half of the asymptote is
reached). Sizes span many orders of magnitude, so residuals are relative:

    (4)          r_i = log y_i - log slope - log(ratio + x_i)

and the loss is Huber's (Robust estimation of a location parameter, 1964): quadratic up to 10%, linear beyond, so one
disturbed measurement cannot pull the curve. For a given ratio the best log slope is a one-dimensional location
estimate; the ratio itself is found by a logarithmic scan and golden-section refinement. Both are deterministic.
How well a curve holds its points is the root mean square of (4), a relative error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hardware_profiles.errors import show_value
from hardware_profiles.spec import InputError
from hardware_profiles.types import GemmCurve

_HUBER_WIDTH = 0.1
_SCAN_STEPS_PER_DECADE = 8
_GOLDEN = (math.sqrt(5) - 1) / 2

_Array = npt.NDArray[np.float64]


def fit_gemm_curve(points: Sequence[tuple[float, float, float]]) -> GemmCurve:
    """Fit equation (2).

    Args:
        points: (FLOP of the multiplication, seconds, peak FLOP/s), at least two different sizes.

    Returns:
        The curve; ``max_fraction`` is not limited to 1, because a CPU's peak is a measurement itself.

    Raises:
        InputError: fewer than two different sizes, or a value that is not positive and finite.
    """
    table = _table(points, 3, "GEMM points (flops, seconds, peak)")
    slope, ratio = _fit_line(table[:, 0], table[:, 1] * table[:, 2])
    return GemmCurve(max_fraction=1 / slope, half_flops=ratio)


def fit_link(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit equation (1).

    Args:
        points: (bytes, seconds), at least two different sizes.

    Returns:
        (bytes per second of an infinite message, seconds of an empty one).

    Raises:
        InputError: fewer than two different sizes, or a value that is not positive and finite.
    """
    table = _table(points, 2, "link points (bytes, seconds)")
    slope, ratio = _fit_line(table[:, 0], table[:, 1])
    return 1 / slope, slope * ratio


def gemm_residual(curve: GemmCurve, points: Sequence[tuple[float, float, float]]) -> float:
    """Root mean square of equation (4) for equation (2); arguments as `fit_gemm_curve` takes and returns them."""
    predicted = [(flops + curve.half_flops) / curve.max_fraction / peak for flops, _, peak in points]
    return _root_mean_square(predicted, [seconds for _, seconds, _ in points])


def link_residual(bytes_per_second: float, latency_seconds: float, points: Sequence[tuple[float, float]]) -> float:
    """Root mean square of equation (4) for equation (1); arguments as `fit_link` takes and returns them."""
    predicted = [latency_seconds + size / bytes_per_second for size, _ in points]
    return _root_mean_square(predicted, [seconds for _, seconds in points])


def _root_mean_square(predicted: Sequence[float], measured: Sequence[float]) -> float:
    logs = np.log(np.asarray(measured, dtype=np.float64)) - np.log(np.asarray(predicted, dtype=np.float64))
    return float(np.sqrt(np.mean(logs**2)))


def _table(points: Sequence[tuple[float, ...]], columns: int, what: str) -> _Array:
    if any(len(point) != columns for point in points):
        raise InputError(f"{what}: found a point of another length; needed {columns} numbers each")
    table = np.asarray(points, dtype=np.float64).reshape(-1, columns)
    bad = ~(np.isfinite(table) & (table > 0)).all(axis=1)
    if bad.any():
        raise InputError(f"{what}: found {show_value(points[int(bad.argmax())])}; needed positive, finite numbers")
    if len(np.unique(table[:, 0])) < 2:
        raise InputError(f"{what}: found {len(np.unique(table[:, 0]))} different sizes; needed at least 2")
    return table


def _fit_line(x: _Array, y: _Array) -> tuple[float, float]:
    """Slope and ratio of equation (3)."""
    low, high = math.log10(x.min()) - 3, math.log10(x.max()) + 3
    grid = np.linspace(low, high, math.ceil((high - low) * _SCAN_STEPS_PER_DECADE) + 1)
    losses = np.array([_loss(x, y, 10**exponent) for exponent in grid])
    best = int(losses.argmin())
    exponent = _golden_section(x, y, grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)])
    # A ratio far below the smallest size is no different from none; say none.
    ratio = float(10**exponent) if best > 0 and _loss(x, y, 10**exponent) < _loss(x, y, 0.0) else 0.0
    return math.exp(_location(np.log(y) - np.log(ratio + x))), ratio


def _golden_section(x: _Array, y: _Array, low: float, high: float) -> float:
    """The exponent of the ratio with the smallest loss in an interval where the loss has one minimum."""
    while high - low > 1e-9:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _loss(x, y, 10**left) <= _loss(x, y, 10**right):
            high = right
        else:
            low = left
    return (low + high) / 2


def _loss(x: _Array, y: _Array, ratio: float) -> float:
    offsets = np.log(y) - np.log(ratio + x)
    residuals = np.abs(offsets - _location(offsets))
    quadratic = np.minimum(residuals, _HUBER_WIDTH)
    return float(np.sum(quadratic * (residuals - quadratic / 2)))


def _location(values: _Array) -> float:
    """Huber's location estimate by iterated reweighting from the median."""
    center = float(np.median(values))
    for _ in range(50):
        distance = np.maximum(np.abs(values - center), 1e-300)
        weights = np.minimum(1.0, _HUBER_WIDTH / distance)
        moved = float(np.average(values, weights=weights))
        if moved == center:
            break
        center = moved
    return center

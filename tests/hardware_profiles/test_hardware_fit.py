"""Fitting curves to measured points: known curves come back, and the profiles carry the fits of public points."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.fit import fit_gemm_curve, fit_link
from hardware_profiles.loader import load_device, load_node
from hardware_profiles.spec import InputError
from hardware_profiles.types import GemmCurve

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "hardware"
PROFILES = Path(__file__).parents[2] / "hardware_profiles"
SIZES = [2.0**exponent for exponent in range(10, 31, 2)]


def entries(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text())
    return loaded


@settings(max_examples=30, deadline=None)
@given(rate=st.floats(1e8, 1e12), latency=st.floats(1e-7, 1e-3))
def test_a_known_link_comes_back(rate: float, latency: float) -> None:
    fitted_rate, fitted_latency = fit_link([(size, latency + size / rate) for size in SIZES])
    # Both are visible in the points only where neither hides below the rounding of the other.
    if 1e3 < latency * rate < 1e9:
        assert fitted_rate == pytest.approx(rate, rel=1e-5)
        assert fitted_latency == pytest.approx(latency, rel=1e-5)
    predicted = [fitted_latency + size / fitted_rate for size in SIZES]
    assert predicted == pytest.approx([latency + size / rate for size in SIZES], rel=1e-2)


@settings(max_examples=30, deadline=None)
@given(fraction=st.floats(0.05, 1.5), half=st.floats(1e6, 1e11))
def test_a_known_gemm_curve_comes_back(fraction: float, half: float) -> None:
    peak = 312e12
    flops = [2.0 * n**3 for n in (128, 256, 512, 1024, 2048, 4096, 8192)]
    points = [(f, f / (peak * fraction * f / (f + half)), peak) for f in flops]
    curve = fit_gemm_curve(points)
    assert curve.max_fraction == pytest.approx(fraction, rel=1e-4)
    assert curve.half_flops == pytest.approx(half, rel=1e-4)


def test_a_link_without_latency_has_none() -> None:
    rate, latency = fit_link([(size, size / 50e9) for size in SIZES])
    assert rate == pytest.approx(50e9, rel=1e-6)
    assert 0 <= latency < 1e-3 * SIZES[0] / 50e9


def test_two_points_determine_both_numbers() -> None:
    # 3 us + 1 MB at 1 GB/s = 1003 us; 3 us + 1 kB at 1 GB/s = 4 us.
    rate, latency = fit_link([(1e6, 1003e-6), (1e3, 4e-6)])
    assert rate == pytest.approx(1e9, rel=1e-5)
    assert latency == pytest.approx(3e-6, rel=1e-5)


def test_one_disturbed_measurement_does_not_move_the_curve() -> None:
    points = [(size, 5e-6 + size / 20e9) for size in SIZES]
    points[6] = (points[6][0], points[6][1] * 20)
    rate, latency = fit_link(points)
    assert rate == pytest.approx(20e9, rel=0.05)
    assert latency == pytest.approx(5e-6, rel=0.05)


def test_noise_of_five_percent_leaves_the_curve_within_five_percent() -> None:
    noise = np.random.default_rng(0).lognormal(sigma=0.05, size=(len(SIZES), 8))
    points = [(size, (8e-6 + size / 100e9) * factor) for size, row in zip(SIZES, noise, strict=True) for factor in row]
    rate, latency = fit_link(points)
    assert rate == pytest.approx(100e9, rel=0.05)
    assert latency == pytest.approx(8e-6, rel=0.05)


def test_order_and_repetition_do_not_matter() -> None:
    points = [(size, (5e-6 + size / 20e9) * (1 + 0.03 * (-1) ** index)) for index, size in enumerate(SIZES)]
    assert fit_link(points[::-1]) == pytest.approx(fit_link(points), rel=1e-6)
    assert fit_link(points * 3) == pytest.approx(fit_link(points), rel=1e-6)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "found 0 different sizes; needed at least 2"),
        ([(1e6, 1e-3)], "found 1 different sizes"),
        ([(1e6, 1e-3), (1e6, 2e-3)], "found 1 different sizes"),
        ([(1e6, 1e-3), (2e6, 0.0)], "found (2000000.0, 0.0); needed positive, finite numbers"),
        ([(1e6, 1e-3), (-2e6, 1e-3)], "found (-2000000.0, 0.001)"),
        ([(1e6, 1e-3), (2e6, float("nan"))], "found (2000000.0, nan)"),
        ([(1e6, 1e-3), (2e6, float("inf"))], "found (2000000.0, inf)"),
        ([(1e6, 1e-3), (2e6,)], "found a point of another length"),
    ],
)
def test_points_that_determine_no_curve_are_refused(points: Any, said: str) -> None:
    with pytest.raises(InputError) as refused:
        fit_link(points)
    assert said in str(refused.value)


def before_training_runs(device: str, curve: GemmCurve) -> GemmCurve:
    """The prior of the device's family, which training runs then move, or the curve of a device without a family."""
    own = yaml.safe_load((PROFILES / "devices" / f"{device}.yaml").read_text(encoding="utf-8"))
    if "gemm" in own:
        return curve
    family = yaml.safe_load((PROFILES / "families" / f"{own['family']}.yaml").read_text(encoding="utf-8"))["gemm"]
    return GemmCurve(max_fraction=family["max_fraction"]["prior"], half_flops=family["half_flops"]["prior"])


@pytest.mark.parametrize("entry", entries("gemm"), ids=lambda entry: entry["device"])
def test_profiles_carry_the_fitted_half_size_of_public_gemms(entry: dict[str, Any]) -> None:
    device = load_device(entry["device"])
    peak = device.peak_flops_per_second[entry["precision"]]
    points = []
    for point in entry["points"]:
        flops = 2.0 * point["m"] * point["n"] * point["k"]
        points.append((flops, flops / (point["tflops"] * 1e12), peak))
    curve, stated = fit_gemm_curve(points), before_training_runs(entry["device"], device.gemm)
    assert stated.half_flops == pytest.approx(curve.half_flops, rel=0.01)
    # The large-size fraction is that of whole training steps where those are published, 10% around isolated GEMMs.
    assert stated.max_fraction == pytest.approx(curve.max_fraction, rel=0.1)


@pytest.mark.parametrize("entry", entries("all_reduce"), ids=lambda entry: entry["node"])
def test_profiles_carry_the_fitted_latency_of_public_all_reduces(entry: dict[str, Any]) -> None:
    link, n = load_node(entry["node"]).link, entry["num_devices"]
    large = [point for point in entry["points"] if point["bytes"] >= 8e6]
    sent = [2 * (n - 1) / n * point["bytes"] for point in large]
    rate, seconds = fit_link(
        [(size, size / (point["bus_gb_per_second"] * 1e9)) for size, point in zip(sent, large, strict=True)]
    )
    assert link.latency_seconds == pytest.approx(seconds / (2 * (n - 1)), rel=0.01)
    assert link.measured_bytes_per_second is not None
    if entry["node"] == "dgx-a100":  # Hopper and Blackwell reduce in the switch; their profiles hold the slower ring
        assert link.measured_bytes_per_second == pytest.approx(rate, rel=0.01)
    else:
        assert link.measured_bytes_per_second < rate

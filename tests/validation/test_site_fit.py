"""The fit of a site: closed forms where there are some, and laws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.validation.site_fit import (
    RUN_SCATTER,
    SCATTER_RUNS,
    Z_80,
    Vector,
    fit_memory,
    fit_site,
    prior_widths,
    whole_error,
)

BAND = math.expm1(Z_80 * 0.2)  # a whole error of 20%


def rate_only(theta: Vector, runs: int = 1) -> Vector:
    """Steps of one second that computation fills: the efficiency divides them, nothing else matters."""
    return np.full(runs, -theta[0])


def test_the_whole_error_splits_into_scatter_and_rate() -> None:
    scatter, prior = prior_widths(0.2)
    assert scatter == pytest.approx(math.sqrt(RUN_SCATTER * 0.2)) == pytest.approx(0.1)
    assert scatter**2 + prior[0] ** 2 == pytest.approx(0.2**2)
    assert whole_error(BAND) == pytest.approx(0.2)


def test_runs_that_are_off_together_widen_the_band_and_a_single_or_an_odd_one_does_not() -> None:
    assert whole_error(BAND, np.array([0.4, 0.4])) == pytest.approx(0.2)
    assert whole_error(BAND, np.array([0.8] * 4)) == pytest.approx(math.sqrt(0.75 * 0.64 - 3 * 0.04))
    assert whole_error(BAND, np.array([0.8])) == pytest.approx(0.2)
    assert whole_error(BAND, np.array([0.8, 0.0, 0.0])) == pytest.approx(0.2)


def test_one_run_is_shrunk_as_the_normal_posterior_says() -> None:
    """theta = r tau^2 / (tau^2 + sigma^2); one run says nothing of the scatter between runs."""
    target = math.log(1.25)
    fit = fit_site(rate_only, [1.25], BAND)
    sigma, prior = prior_widths(0.2)
    expected = target * prior[0] ** 2 / (prior[0] ** 2 + sigma**2)
    assert -fit.theta[0] == pytest.approx(expected, rel=1e-6)
    assert fit.scatter == pytest.approx(sigma)
    assert fit.errors[0] == pytest.approx((1 / prior[0] ** 2 + 1 / sigma**2) ** -0.5)
    assert fit.before.tolist() == [pytest.approx(target)]
    assert fit.after[0] == pytest.approx(target - expected)


def test_the_scatter_is_what_runs_do_not_have_in_common() -> None:
    """Four runs at +-10% around a common offset: sum of squares 0.04, beside a prior that counts as 4 runs."""
    logs = np.array([0.4, 0.2, 0.4, 0.2])
    fit = fit_site(lambda theta: rate_only(theta, 4), list(np.exp(logs)), BAND)
    sigma, _ = prior_widths(whole_error(BAND, logs))
    assert fit.scatter == pytest.approx(math.sqrt((SCATTER_RUNS * sigma**2 + 0.04) / (SCATTER_RUNS + 3)))


def test_what_no_run_depends_on_keeps_its_prior() -> None:
    fit = fit_site(rate_only, [1.25], BAND)
    assert fit.theta[1:].tolist() == [0.0, 0.0]
    assert fit.errors[1:] == pytest.approx(fit.prior[1:])
    assert fit.errors[0] < fit.prior[0]


@pytest.mark.parametrize("runs", [1, 3, 10, 100])
def test_more_runs_that_agree_correct_more(runs: int) -> None:
    left = [fit_site(lambda t, n=n: rate_only(t, n), [1.3] * n, BAND) for n in (runs, runs + 1)]
    assert abs(left[1].after[0]) < abs(left[0].after[0])
    assert left[1].error_band < left[0].error_band
    assert left[1].errors[0] < left[0].errors[0]


def test_three_causes_are_told_apart_by_runs_that_differ() -> None:
    """Steps of computation, of host time and of communication, of a known truth, with little noise."""
    work = np.array(
        [[8, 1, 0.1], [7, 0.5, 0.4], [1, 9, 0.2], [0.5, 8, 0.1], [2, 1, 9], [1, 0.2, 8], [3, 3, 3], [5, 1, 6]]
    )

    def model(theta: Vector) -> Vector:
        exposed = 1 - min(1.0, max(0.0, 0.5 + theta[2]))
        return np.asarray(
            np.log(work[:, 0] * math.exp(-theta[0]) + work[:, 1] * math.exp(theta[1]) + work[:, 2] * exposed)
        )

    truth = np.array([math.log(0.8), math.log(1.5), 0.2])
    seconds = np.exp(model(truth))
    fit = fit_site(model, list(seconds), BAND)
    assert fit.theta == pytest.approx(truth, abs=0.05)
    assert np.abs(fit.after).max() < 0.02 < np.abs(fit.before).max()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.4, 2.5), min_size=1, max_size=8), st.floats(0.02, 0.5))
def test_the_fit_never_costs_more_than_no_correction(measured: list[float], band: float) -> None:
    fit = fit_site(lambda theta: rate_only(theta, len(measured)), measured, band)
    assert float((fit.after**2).sum()) <= float((fit.before**2).sum()) + 1e-12
    assert math.log(0.2) <= fit.theta[0] <= math.log(2.0)
    assert fit.error_band > 0


@settings(max_examples=60, deadline=None)
@given(st.floats(0.7, 1.4), st.floats(0.02, 0.5))
def test_the_memory_margin_lies_between_none_and_the_measured_one(ratio: float, band: float) -> None:
    margin, error = fit_memory([ratio], band)
    assert min(1.0, ratio) - 1e-12 <= margin <= max(1.0, ratio) + 1e-12
    assert error <= prior_widths(whole_error(band, np.log([ratio])))[1][0]
    assert fit_memory([], band)[0] == 1.0
    assert abs(fit_memory([ratio] * 9, band)[0] - ratio) <= abs(margin - ratio) + 1e-12

"""Corrections of a site from few runs: as much as the runs prove, and no more.

With theta = (log efficiency, log launch, overlap) of `costmodel.site` and r_i = log(measured_i / predicted_i(theta)):

    (1) r_i ~ N(0, sigma^2) between runs of one site, theta_j ~ N(0, tau_j^2) between sites
    (2) s = log(1 + error_band) / z, the runtime's whole error: s^2 = tau_1^2 + sigma_0^2, tau_1 of the efficiency;
        sigma_0 = sqrt(s x RUN_SCATTER), as the scatter inside a site grows less than the error between sites;
        several runs that are off together by more than 2 s refute the band: s^2 <- max(s^2, (1 - 1/n) (mean r(0))^2 - 3 s^2),
        while a single one may be odd by itself
    (3) minimise sum r_i^2 / sigma^2 + sum theta_j^2 / tau_j^2 (maximum a posteriori) by Gauss-Newton steps
        (J'J / sigma^2 + T^-2) step = J' r / sigma^2 - T^-2 theta, J = d log predicted / d theta by differences
    (4) sigma^2 <- (nu sigma_0^2 + sum (r_i - mean r)^2) / (nu + n - 1), the prior scatter counting as nu runs; what all runs
        have in common is theta's to explain
    (5) covariance of theta C = (J'J / sigma^2 + T^-2)^-1
    (6) new band = exp(z sqrt(sigma^2 + mean over runs of g' C g)) - 1, g a row of J

A known runtime has a narrow band, hence a small tau_1 and a small correction; an unknown one a wide band, so that one run
moves it most of the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.specs.site import (
    HIGHEST_LAUNCH,
    HIGHEST_MEMORY,
    HIGHEST_RATE,
    LOWEST_LAUNCH,
    LOWEST_MEMORY,
    LOWEST_RATE,
)

Vector = NDArray[np.float64]
Model = Callable[[Vector], Vector]
"""theta [3] -> log of the predicted step times [runs]."""

Z_80 = 1.2815515655446004
"""Half width of a central 80% interval in standard deviations."""

RUN_SCATTER = 0.05
"""In number (2): the published runs of one dataset, runtime and device scatter by 4 to 9% around their mean where the whole error
is 7%, and by 10% (the median) where it is 20 to 30%; `benchmarks/calibrate_site.py` draws from them."""

SCATTER_RUNS = 4.0
_MOST_SCATTER = 0.9
_REFUTED = 3.0
_LAUNCH_RATIO, _OVERLAP_RATIO = 4.0, 1.5
"""tau of log launch and of overlap over that of the efficiency: host time and overlap are known less well than kernels."""

_LOWER = np.array([math.log(LOWEST_RATE), math.log(LOWEST_LAUNCH), -1.0])
_UPPER = np.array([math.log(HIGHEST_RATE), math.log(HIGHEST_LAUNCH), 1.0])
_DIFFERENCES = np.array([0.01, 0.05, 0.02])
_MAX_ROUNDS, _MAX_HALVINGS, _CONVERGED = 12, 6, 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFit:
    """The solution: ``theta`` and its standard ``errors`` [3], ``prior`` tau [3], residuals r before and after [runs]."""

    theta: Vector
    errors: Vector
    prior: Vector
    before: Vector
    after: Vector
    scatter: float
    error_band: float


def whole_error(error_band: float, residuals: Vector | None = None) -> float:
    """Number (2): s, the standard deviation that a runtime's error band says, or more where runs refute it."""
    stated = math.log1p(error_band) / Z_80
    seen = 0.0 if residuals is None else (1 - 1 / len(residuals)) * float(residuals.mean()) ** 2
    return math.sqrt(max(stated**2, seen - _REFUTED * stated**2))


def prior_widths(whole: float) -> tuple[float, Vector]:
    """sigma_0 and the tau of equations (1) and (2) from s."""
    scatter = min(_MOST_SCATTER * whole, math.sqrt(RUN_SCATTER * whole))
    rate = math.sqrt(whole**2 - scatter**2)
    return scatter, rate * np.array([1.0, _LAUNCH_RATIO, _OVERLAP_RATIO])


def fit_site(model: Model, measured_seconds: Sequence[float], error_band: float) -> SiteFit:
    """Equations (1) to (6).

    Args:
        model: log of the predicted seconds of every run under corrections theta.
        measured_seconds: positive, one a run.
        error_band: half width of the runtime's 80% interval, which says how far its predictions are off as a rule.
    """
    target = np.log(np.asarray(measured_seconds, dtype=np.float64))
    theta = np.zeros(3)
    before = target - model(theta)
    first, prior = prior_widths(whole_error(error_band, before))
    scatter = first
    for _ in range(2):  # the scatter follows from the residuals, the residuals hardly from the scatter
        theta, jacobian = _minimise(model, target, theta, scatter, prior)
        residuals = target - model(theta)
        apart = float(((residuals - residuals.mean()) ** 2).sum())
        scatter = math.sqrt((SCATTER_RUNS * first**2 + apart) / (SCATTER_RUNS + len(target) - 1))
    covariance = _covariance(jacobian, scatter, prior)
    spread = float(np.einsum("ij,jk,ik->i", jacobian, covariance, jacobian).mean())
    return SiteFit(
        theta=theta,
        errors=np.sqrt(np.diag(covariance)),
        prior=prior,
        before=before,
        after=residuals,
        scatter=scatter,
        error_band=math.expm1(Z_80 * math.sqrt(scatter**2 + spread)),
    )


def fit_memory(ratios: Sequence[float], error_band: float) -> tuple[float, float]:
    """Memory margin and the standard error of its logarithm from measured / predicted peaks, shrunk as in (1) and (2).

    Without runs the margin is 1 and its error that of the prior.
    """
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    scatter, prior = prior_widths(whole_error(error_band, logs if len(logs) else None))
    width = float(prior[0])
    precision = len(logs) / scatter**2 + 1.0 / width**2
    margin = math.exp(float(logs.sum()) / scatter**2 / precision)
    return min(HIGHEST_MEMORY, max(LOWEST_MEMORY, margin)), precision**-0.5


def _minimise(model: Model, target: Vector, theta: Vector, scatter: float, prior: Vector) -> tuple[Vector, Vector]:
    """Equation (3) within the physical bounds; also the Jacobian at the solution."""
    residuals = target - model(theta)
    cost = _cost(residuals, theta, scatter, prior)
    jacobian = _jacobian(model, theta)
    for _ in range(_MAX_ROUNDS):
        gradient = jacobian.T @ residuals / scatter**2 - theta / prior**2
        step = np.linalg.solve(jacobian.T @ jacobian / scatter**2 + np.diag(prior**-2), gradient)
        for halving in range(_MAX_HALVINGS):
            tried = np.clip(theta + step / 2**halving, _LOWER, _UPPER)
            left = target - model(tried)
            if (found := _cost(left, tried, scatter, prior)) < cost:
                break
        else:
            break
        gain = cost - found
        theta, residuals, cost, jacobian = tried, left, found, _jacobian(model, tried)
        if gain < _CONVERGED * max(1.0, cost):
            break
    return theta, jacobian


def _cost(residuals: Vector, theta: Vector, scatter: float, prior: Vector) -> float:
    return float((residuals**2).sum() / scatter**2 + ((theta / prior) ** 2).sum())


def _jacobian(model: Model, theta: Vector) -> Vector:
    """D log predicted / d theta, central differences, [runs, 3]."""
    columns = []
    for axis, width in enumerate(_DIFFERENCES):
        low, high = theta.copy(), theta.copy()
        low[axis] = max(theta[axis] - width, _LOWER[axis])
        high[axis] = min(theta[axis] + width, _UPPER[axis])
        columns.append((model(high) - model(low)) / (high[axis] - low[axis]))
    return np.stack(columns, axis=1)


def _covariance(jacobian: Vector, scatter: float, prior: Vector) -> Vector:
    """Equation (5)."""
    return np.asarray(np.linalg.inv(jacobian.T @ jacobian / scatter**2 + np.diag(prior**-2)))

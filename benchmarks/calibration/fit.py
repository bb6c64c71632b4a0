"""Robust maximum a posteriori fit of bounded constants to measured step times.

(1) residual of a run  r = log(predicted / measured)
(2) loss = sum over runs w rho(r) / sigma^2 + sum over constants ((value - prior) / deviation)^2 / 2
(3) rho(r) = delta^2 / 2 log(1 + (r / delta)^2), Cauchy's: r^2 / 2 for small r, and a run that something unrecorded slowed
        down pulls the less the farther it is off
(4) w = (rows of the run's dataset / 30)^(-1/2): a large table counts more than a small one, but not in proportion;
        one of fewer than 10 rows as one of 10
(5) step: Gauss-Newton with Levenberg's damping, constants that hit a bound stay there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.cases import Case, concerning, log_seconds
from benchmarks.calibration.constants import FreeConstant, Vector

SIGMA = 0.06
"""Scatter of repeated runs and of what rows do not record."""

DELTA = 0.15
_DIFFERENCE = 0.02
_TYPICAL_ROWS = 30.0
_FEWEST_ROWS = 10

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted values, their standard errors, and the logarithm of every case's predicted seconds."""

    values: Vector
    errors: Vector
    predicted: Vector
    jacobian: Matrix


class Problem:
    """Cases and constants, with what is computed once."""

    def __init__(self, cases: Sequence[Case], constants: Sequence[FreeConstant]) -> None:
        """Prepare the fit of ``constants`` to ``cases``."""
        self.cases, self.constants = list(cases), list(constants)
        self.which = [concerning(case, constants) for case in cases]
        self.measured = np.log([case.measured_seconds for case in cases])
        rows = Counter(case.dataset for case in cases)
        size = np.array([max(_FEWEST_ROWS, rows[case.dataset]) for case in cases])
        self.weights = (size / _TYPICAL_ROWS) ** -0.5 / SIGMA**2
        self.prior = np.array([constant.prior for constant in constants])
        self.deviation = np.array([constant.deviation for constant in constants])
        self.low = np.array([constant.low for constant in constants])
        self.high = np.array([constant.high for constant in constants])

    def predict(self, values: Vector) -> Vector:
        """Logarithm of the predicted seconds of every case."""
        pairs = zip(self.cases, self.which, strict=True)
        return np.array([log_seconds(case, self.constants, values, which) for case, which in pairs])

    def jacobian(self, values: Vector) -> Matrix:
        """Derivatives of `predict` by one-sided differences of the pipeline's bounds, which are nearly exact and quick."""
        found = np.zeros((len(self.cases), len(self.constants)))
        for row, (case, which) in enumerate(zip(self.cases, self.which, strict=True)):
            here = log_seconds(case, self.constants, values, which, exact=False)
            for column in which:
                moved = values.copy()
                step = _DIFFERENCE * max(abs(values[column]), 0.1 * self.deviation[column])
                moved[column] += step if values[column] + step <= self.high[column] else -step
                change = log_seconds(case, self.constants, moved, which, exact=False) - here
                found[row, column] = change / (moved[column] - values[column])
        return found

    def loss(self, values: Vector, predicted: Vector, use: NDArray[np.bool_]) -> float:
        """Equation (2) over the cases to use."""
        cauchy = DELTA**2 / 2 * np.log1p(((predicted - self.measured) / DELTA) ** 2)
        return float((self.weights * cauchy)[use].sum() + (((values - self.prior) / self.deviation) ** 2).sum() / 2)


def fit(problem: Problem, start: Vector, *, steps: int, moving: NDArray[np.bool_]) -> Fit:
    """Minimise equation (2) from ``start`` over all cases; constants that are not ``moving`` stay as they are."""
    use = np.ones(len(problem.cases), dtype=bool)
    values = np.clip(start, problem.low, problem.high)
    predicted, damping = problem.predict(values), 1e-2
    jacobian, curvature = np.zeros((0, 0)), np.zeros((0, 0))
    for _ in range(steps):
        jacobian = problem.jacobian(values)
        curvature, gradient = _normal_equations(problem, values, predicted, jacobian, use)
        now = problem.loss(values, predicted, use)
        for _ in range(6):
            moved = _bounded_step(problem, values, curvature, gradient, damping, moving)
            there = problem.predict(moved)
            if problem.loss(moved, there, use) < now:
                break
            damping *= 5
        else:
            break
        gain = now - problem.loss(moved, there, use)
        values, predicted, damping = moved, there, max(damping / 5, 1e-4)
        if gain < 0.5:
            break
    errors = np.sqrt(np.diag(np.linalg.inv(curvature)))
    return Fit(values, errors, predicted, jacobian)


def refit(problem: Problem, base: Fit, use: NDArray[np.bool_], *, steps: int = 10) -> Vector:
    """Values without some cases, by Gauss-Newton on the base fit's linearisation in the logarithms of the constants."""
    values, least = base.values.copy(), 0.02 * problem.deviation
    scale = np.maximum(base.values, least)
    for _ in range(steps):
        now = np.maximum(values, least)
        predicted = base.predicted + base.jacobian @ (scale * np.log(now / scale))
        curvature, gradient = _normal_equations(problem, values, predicted, base.jacobian * (scale / now), use)
        values = _bounded_step(problem, values, curvature, gradient, 1e-3, np.ones(len(values), dtype=bool))
    return values


def _normal_equations(
    problem: Problem, values: Vector, predicted: Vector, jacobian: Matrix, use: NDArray[np.bool_]
) -> tuple[Matrix, Vector]:
    residual = predicted - problem.measured
    weights = problem.weights * use / (1.0 + (residual / DELTA) ** 2)
    precision = 1.0 / problem.deviation**2
    curvature = jacobian.T @ (weights[:, None] * jacobian) + np.diag(precision)
    return curvature, jacobian.T @ (weights * residual) + precision * (values - problem.prior)


def _bounded_step(
    problem: Problem,
    values: Vector,
    curvature: Matrix,
    gradient: Vector,
    damping: float,
    moving: NDArray[np.bool_],
) -> Vector:
    """Equation (5)."""
    free, fixed = moving.copy(), np.zeros(len(values))
    for _ in range(len(values)):
        inside = np.flatnonzero(free)
        system = curvature[np.ix_(inside, inside)]
        right = gradient[inside] + curvature[np.ix_(inside, np.flatnonzero(~free))] @ fixed[~free]
        step = fixed.copy()
        step[inside] = -np.linalg.solve(system + damping * np.diag(np.diag(system)), right)
        out = free & ((values + step < problem.low) | (values + step > problem.high))
        if not out.any():
            return values + step
        fixed[out] = np.clip(values + step, problem.low, problem.high)[out] - values[out]
        free &= ~out
    return np.clip(values + fixed, problem.low, problem.high)

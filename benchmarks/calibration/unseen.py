"""Errors on runs that were not fitted: five folds of rows, and every dataset left out in turn.

Constants are refitted on the linearisation of the whole fit; the left-out runs are then predicted by the model itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.cases import Case, concerning, log_seconds, make_case
from benchmarks.calibration.constants import UNKNOWN, FreeConstant, Vector, middle_of_runtimes
from benchmarks.calibration.fit import Fit, Problem, refit

FOLDS = 5
KNOWN_FROM = 5
"""Runs of other datasets from which on a runtime counts as known."""


def five_fold(problem: Problem, base: Fit) -> Vector:
    """Residual of every case under constants fitted without its fifth of its dataset."""
    rng = np.random.default_rng(0)
    fold = np.zeros(len(problem.cases), dtype=int)
    datasets = np.array([case.dataset for case in problem.cases])
    for dataset in sorted(set(datasets)):
        rows = np.flatnonzero(datasets == dataset)
        fold[rng.permutation(rows)] = np.arange(len(rows)) % FOLDS
    residuals = np.zeros(len(problem.cases))
    for number in range(FOLDS):
        values = refit(problem, base, fold != number)
        _evaluate(problem, values, np.flatnonzero(fold == number), residuals)
    return residuals


def leave_one_dataset_out(problem: Problem, base: Fit) -> tuple[Vector, dict[str, bool]]:
    """Residual of every case under constants fitted without its dataset, and whether its runtime has other sources."""
    residuals, known = np.zeros(len(problem.cases)), {}
    datasets = np.array([case.dataset for case in problem.cases])
    for dataset in sorted(set(datasets)):
        rows = np.flatnonzero(datasets == dataset)
        rest = [case for case, name in zip(problem.cases, datasets, strict=True) if name != dataset]
        values = refit(problem, base, datasets != dataset)
        count = Counter(case.runtime.name for case in rest)
        others = {name for name, runs in count.items() if runs >= KNOWN_FROM}
        inside = [int(index) for index in rows if problem.cases[index].runtime.name in others]
        known[dataset] = 2 * len(inside) > len(rows)
        _evaluate(problem, values, inside, residuals)
        foreign = sorted(set(map(int, rows)) - set(inside))
        _evaluate_unknown(problem, values, foreign, residuals)
    return residuals, known


def _evaluate(problem: Problem, values: Vector, rows: Sequence[int] | NDArray[np.intp], residuals: Vector) -> None:
    for index in rows:
        seconds = log_seconds(problem.cases[index], problem.constants, values, problem.which[index])
        residuals[index] = seconds - problem.measured[index]


def _evaluate_unknown(problem: Problem, values: Vector, rows: Sequence[int], residuals: Vector) -> None:
    """Runs of a runtime that no other dataset has, as runs of ``unknown``."""
    if not rows:
        return
    middle = middle_of_runtimes(problem.constants, values, without=problem.cases[rows[0]].runtime.name)
    for index in rows:
        stranger = make_case(problem.cases[index].row, runtime=UNKNOWN)
        if stranger is None:
            residuals[index] = math.nan
            continue
        which = concerning(stranger, problem.constants)
        moved = _as_unknown(problem.constants, values, middle)
        residuals[index] = log_seconds(stranger, problem.constants, moved, which) - problem.measured[index]


def _as_unknown(constants: Sequence[FreeConstant], values: Vector, middle: dict[str, float]) -> Vector:
    moved = values.copy()
    for index, constant in enumerate(constants):
        if constant.kind == "runtime" and constant.owner == UNKNOWN and constant.name in middle:
            moved[index] = middle[constant.name]
    return moved


def known_mask(cases: Sequence[Case], known: dict[str, bool]) -> NDArray[np.bool_]:
    """Cases whose dataset's runtime has other sources."""
    return np.array([known[case.dataset] for case in cases])

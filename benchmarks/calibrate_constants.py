"""Fit the free constants of the cost model to the published runs, and tell how well they predict runs not fitted.

python -m benchmarks.calibrate_constants [--write] [--steps N] [--only RUNTIME]

Prints the constants with prior, bounds and standard error, and errors in sample, with every dataset left out in turn, and
in five folds. A dataset whose runtime has no other source is predicted with runtime ``unknown``. ``--write`` puts the
constants and the bands into the profiles and the figures into benchmarks/data/calibration.json. ``--only`` fits one runtime's
constants and leaves all others: a plan contains its cluster, so that other values of accelerators and networks change the hashes
of plans. Errors on runs that were not fitted are still those of constants that were all fitted without them.
"""

from __future__ import annotations

import argparse
import datetime

import numpy as np

from benchmarks.calibration.bands import bands_of, write_bands
from benchmarks.calibration.cases import load_cases
from benchmarks.calibration.constants import UNKNOWN, middle_of_runtimes, read_free_constants, write_constants
from benchmarks.calibration.fit import Problem, fit
from benchmarks.calibration.report import print_constants, print_errors, save
from benchmarks.calibration.unseen import five_fold, leave_one_dataset_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the constants into the profiles")
    parser.add_argument("--only", metavar="RUNTIME", help="fit the constants of this runtime alone")
    parser.add_argument("--steps", type=int, default=6, help="Gauss-Newton steps at most")
    options = parser.parse_args()
    cases, constants = load_cases(), read_free_constants()
    problem = Problem(cases, constants)
    start = np.array([constant.value for constant in constants])
    moving = np.array([options.only in (None, constant.owner) for constant in constants])
    base = fit(problem, start, steps=options.steps, moving=moving)
    for name, value in middle_of_runtimes(constants, base.values).items():
        for index, constant in enumerate(constants):
            if moving[index] and constant.owner == UNKNOWN and constant.name == name:
                base.values[index] = value
    print_constants(constants, base)
    in_sample = base.predicted - problem.measured
    folds = five_fold(problem, base)
    left_out, known = leave_one_dataset_out(problem, base)
    for title, residuals in (("in sample", in_sample), ("five-fold", folds), ("dataset left out", left_out)):
        print_errors(title, cases, residuals)
    bands = bands_of(cases, folds, left_out, known)
    for band in bands:
        print(f"band of {band.runtime}: {band.value:.2f} ({band.evidence})")
    if options.write:
        moved = np.flatnonzero(moving)
        uncertainty = base.errors / np.maximum(np.abs(base.values), 1e-9)
        write_constants([constants[index] for index in moved], base.values[moved], uncertainty[moved])
        write_bands(bands)
        save(constants, base, cases, (in_sample, folds, left_out), known, bands, datetime.date.today())


if __name__ == "__main__":
    main()

"""Fitting of the free constants: which a run depends on, which move, and who gets a band."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.calibration.bands import bands_of
from benchmarks.calibration.cases import RUNS, Case, concerning, load_cases
from benchmarks.calibration.constants import FreeConstant, read_free_constants
from benchmarks.calibration.fit import Problem, fit
from costmodel.runtimes.loader import load_runtime

RUNTIME, NAME = "megatron-deepspeed", "collective_wait_seconds"


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """BLOOM's own run, the one run of this file that is judged."""
    found = load_cases([RUNS / "papers.jsonl"])
    assert [case.runtime.name for case in found] == [RUNTIME]
    return found


@pytest.fixture(scope="module")
def constants() -> list[FreeConstant]:
    return read_free_constants()


def test_what_a_runtime_states_hides_the_constant_of_all_stacks(
    cases: list[Case], constants: list[FreeConstant]
) -> None:
    own = next(constant for constant in constants if (constant.owner, constant.name) == (RUNTIME, NAME))
    shared = replace(own, kind="shared", owner="")
    assert concerning(cases[0], [shared]) == [0]
    assert concerning(cases[0], [own, shared]) == [0]


def test_only_moving_constants_are_fitted(cases: list[Case], constants: list[FreeConstant]) -> None:
    problem, start = Problem(cases, constants), np.array([constant.value for constant in constants])
    problem.measured = problem.measured + 0.3
    moving = np.array([constant.owner == RUNTIME for constant in constants])
    fitted = fit(problem, start, steps=3, moving=moving)
    assert (fitted.values[~moving] == start[~moving]).all()
    assert abs(fitted.predicted[0] - problem.measured[0]) < 0.2


def test_a_profile_that_inherits_its_band_gets_none_of_its_own(cases: list[Case]) -> None:
    names = {band.runtime for band in bands_of(cases, np.zeros(1), np.zeros(1), {"papers": True})}
    assert "accelerate" not in names
    assert load_runtime("accelerate").error_band == load_runtime("torch").error_band
    assert {"torch", "unknown", RUNTIME} <= names

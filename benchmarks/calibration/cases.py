"""Published runs as fitting cases: adapted once, evaluated under many values of the constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from benchmarks.calibration.constants import ROOT, FreeConstant, Vector, concerns, with_constants
from costmodel.estimate import step_seconds
from costmodel.specs import Plan, RuntimeProfile
from meshwright.validation.adapters.errors import UnsupportedRunError
from meshwright.validation.adapters.layout import adapt
from meshwright.validation.run_files import read_runs
from meshwright.validation.run_rows import RunRow, step_time_seconds

RUNS = ROOT / "benchmarks" / "data" / "published_runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One judged run with a measured step time."""

    row: RunRow
    plan: Plan
    runtime: RuntimeProfile
    family: str
    measured_seconds: float

    @property
    def dataset(self) -> str:
        """Where the run was published."""
        return self.row.dataset


def load_cases(paths: Sequence[Path] | None = None) -> list[Case]:
    """Every dense, complete run that is not doubtful, has a step time, and that the cost model supports."""
    cases = []
    for line in read_runs(sorted(RUNS.glob("*.jsonl")) if paths is None else paths):
        row = line.row
        if row is not None and row.config_complete and not row.doubtful and row.model.moe is None:
            case = make_case(row)
            if case is not None:
                cases.append(case)
    return cases


def make_case(row: RunRow, *, runtime: str | None = None) -> Case | None:
    """One run, as another runtime would run it if one is named; None if it cannot be predicted."""
    measured = step_time_seconds(row)
    if measured is None:
        return None
    try:
        run = adapt(row if runtime is None else row.model_copy(update={"runtime": runtime}))
    except UnsupportedRunError:
        return None
    return Case(
        row=row,
        plan=run.plan,
        runtime=run.runtime,
        family=family_of(run.plan.cluster.device.name),
        measured_seconds=measured,
    )


def family_of(device: str) -> str:
    """The family that a device's profile names, else the device itself."""
    path = ROOT / "hardware_profiles" / "devices" / f"{device}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return str(content.get("family", device))


def concerning(case: Case, constants: Sequence[FreeConstant]) -> list[int]:
    """Indices of the constants that the case's step time can depend on; what its runtime states hides the shared one."""
    own = {
        constant.name for constant in constants if constant.kind == "runtime" and constant.owner == case.runtime.name
    }
    return [
        index
        for index, constant in enumerate(constants)
        if concerns(constant, case.family, case.plan.cluster, case.runtime)
        and not (constant.kind == "shared" and constant.name in own)
    ]


def log_seconds(
    case: Case, constants: Sequence[FreeConstant], values: Vector, which: Sequence[int], *, exact: bool = True
) -> float:
    """Logarithm of the predicted step time (or of its lower bound) under ``values``, of which ``which`` concern the case."""
    chosen = [constants[index] for index in which]
    cluster, runtime = with_constants(case.plan.cluster, case.runtime, chosen, np.take(values, list(which)))
    return math.log(step_seconds(case.plan.model_copy(update={"cluster": cluster}), runtime, exact=exact))

"""Tables of a calibration, printed and saved."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.calibration.bands import Band
from benchmarks.calibration.cases import Case
from benchmarks.calibration.constants import ROOT, FreeConstant, Vector
from benchmarks.calibration.fit import Fit

TARGET = ROOT / "benchmarks" / "data" / "calibration.json"


def print_constants(constants: Sequence[FreeConstant], base: Fit) -> None:
    """One line a constant."""
    for constant, value, error in zip(constants, base.values, base.errors, strict=True):
        at_bound = "  at its bound" if value in (constant.low, constant.high) else ""
        name = f"{constant.owner or 'all stacks'} {constant.name}"
        print(f"{name:55} {constant.prior:10.4g} -> {value:10.4g} +- {error:8.2g}{at_bound}")


def errors_by_dataset(cases: Sequence[Case], residuals: Vector) -> dict[str, dict[str, Any]]:
    """Rows, median and mean absolute error, bias and share within 20% of every dataset and of all."""
    datasets = np.array([case.dataset for case in cases])
    found = {name: _errors(residuals[datasets == name]) for name in sorted(set(datasets))}
    medians = [each["median"] for each in found.values() if each["median"] is not None]
    return {**found, "all": {**_errors(residuals), "macro_median": float(np.mean(medians))}}


def _errors(residuals: Vector) -> dict[str, Any]:
    errors = np.expm1(residuals[~np.isnan(residuals)])
    if not len(errors):
        return {"rows": 0, "median": None, "mean": None, "bias": None, "within_20_percent": None}
    return {
        "rows": len(errors),
        "median": float(np.median(np.abs(errors))),
        "mean": float(np.mean(np.abs(errors))),
        "bias": float(np.median(errors)),
        "within_20_percent": float(np.mean(np.abs(errors) <= 0.2)),
    }


def print_errors(title: str, cases: Sequence[Case], residuals: Vector) -> None:
    """One line a dataset."""
    print(title)
    for name, found in errors_by_dataset(cases, residuals).items():
        if found["rows"]:
            print(
                f"  {name:24}{found['rows']:5} median {found['median']:6.1%} mean {found['mean']:6.1%} "
                f"bias {found['bias']:+6.1%} within 20% {found['within_20_percent']:4.0%}"
                + (f" macro median {found['macro_median']:.1%}" if "macro_median" in found else "")
            )


def save(
    constants: Sequence[FreeConstant],
    base: Fit,
    cases: Sequence[Case],
    residuals: tuple[Vector, Vector, Vector],
    known: dict[str, bool],
    bands: Sequence[Band],
    date: datetime.date,
) -> None:
    """Everything as JSON, for docs/accuracy.md."""
    in_sample, folds, left_out = (errors_by_dataset(cases, each) for each in residuals)
    for dataset, figures in left_out.items():
        figures["runtime_known"] = known.get(dataset)
    content = {
        "date": date.isoformat(),
        "in_sample": in_sample,
        "leave_one_dataset_out": left_out,
        "five_fold": folds,
        "constants": [
            {
                "kind": constant.kind,
                "owner": constant.owner,
                "name": constant.name,
                "value": float(f"{value:.6g}"),
                "prior": constant.prior,
                "low": constant.low,
                "high": constant.high,
                "uncertainty": float(f"{error:.3g}"),
            }
            for constant, value, error in zip(constants, base.values, base.errors, strict=True)
        ],
        "bands": [
            {
                "runtime": band.runtime,
                "value": band.value,
                "evidence": band.evidence,
                "elsewhere": band.elsewhere,
                "measured_on": list(band.measured_on),
            }
            for band in bands
        ],
    }
    TARGET.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

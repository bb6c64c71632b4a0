"""Half-widths of the 80% interval of predicted step times, from residuals of runs that were not fitted.

A runtime with five runs or more gets the 80% quantile of its own five-fold residuals, shrunk towards that of all runs by
the number of rows; a runtime with fewer gets the quantile over datasets left out whose runtime was known; ``unknown``, and
runtimes without any run, get the quantile over datasets that were predicted as ``unknown``. On an architecture with fewer
than three runs of a runtime, the quantile over datasets left out whose runtime was known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.cases import Case
from benchmarks.calibration.constants import RUNTIMES, UNKNOWN, Vector
from benchmarks.calibration.unseen import known_mask

LEVEL = 0.80
_ENOUGH_ROWS = 5
_FEW_ROWS = 3
_ASSUMED = 0.30
_PRIOR_ROWS = 5.0


@dataclass(frozen=True, slots=True)
class Band:
    """A runtime's band: predicted / (1 + value) to predicted x (1 + value)."""

    runtime: str
    value: float
    evidence: str
    elsewhere: float
    measured_on: tuple[str, ...] = ()


def bands_of(cases: Sequence[Case], folds: Vector, left_out: Vector, known: dict[str, bool]) -> list[Band]:
    """The band of every runtime profile that states one; the others inherit it."""
    mask = known_mask(cases, known)
    everywhere = _quantile(folds)
    datasets = np.array([case.dataset for case in cases])
    transferred, foreign = (_quantile(left_out[part], datasets[part]) for part in (mask, ~mask))
    names = np.array([case.runtime.name for case in cases])
    found = []
    for path in sorted(RUNTIMES.glob("*.yaml")):
        if not re.search(r"^error_band: ", path.read_text(encoding="utf-8"), flags=re.M):
            continue
        rows = names == path.stem
        count = int(rows.sum())
        if count >= _ENOUGH_ROWS:
            own = _quantile(folds[rows])
            value = (count * own + _PRIOR_ROWS * everywhere) / (count + _PRIOR_ROWS)
            why = f"80% of {count} published runs lie within {own:.0%} when their fifth is not fitted"
        elif count and path.stem != UNKNOWN:
            value = max(transferred, everywhere)
            why = f"{count} published runs; 80% of runs of datasets not fitted, runtime known, lie within {value:.0%}"
        else:
            value = foreign
            why = f"80% of runs of runtimes not fitted lie within {value:.0%}, every source counting once"
        used = Counter(case.plan.cluster.device.architecture for case in cases if case.runtime.name == path.stem)
        if not used or path.stem == UNKNOWN:
            used = Counter(case.plan.cluster.device.architecture for case in cases)
        measured_on = tuple(sorted(name for name, runs in used.items() if runs >= _FEW_ROWS))
        found.append(Band(path.stem, round(max(0.02, value), 3), why, round(transferred, 3), measured_on))
    return found


def write_bands(bands: Sequence[Band]) -> None:
    """Put the bands into the runtime profiles."""
    for band in bands:
        path = RUNTIMES / f"{band.runtime}.yaml"
        text = path.read_text(encoding="utf-8")
        lines = f'error_band: {band.value}\nband_evidence: "fitted: {band.evidence}"\n'
        lines += f"error_band_elsewhere: {band.elsewhere}\nmeasured_on: [{', '.join(band.measured_on)}]\n"
        text = re.sub(r"^(error_band|band_evidence|error_band_elsewhere|measured_on): .*\n", "", text, flags=re.M)
        text = re.sub(r"^(constants:\n)", lines.replace("\\", r"\\") + r"\1", text, count=1, flags=re.M)
        path.write_text(text, encoding="utf-8")


def _quantile(residuals: Vector, datasets: NDArray[np.str_] | None = None) -> float:
    """The half-width that covers the level: of the larger ratio of predicted and measured, less 1.

    With ``datasets`` every dataset counts as much as another, however many rows it has.
    """
    usable = ~np.isnan(residuals)
    if not usable.any():
        return _ASSUMED
    size = np.abs(residuals[usable])
    weights = np.ones(len(size))
    if datasets is not None:
        rows = Counter(datasets[usable])
        weights = np.array([1.0 / rows[name] for name in datasets[usable]])
    order = np.argsort(size)
    covered = np.cumsum(weights[order]) / weights.sum()
    return float(np.expm1(size[order][np.searchsorted(covered, LEVEL)]))

"""Corrections of the cost model from a user's own runs: `meshwright.calibrate`."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np

from costmodel.bounds import step_time_column
from costmodel.memory import peak_memory, plan_memory
from costmodel.runtimes.grid import Grid
from costmodel.site import constants_version, correct_speed
from costmodel.specs import (
    ClusterSpec,
    InputError,
    LaunchCorrection,
    MemoryCorrection,
    OverlapCorrection,
    RateCorrection,
    RuntimeProfile,
    SiteProfile,
    SiteRun,
    Spec,
)
from costmodel.specs.site import HIGHEST_MEMORY, LOWEST_MEMORY
from meshwright.estimating import refuse_infinite
from meshwright.inputs import resolve_cluster, resolve_runtime
from meshwright.units import GIB
from meshwright.validation.results import BadLine
from meshwright.validation.site_fit import SiteFit, Vector, fit_memory, fit_site
from meshwright.validation.site_runs import MeasuredRun, gather_runs
from meshwright.version import __version__

FEW_RUNS = 3
_IMPLAUSIBLE = 5.0
"""Measured over predicted time, or the inverse, from which on a run is taken for a mistake of units."""

_DETERMINED = 0.8
"""A correction whose standard error is still this share of the prior's was not told by the runs."""

_MAX_BAND = 0.95


class CalibrationErrors(Spec):
    """Absolute relative errors of the step times of the runs used."""

    median: float
    mean: float


class Calibration(Spec):
    """The answer of `meshwright.calibrate`: the site, errors before and after, and what was left out and is missing.

    ``determined`` names the corrections that the runs told something about; the others are the prior's.
    """

    site: SiteProfile
    before: CalibrationErrors
    after: CalibrationErrors
    band_before: float
    determined: tuple[str, ...]
    memory_runs: int
    left_out: tuple[BadLine, ...]
    warnings: tuple[str, ...]
    suggestions: tuple[str, ...]


def calibrate(
    paths: Sequence[str | Path] | str | Path,
    *,
    runtime: str | None = None,
    cluster: ClusterSpec | str | Path | None = None,
) -> Calibration:
    """Corrections of one runtime on one device from 3 to 10 short runs, shrunk by the evidence.

    Args:
        paths: runs files of docs/replay.md, and JSON files of plans and of `meshwright run`'s observations of them.
        runtime: the runtime of the site; None takes the one of most runs.
        cluster: where the runs were made, a spec, a name or a file; None takes the hardware that each run states.

    Raises:
        InputError: when a file cannot be read, no run is usable, or the runs are of several stacks equally.
    """
    if runtime is not None:
        resolve_runtime(runtime)
    place = None if cluster is None else resolve_cluster(cluster)
    given = [paths] if isinstance(paths, str | Path) else paths
    found, left = gather_runs(given, runtime=runtime, cluster=place)
    single, repeated = _once(found)
    runs, odd = _plausible(single)
    if not runs:
        raise InputError(f"no usable run to calibrate with; first: {odd[0].where}: {odd[0].reason}")
    return calibrate_runs(runs, left_out=(*left, *repeated, *odd))


def calibrate_runs(runs: Sequence[MeasuredRun], *, left_out: Sequence[BadLine] = ()) -> Calibration:
    """`calibrate` for runs already read: all of one runtime and device, one at least."""
    base = resolve_runtime(runs[0].runtime.name)
    fit = fit_site(lambda theta: log_predictions(runs, theta), [run.seconds for run in runs], base.error_band)
    ratios, odd_peaks = _peak_ratios(runs)
    site = _site(runs, base, fit, fit_memory(ratios, base.error_band))
    determined = _determined(fit)
    return Calibration(
        site=site,
        before=_errors(fit.before),
        after=_errors(fit.after),
        band_before=base.error_band,
        determined=determined,
        memory_runs=len(ratios),
        left_out=tuple(left_out),
        warnings=(*_warnings(runs), *odd_peaks),
        suggestions=tuple(_suggestions(runs, determined, bool(ratios))),
    )


def log_predictions(runs: Sequence[MeasuredRun], theta: Vector) -> Vector:
    """Log of the predicted seconds of every run under corrections (log efficiency, log launch, overlap)."""
    efficiency, launch, overlap = math.exp(theta[0]), math.exp(theta[1]), float(theta[2])
    seconds = [
        predict_seconds(run, correct_speed(run.runtime, efficiency=efficiency, launch=launch, overlap=overlap))
        for run in runs
    ]
    return np.asarray(np.log(np.array(seconds)))


def predict_seconds(run: MeasuredRun, runtime: RuntimeProfile) -> float:
    """The step time that a profile predicts of a run's plan.

    Raises:
        InputError: when a rate of the input is so far from any machine that it is no finite number.
    """
    plan = run.plan
    with refuse_infinite():
        seconds = step_time_column(
            plan.model,
            plan.cluster,
            plan.training,
            runtime,
            Grid.from_plan(plan),
            layers_per_stage=tuple(stage.num_layers for stage in plan.stages),
        )
    return float(seconds[0])


def _once(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[BadLine]]:
    """Runs that are given once, and their repetitions: evidence does not grow by being told twice."""
    first: dict[tuple[str, str, float], MeasuredRun] = {}
    others = []
    for run in runs:
        kept = first.setdefault((run.id, run.plan.plan_hash, run.seconds), run)
        if kept is not run:
            others.append(
                BadLine(where=run.where, reason=f"the same run as {kept.where}: equal id, plan and step time")
            )
    return list(first.values()), others


def _plausible(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[BadLine]]:
    """Runs whose time is of the predicted order, and the others with both numbers."""
    chosen, others = [], []
    for run in runs:
        try:
            predicted = predict_seconds(run, run.runtime)
        except InputError as error:
            others.append(BadLine(where=run.where, reason=str(error)))
            continue
        if 1 / _IMPLAUSIBLE < run.seconds / predicted < _IMPLAUSIBLE:
            chosen.append(run)
            continue
        reason = (
            f"measured {run.seconds:.4g} s a step, predicted {predicted:.4g} s: a factor above {_IMPLAUSIBLE:g} is no matter "
            "of calibration; check the unit, the batch and the layout"
        )
        others.append(BadLine(where=run.where, reason=reason))
    return chosen, others


def _allocated(run: MeasuredRun) -> float:
    stages = plan_memory(run.plan, run.runtime)
    return float(peak_memory(stages, run.runtime, run.plan.cluster.device).allocated)


def _peak_ratios(runs: Sequence[MeasuredRun]) -> tuple[list[float], list[str]]:
    """Measured over predicted peaks, and a warning of each that is too far off to be one."""
    ratios, odd = [], []
    for run in runs:
        if not run.allocated_bytes:
            continue
        predicted = _allocated(run)
        ratio = run.allocated_bytes / predicted
        if LOWEST_MEMORY <= ratio <= HIGHEST_MEMORY:
            ratios.append(ratio)
            continue
        odd.append(
            f"{run.where}: measured peak memory {run.allocated_bytes / GIB:.4g} GiB, predicted {predicted / GIB:.4g} GiB; needed "
            f"between {LOWEST_MEMORY:g} and {HIGHEST_MEMORY:g} times that. The peak is left out; check the unit and the layout"
        )
    return ratios, odd


def _site(runs: Sequence[MeasuredRun], base: RuntimeProfile, fit: SiteFit, memory: tuple[float, float]) -> SiteProfile:
    (rate, launch, overlap), errors = map(float, fit.theta), [float(error) for error in fit.errors]
    return SiteProfile(
        device=runs[0].plan.cluster.device.name,
        runtime=base.name,
        num_devices=max(run.plan.num_devices_used for run in runs),
        num_nodes=max(_nodes(run) for run in runs),
        efficiency=RateCorrection(value=math.exp(rate), uncertainty=errors[0]),
        launch=LaunchCorrection(value=math.exp(launch), uncertainty=errors[1]),
        overlap=OverlapCorrection(value=overlap, uncertainty=errors[2]),
        memory_margin=MemoryCorrection(value=memory[0], uncertainty=memory[1]),
        scatter=fit.scatter,
        error_band=min(fit.error_band, _MAX_BAND),
        runs=tuple(
            SiteRun(id=run.id, measured_seconds=run.seconds, error_before=_relative(b), error_after=_relative(a))
            for run, b, a in zip(runs, fit.before, fit.after, strict=True)
        ),
        created=datetime.date.today().isoformat(),
        constants_version=constants_version(base),
        meshwright_version=__version__,
    )


def _nodes(run: MeasuredRun) -> int:
    return -(-run.plan.num_devices_used // run.plan.cluster.devices_per_node)


def _relative(residual: float) -> float:
    """log(measured / predicted) -> predicted / measured - 1."""
    return math.expm1(-float(residual))


def _errors(residuals: Vector) -> CalibrationErrors:
    absolute = [abs(_relative(residual)) for residual in residuals]
    return CalibrationErrors(median=median(absolute), mean=fmean(absolute))


def _determined(fit: SiteFit) -> tuple[str, ...]:
    names = ("efficiency", "launch", "overlap")
    return tuple(
        name for name, own, prior in zip(names, fit.errors, fit.prior, strict=True) if own < _DETERMINED * prior
    )


def _warnings(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    if len(runs) < FEW_RUNS:
        count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
        yield f"{count} to calibrate with: corrections stay close to the model's own; 3 to 10 runs are better"


def _suggestions(runs: Sequence[MeasuredRun], determined: Sequence[str], has_memory: bool) -> Iterator[str]:
    """Runs that would tell what these do not, the most telling first."""
    plans = [run.plan for run in runs]
    if len({plan.parallel for plan in plans}) == 1 and len(runs) > 1:
        yield "all runs have one layout: a run of another one shows how far the corrections carry"
    if "overlap" not in determined:
        if all(plan.parallel.data_parallel_size == 1 for plan in plans):
            yield "no run is data parallel: one with data parallelism over all nodes tells the overlap"
        else:
            yield "gradients cost too little in these runs to tell the overlap: one with few tokens a device and step does"
    if "launch" not in determined:
        yield "no run is held up by its host: a short one of a small model with micro batch 1 tells the launch floor"
    if not has_memory:
        yield "no run has a measured peak memory (measured.peak_memory_gb): the memory margin stays 1"

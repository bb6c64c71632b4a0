"""Predict measured runs and compare: `meshwright.replay`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from costmodel.site import apply_site
from costmodel.specs import Estimate, InputError, Plan, RuntimeProfile, SiteProfile
from meshwright.estimating import refuse_infinite
from meshwright.sites import load_site
from meshwright.validation.adapters.errors import ForeignSiteError, UnknownAcceleratorError, UnsupportedRunError
from meshwright.validation.adapters.frameworks import PRINTED_MEMORY, framework_of
from meshwright.validation.adapters.layout import AdaptedRun, adapt
from meshwright.validation.adapters.words import unmodelled_memory
from meshwright.validation.baseline import naive_step_time_seconds
from meshwright.validation.metrics import Outcome, errors_of, macro_errors, mean, outcome_of
from meshwright.validation.results import (
    BadLine,
    Measured,
    Predicted,
    Reason,
    Replay,
    ReplayErrors,
    ReplayRow,
    ReplaySummary,
)
from meshwright.validation.run_files import Line, read_runs
from meshwright.validation.run_rows import (
    RunRow,
    describe,
    extra_bytes,
    is_derived,
    printed_bytes,
    step_time_seconds,
    tokens_per_second_per_device,
)


def replay(paths: Sequence[str | Path] | str | Path, *, site: SiteProfile | str | Path | None = None) -> Replay:
    """Predict every run of some files and compare it with what was measured.

    Args:
        paths: JSON Lines files in the format of docs/replay.md; one path or several.
        site: corrections to predict with, a spec or a file; runs of other runtimes and devices are then not predicted.

    Returns:
        Every readable row with its prediction or the reason why there is none, the lines that could not be read, and errors
        per dataset, per framework, pooled and averaged over datasets. Errors count complete rows that are not doubtful.

    Raises:
        InputError: when a file cannot be read, or not one line of all files is a run on a known accelerator.
    """
    profile = None if site is None else load_site(site)
    given = [paths] if isinstance(paths, str | Path) else paths
    lines = list(read_runs(given))
    if not lines:
        names = ", ".join(map(str, given)) or "no file is given"
        raise InputError(
            f"no runs to replay: not one line in {names}; needed one JSON object a line, or CSV with a header"
        )
    bad = tuple(BadLine(where=line.where, reason=line.reason) for line in lines if line.row is None)
    runs = [_replay_line(line, line.row, profile) for line in lines if line.row is not None]
    rows = tuple(row for row, _ in runs)
    if all(isinstance(error, UnknownAcceleratorError | ForeignSiteError) for _, error in runs):
        first = [(each.where, each.reason) for each in bad] or [(row.where, row.reason) for row in rows]
        why = f"; first: {first[0][0]}: {first[0][1]}" if first else ""
        of = "" if profile is None else " that the site file is of"
        raise InputError(f"no line is a run on a known accelerator{of} (lines read: {len(lines)}{why})")
    unknown = [row for row, error in runs if isinstance(error, UnknownAcceleratorError)]
    foreign = tuple(BadLine(where=row.where, reason=row.reason) for row in unknown)
    return Replay(summary=_summarize(rows, bad, foreign), rows=rows)


def _replay_line(line: Line, row: RunRow, site: SiteProfile | None) -> tuple[ReplayRow, UnsupportedRunError | None]:
    """One run: adapted, estimated, and laid beside its measurement; and why it is not predicted."""
    found, refused = None, None
    try:
        found = _predict(row, site)
    except UnsupportedRunError as error:
        refused = error
    expected = row.model.moe is None and row.config_complete and not row.doubtful
    plan, made = found or (None, None)
    measured = _measured(row)
    answer = ReplayRow(
        id=row.id,
        dataset=row.dataset,
        runtime=framework_of(row),
        where=line.where,
        description=describe(row),
        rank_group=row.rank_group,
        device=None if plan is None else plan.cluster.device.name,
        status="unsupported" if made is None else "predicted",
        reason="" if refused is None else str(refused),
        expected=expected,
        judged=expected and made is not None,
        derived=is_derived(row),
        relative_error=_relative_error(made, measured),
        predicted=None if made is None else _predicted(made),
        measured=measured,
        device_peak_bytes=None if made is None or unmodelled_memory(row.parallel) else made.peak_memory_bytes.device,
        device_capacity_bytes=None if made is None else made.memory_capacity_bytes,
        naive_step_time_seconds=None if plan is None else naive_step_time_seconds(plan),
        flags=row.flags,
        notes=row.notes,
    )
    return answer, refused


def _predict(row: RunRow, site: SiteProfile | None) -> tuple[Plan, Estimate]:
    from costmodel.estimate import estimate

    run = adapt(row)
    try:
        with refuse_infinite():
            return run.plan, estimate(run.plan, _corrected(run, site), ignore_memory=True)
    except InputError as error:
        raise UnsupportedRunError(str(error)) from error


def _corrected(run: AdaptedRun, site: SiteProfile | None) -> RuntimeProfile:
    if site is None:
        return run.runtime
    device = run.plan.cluster.device.name
    if (run.runtime.name, device) != (site.runtime, site.device):
        found = f"{run.runtime.name} on {device}"
        raise ForeignSiteError(f"the site file is of {site.runtime} on {site.device}; found {found}")
    return apply_site(run.runtime, site)


def _relative_error(made: Estimate | None, measured: Measured) -> float | None:
    if made is None or measured.step_time_seconds is None:
        return None
    return made.step_time_seconds.value / measured.step_time_seconds - 1


def _predicted(made: Estimate) -> Predicted:
    seconds = made.step_time_seconds
    return Predicted(
        step_time_seconds=seconds.value,
        step_time_low_seconds=seconds.low,
        step_time_high_seconds=seconds.high,
        tokens_per_second_per_device=made.tokens_per_second_per_device,
        peak_memory_bytes=made.peak_memory_bytes.allocated,
        reserved_memory_bytes=made.peak_memory_bytes.reserved,
        fits=made.fits,
    )


def _measured(row: RunRow) -> Measured:
    kind, printed = PRINTED_MEMORY.get(row.dataset, "allocated"), printed_bytes(row)
    allocated, reserved = extra_bytes(row, "allocated"), extra_bytes(row, "reserved")
    return Measured(
        step_time_seconds=step_time_seconds(row),
        tokens_per_second_per_device=tokens_per_second_per_device(row),
        peak_memory_bytes=printed if allocated is None and kind == "allocated" else allocated,
        reserved_memory_bytes=printed if reserved is None and kind == "reserved" else reserved,
        device_memory_bytes=printed if kind == "device" else None,
        oom=None if row.measured.error else row.measured.oom,
    )


def _summarize(rows: Sequence[ReplayRow], bad: tuple[BadLine, ...], foreign: tuple[BadLine, ...]) -> ReplaySummary:
    judged = [(row, outcome) for row in rows if (outcome := outcome_of(row)) is not None]
    outcomes = [outcome for _, outcome in judged]
    datasets = _errors_by(outcomes, lambda outcome: outcome.dataset)
    predicted = sum(row.status == "predicted" for row in rows)
    expected = [row for row in rows if row.expected]
    return ReplaySummary(
        rows=len(rows),
        predicted=predicted,
        unsupported=len(rows) - predicted,
        expected=len(expected),
        coverage=mean([float(row.status == "predicted") for row in expected]),
        pooled=errors_of(outcomes),
        pooled_without_derived=errors_of([outcome for row, outcome in judged if not row.derived]),
        macro=macro_errors(datasets.values()),
        datasets=datasets,
        runtimes=_errors_by(outcomes, lambda outcome: outcome.runtime),
        reasons=_reasons(rows),
        bad_lines=bad,
        unknown_accelerators=foreign,
    )


def _errors_by(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> dict[str, ReplayErrors]:
    parts: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        parts[key(outcome)].append(outcome)
    return {name: errors_of(part) for name, part in sorted(parts.items())}


def _reasons(rows: Sequence[ReplayRow]) -> tuple[Reason, ...]:
    """Reasons by the number of rows, the most frequent first."""
    found: dict[str, list[ReplayRow]] = defaultdict(list)
    for row in rows:
        if row.reason:
            found[row.reason].append(row)
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        Reason(
            reason=reason,
            rows=len(those),
            expected=sum(row.expected for row in those),
            first=those[0].where,
            where=tuple(row.where for row in those),
        )
        for reason, those in ranked
    )

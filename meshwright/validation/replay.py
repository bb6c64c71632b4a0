"""Predict measured runs and compare: `meshwright.replay`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.specs import Estimate, InputError
from meshwright.estimating import refuse_infinite
from meshwright.validation.adapters.errors import UnknownAcceleratorError, UnsupportedRunError
from meshwright.validation.adapters.frameworks import PRINTED_MEMORY, framework_of
from meshwright.validation.adapters.layout import adapt
from meshwright.validation.metrics import Outcome, errors_of, macro_errors, mean
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
from meshwright.validation.run_rows import (
    Line,
    RunRow,
    extra_bytes,
    printed_bytes,
    read_runs,
    step_time_seconds,
    tokens_per_second_per_device,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    """A row of the answer with what the errors need of it."""

    source: RunRow
    row: ReplayRow
    outcome: Outcome | None
    usable: bool


def replay(paths: Sequence[str | Path] | str | Path) -> Replay:
    """Predict every run of some files and compare it with what was measured.

    Args:
        paths: JSON Lines files in the format of docs/replay.md; one path or several.

    Returns:
        Every readable row with its prediction or the reason why there is none, the lines that could not be read, and errors
        per dataset, per framework, pooled and averaged over datasets. Errors count complete rows that are not doubtful.

    Raises:
        InputError: when a file cannot be read, or not one line of all files is a run on a known accelerator.
    """
    lines = list(read_runs([paths] if isinstance(paths, str | Path) else paths))
    bad = tuple(BadLine(where=line.where, reason=line.reason) for line in lines if line.row is None)
    runs = [_replay_line(line, line.row) for line in lines if line.row is not None]
    if not any(run.usable for run in runs):
        first = [(each.where, each.reason) for each in bad] or [(run.row.where, run.row.reason) for run in runs]
        why = f"; first: {first[0][0]}: {first[0][1]}" if first else ""
        raise InputError(f"no line is a run on a known accelerator ({len(lines)} lines read{why})")
    return Replay(summary=_summarize(runs, bad), rows=tuple(run.row for run in runs))


def _replay_line(line: Line, row: RunRow) -> _Replayed:
    """One run: adapted, estimated, and laid beside its measurement."""
    framework, reason, usable, made = framework_of(row), "", True, None
    try:
        made = _predict(row)
    except UnsupportedRunError as error:
        reason, usable = str(error), not isinstance(error, UnknownAcceleratorError)
    judged = made is not None and row.config_complete and not row.doubtful
    measured = _measured(row)
    return _Replayed(
        source=row,
        usable=usable,
        outcome=_outcome(row, framework, made, measured) if made is not None and judged else None,
        row=ReplayRow(
            id=row.id,
            dataset=row.dataset,
            runtime=framework,
            where=line.where,
            status="unsupported" if made is None else "predicted",
            reason=reason,
            judged=judged,
            predicted=None if made is None else _predicted(made),
            measured=measured,
        ),
    )


def _predict(row: RunRow) -> Estimate:
    from costmodel.estimate import estimate

    run = adapt(row)
    try:
        with refuse_infinite():
            return estimate(run.plan, run.runtime, ignore_memory=True)
    except InputError as error:
        raise UnsupportedRunError(str(error)) from error


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


def _outcome(row: RunRow, framework: str, made: Estimate, measured: Measured) -> Outcome:
    seconds = made.step_time_seconds
    return Outcome(
        dataset=row.dataset,
        runtime=framework,
        group=row.rank_group,
        predicted_seconds=seconds.value,
        low_seconds=seconds.low,
        high_seconds=seconds.high,
        measured_seconds=measured.step_time_seconds,
        memory=_memory_pair(made, measured),
        fits=made.fits,
        oom=measured.oom,
    )


def _memory_pair(made: Estimate, measured: Measured) -> tuple[float, float] | None:
    """Like beside like: allocated where measured, else reserved, else what the device holds."""
    peak = made.peak_memory_bytes
    pairs = (
        (peak.allocated, measured.peak_memory_bytes),
        (peak.reserved, measured.reserved_memory_bytes),
        (peak.device, measured.device_memory_bytes),
    )
    return next(((float(mine), float(theirs)) for mine, theirs in pairs if theirs), None)


def _summarize(runs: Sequence[_Replayed], bad: tuple[BadLine, ...]) -> ReplaySummary:
    outcomes = [run.outcome for run in runs if run.outcome is not None]
    datasets = _errors_by(outcomes, lambda outcome: outcome.dataset)
    predicted = sum(run.row.status == "predicted" for run in runs)
    return ReplaySummary(
        rows=len(runs),
        predicted=predicted,
        unsupported=len(runs) - predicted,
        coverage=mean([float(run.row.status == "predicted") for run in runs if _is_expected(run.source)]),
        pooled=errors_of(outcomes),
        macro=macro_errors(datasets.values()),
        datasets=datasets,
        runtimes=_errors_by(outcomes, lambda outcome: outcome.runtime),
        reasons=_reasons(runs),
        bad_lines=bad,
    )


def _is_expected(row: RunRow) -> bool:
    """Dense, complete and not doubtful: what a cost model of dense transformers should predict."""
    return row.model.moe is None and row.config_complete and not row.doubtful


def _errors_by(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> dict[str, ReplayErrors]:
    parts: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        parts[key(outcome)].append(outcome)
    return {name: errors_of(part) for name, part in sorted(parts.items())}


def _reasons(runs: Sequence[_Replayed]) -> tuple[Reason, ...]:
    """Reasons by the number of rows, the most frequent first."""
    where: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        if run.row.reason:
            where[run.row.reason].append(run.row.where)
    ranked = sorted(where.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Reason(reason=reason, rows=len(found), first=found[0]) for reason, found in ranked)

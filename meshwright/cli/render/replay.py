"""Errors of the predictions of measured runs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from meshwright.cli.render.tables import heading, lines, rows
from meshwright.validation.results import MacroErrors, Reason, Replay, ReplayErrors

_MAX_REASONS = 12
_MAX_PLACES = 4
_TIME = ("", "rows", "median", "mean", "bias", "in 20%", "in band", "pairs", "regret", "top 3")
_MEMORY = ("", "peaks", "mean", "OOM", "recall", "ran", "fits recall")
_BIAS = "+.1%"


def render_replay(console: Console, answer: Replay) -> None:
    """Step time per dataset and framework, memory, and why rows are not predicted."""
    summary = answer.summary
    coverage = "" if summary.coverage is None else f"; {summary.coverage:.0%} of dense, complete, undoubted ones"
    heading(console, "Replay", f"{summary.predicted} of {summary.rows} runs predicted{coverage}")
    ends: dict[str, ReplayErrors | MacroErrors] = {"pooled": summary.pooled, "mean": summary.macro}
    if summary.pooled_without_derived.rows < summary.pooled.rows:
        ends["not derived"] = summary.pooled_without_derived
    _step_times(console, "Step time by dataset", summary.datasets, ends=ends)
    _step_times(console, "Step time by framework", summary.runtimes, ends={})
    _memory(console, summary.datasets, summary.pooled)
    if summary.reasons:
        heading(console, "Not predicted", f"{summary.unsupported} runs")
        more = len(summary.reasons) - _MAX_REASONS
        shown = [f"{each.rows}: {each.reason} ({_places(each)})" for each in summary.reasons[:_MAX_REASONS]]
        lines(console, [*shown, *([f"{more} more reasons (see --json)"] if more > 0 else [])])


def _places(reason: Reason) -> str:
    """All lines where they are few, else the first."""
    return ", ".join(reason.where) if len(reason.where) <= _MAX_PLACES else f"first: {reason.first}"


def _step_times(
    console: Console, title: str, parts: Mapping[str, ReplayErrors], *, ends: Mapping[str, ReplayErrors | MacroErrors]
) -> None:
    told = {name: errors for name, errors in parts.items() if errors.rows}
    if not told:
        return
    heading(console, title, "error = predicted / measured - 1")
    body = [_time_cells(name, errors) for name, errors in {**told, **ends}.items()]
    rows(console, _TIME, body, left=("",), gap=1)


def _time_cells(name: str, errors: ReplayErrors | MacroErrors) -> tuple[str, ...]:
    return (
        name,
        str(errors.rows) if isinstance(errors, ReplayErrors) else "",
        _share(errors.median_absolute_error),
        _share(errors.mean_absolute_error),
        _share(errors.bias, _BIAS),
        _share(errors.within_20_percent, ".0%"),
        _share(errors.interval_coverage, ".0%"),
        _share(errors.pair_order, ".0%"),
        _share(errors.regret_top1),
        _share(errors.regret_top3),
    )


def _memory(console: Console, datasets: Mapping[str, ReplayErrors], pooled: ReplayErrors) -> None:
    told = {name: errors for name, errors in datasets.items() if errors.memory_rows or errors.oom_rows}
    if not told:
        return
    heading(console, "Memory", "error of peaks; runs out of memory, and runs that ran, told as such")
    body = [
        (
            name,
            str(errors.memory_rows),
            _share(errors.memory_mean_absolute_error),
            str(errors.oom_rows),
            _share(errors.oom_recall, ".0%"),
            str(errors.fits_rows),
            _share(errors.fits_recall, ".0%"),
        )
        for name, errors in {**told, "pooled": pooled}.items()
    ]
    rows(console, _MEMORY, body, left=("",))


def _share(value: float | None, form: str = ".1%") -> str:
    return "-" if value is None else format(value, form)

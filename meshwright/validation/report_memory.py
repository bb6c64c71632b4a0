"""Sections of the report about memory: peaks, verdicts, and distances to the limit."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.validation.markdown import percent, table
from meshwright.validation.memory_distance import Bin, MemoryDistance, histogram, memory_distances
from meshwright.validation.metrics import memory_pair
from meshwright.validation.results import Replay

_GIB = 2**30
_WORST = 10
_MAX_BAR = 40
_KINDS = "Tensors allocated where the source counts them, else memory reserved, else all that the device holds."


def memory_section(answer: Replay) -> str:
    """Errors of peaks, runs out of memory and runs that fit told as such, the worst peaks, and histograms."""
    summary = answer.summary
    told = {name: errors for name, errors in summary.datasets.items() if errors.memory_rows or errors.oom_rows}
    if not told:
        return ""
    body = [
        (
            name,
            f"{errors.memory_rows}",
            percent(errors.memory_mean_absolute_error),
            f"{errors.oom_rows}",
            percent(errors.oom_recall),
            f"{errors.fits_rows}",
            percent(errors.fits_recall),
        )
        for name, errors in {**told, "**all**": summary.pooled}.items()
    ]
    header = ("dataset", "peaks", "mean error", "out of memory", "told right", "fit", "told right")
    parts = [
        "## Memory",
        f"{_KINDS} Verdicts are over rank groups that hold runs of both kinds.",
        table(header, body),
        *_worst_peaks(answer),
        *_histograms(answer),
    ]
    return "\n\n".join(parts)


def _worst_peaks(answer: Replay) -> list[str]:
    found = [(pair[0] / pair[1] - 1, pair, row) for row in answer.rows if row.judged and (pair := memory_pair(row))]
    ranked = sorted(found, key=lambda item: (-abs(item[0]), item[2].id))[:_WORST]
    body = [
        (row.id, row.description, f"{mine / _GIB:.1f}", f"{theirs / _GIB:.1f}", f"{error:+.0%}")
        for error, (mine, theirs), row in ranked
    ]
    header = ("row", "run", "predicted GiB", "measured GiB", "error")
    return ["The peaks farthest off:", table(header, body, left=("run",))] if body else []


def _histograms(answer: Replay) -> list[str]:
    distances = memory_distances(answer.rows)
    if not distances:
        return []
    parts = [
        "### Distance to the memory limit",
        "Predicted bytes on the fullest device / bytes that it holds. A run is predicted to fit up to 1.00; those below on the "
        "right column, and those above on the left one, are told wrong.",
    ]
    for dataset, runs in distances.items():
        parts += [f"{dataset}: {_verdicts(runs)}", f"```\n{_text_histogram(histogram(runs))}\n```"]
    return parts


def _verdicts(runs: Sequence[MemoryDistance]) -> str:
    ran, oom = [run for run in runs if not run.oom], [run for run in runs if run.oom]
    wrong_ran, wrong_oom = sum(run.distance > 1 for run in ran), sum(run.distance <= 1 for run in oom)
    return f"{wrong_ran} of {len(ran)} runs that ran and {wrong_oom} of {len(oom)} out of memory are on the wrong side."


def _text_histogram(bins: Sequence[Bin]) -> str:
    """One line a bin, bars of both kinds side by side; empty bins at both ends are left out."""
    held = [index for index, each in enumerate(bins) if each.ran or each.oom]
    shown = bins[held[0] : held[-1] + 1]
    scale = max(1.0, max(max(each.ran, each.oom) for each in shown) / _MAX_BAR)
    width = max(len(_bar(each.ran, scale)) for each in shown)
    width = max(width, len("ran"))
    lines = [f"{'':13}  {'ran':{width}}  out of memory"]
    for each in shown:
        high = "" if each.high is None else f"{each.high:.2f}"
        name = f"{each.low:.2f} - {high:5}"
        lines.append(f"{name:13}  {_bar(each.ran, scale):{width}}  {_bar(each.oom, scale)}".rstrip())
        if each.high == 1.0:
            lines.append("-" * 13 + "  the limit")
    return "\n".join(lines)


def _bar(count: int, scale: float) -> str:
    return f"{'#' * max(1, round(count / scale))} {count}" if count else "."

"""What the user's own runs say: errors before and after, corrections with their uncertainty, runs that would tell more."""

from __future__ import annotations

from rich.console import Console

from meshwright import units
from meshwright.cli.render.tables import facts, heading, lines, rows
from meshwright.validation.calibrate import Calibration

_MAX_RUNS = 20
_BESIDE_ID = 34


def render_calibration(console: Console, answer: Calibration) -> None:
    """Runs, corrections, the new interval, and suggestions."""
    site = answer.site
    heading(console, "Site", site.title)
    _runs(console, answer)
    _corrections(console, answer)
    heading(console, "Step time")
    facts(
        console,
        [
            ("median error", f"{answer.before.median:.1%} before, {answer.after.median:.1%} after, of these runs"),
            ("mean error", f"{answer.before.mean:.1%} before, {answer.after.mean:.1%} after, of these runs"),
            (
                "80% interval",
                f"+-{answer.band_before:.0%} before, +-{site.error_band:.0%} after, of other runs of this site",
            ),
        ],
    )
    if answer.suggestions:
        heading(console, "What would tell more")
        lines(console, answer.suggestions)


def _runs(console: Console, answer: Calibration) -> None:
    shown = answer.site.runs[:_MAX_RUNS]
    more, widest = len(answer.site.runs) - len(shown), console.width - _BESIDE_ID
    heading(console, "Runs", "error = predicted / measured - 1" + f"; {more} more (see --json)" * (more > 0))
    body = [
        (
            run.id if len(run.id) <= widest else f"{run.id[: widest - 3]}...",
            units.seconds(run.measured_seconds),
            f"{run.error_before:+.1%}",
            f"{run.error_after:+.1%}",
        )
        for run in shown
    ]
    rows(console, ("run", "measured", "before", "after"), body, left=("run",))


def _corrections(console: Console, answer: Calibration) -> None:
    site = answer.site
    heading(console, "Corrections", "with one standard error; as large as the runs are evidence")
    body = [
        (
            "efficiency",
            f"x {site.efficiency.value:.3f}",
            f"{site.efficiency.uncertainty:.1%}",
            _told(answer, "efficiency", "rate of kernels"),
        ),
        (
            "launch",
            f"x {site.launch.value:.3f}",
            f"{site.launch.uncertainty:.1%}",
            _told(answer, "launch", "host time of an operation"),
        ),
        (
            "overlap",
            f"{site.overlap.value:+.3f}",
            f"{site.overlap.uncertainty:.3f}",
            _told(answer, "overlap", "hidden share of data-parallel communication"),
        ),
        (
            "memory_margin",
            f"x {site.memory_margin.value:.3f}",
            f"{site.memory_margin.uncertainty:.1%}",
            "allocated peak" if answer.memory_runs else "allocated peak: no run tells it",
        ),
    ]
    rows(console, ("", "value", "+-", "of"), body, left=("",), wrap="of")


def _told(answer: Calibration, name: str, meaning: str) -> str:
    return meaning if name in answer.determined else f"{meaning}: these runs hardly tell it"

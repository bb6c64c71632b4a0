"""What was measured, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from executor.measured_draft import Finding
from meshwright import units
from meshwright.cli.render.tables import heading, lines, rows


def render_findings(console: Console, findings: Sequence[Finding]) -> None:
    """One line a number: value, how many measurements it comes from, how far they lie from their fit."""
    heading(console, "Measured", "residual: relative distance of measurements and fit, root mean square")
    body = [
        (
            finding.name,
            units.seconds(finding.value) if finding.unit == "s" else units.rate(finding.value, finding.unit),
            str(finding.num_points),
            "-" if finding.residual is None else f"{finding.residual:.1%}",
        )
        for finding in findings
    ]
    rows(console, ("what", "value", "points", "residual"), body, left=("what",))
    lines(console, [f"{finding.name.strip()}: {finding.remark}" for finding in findings if finding.remark])

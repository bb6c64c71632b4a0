"""`meshwright replay`: predict measured runs, show the errors, and write the report of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import answer_console, print_json, print_notice, print_warnings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def _file(name: str, help_text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(name, metavar="FILE", readable=False, help=help_text)
    return found


def replay(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            readable=False,
            help="Files of measured runs: one JSON object a line, or CSV (docs/replay.md).",
        ),
    ],
    report: Annotated[
        Path | None, _file("--report", "Markdown file to write; a scatter plot goes beside it (.svg).")
    ] = None,
    readme: Annotated[
        Path | None, _file("--readme", "With --report: replace the table between the markers of this file.")
    ] = None,
    calibration: Annotated[
        Path | None, _file("--calibration", "With --report: record of a calibration, for errors on unseen runs (JSON).")
    ] = None,
    notes: Annotated[Path | None, _file("--notes", "With --report: Markdown to end the report with.")] = None,
    site: options.Site = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Predict measured runs and compare: errors per dataset, per framework, and over all."""
    from meshwright.validation.replay import replay as replay_runs
    from meshwright.validation.report_files import prepare_report

    if report is None and (readme or calibration or notes):
        raise typer.BadParameter("--readme, --calibration and --notes go into a report; needed --report FILE.md too")
    files = None
    if report is not None:
        files = prepare_report(
            runs, report, readme=readme, calibration=calibration, notes=notes, site=site, force=force
        )
    answer = replay_runs(runs, site=site)
    summary = answer.summary
    print_warnings(f"{bad.where}: {bad.reason}" for bad in (*summary.bad_lines, *summary.unknown_accelerators))
    for path in () if files is None else files.write(answer):
        print_notice(f"wrote {path}")
    if as_json:
        print_json(answer)
        return
    from meshwright.cli.render.replay import render_replay

    render_replay(answer_console(), answer)

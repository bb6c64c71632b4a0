"""`meshwright replay`: predict measured runs and show the errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import answer_console, print_json, print_warnings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS.jsonl...", help="Files of measured runs, one JSON object a line (docs/replay.md)."
        ),
    ],
    as_json: options.Json = False,
) -> None:
    """Predict measured runs and compare: errors per dataset, per framework, and over all."""
    from meshwright.validation.replay import replay as replay_runs

    answer = replay_runs(runs)
    print_warnings(f"{bad.where}: {bad.reason}" for bad in answer.summary.bad_lines)
    if as_json:
        print_json(answer)
        return
    from meshwright.cli.render.replay import render_replay

    render_replay(answer_console(), answer)

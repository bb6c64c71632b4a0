"""`meshwright explain`: why this plan."""

from __future__ import annotations

import typer

from meshwright.cli import options
from meshwright.cli.light_numpy import import_numpy


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(plan: options.PlanFile, as_json: options.Json = False) -> None:
    """Say why a plan is what it is."""
    import_numpy()

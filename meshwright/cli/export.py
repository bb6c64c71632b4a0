"""`meshwright export`: a plan as the files of what launches it."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from costmodel.specs import InputError, Rejection
from meshwright.cli import options
from meshwright.cli.light_numpy import import_numpy
from meshwright.cli.output import print_notice


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    plan: options.PlanFile,
    to: Annotated[str, typer.Option("--to", help="json, yaml, or torchrun (a bash script beside its plan file).")],
    output: Annotated[Path, typer.Option("--output", "-o", readable=False, help="File to write.")],
    force: options.Force = False,
) -> None:
    """Write a plan for another launcher."""
    import_numpy()
    from meshwright.exporting import export as write

    written = write(plan, to, output, force=force)
    if isinstance(written, Rejection):
        raise InputError(f"{written.message}; {written.fix}")
    for path in written:
        print(path)
    if to == "torchrun":
        print_notice(f"start it with: bash {quote(str(written[0]))}")

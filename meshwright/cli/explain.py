"""`meshwright explain`: why this plan."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.light_numpy import import_numpy
from meshwright.cli.output import answer_console, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    plan: options.PlanFile,
    search: Annotated[
        bool,
        typer.Option("--search/--no-search", help="Search again for what a plan file does not know of its rivals."),
    ] = True,
    site: options.Site = None,
    as_json: options.Json = False,
) -> None:
    """Say why a plan is what it is: time, memory, links, the guide, and one step away."""
    import_numpy()
    from meshwright.explaining import explain as tell

    sentences = tell(plan, search=search, site=site)
    if as_json:
        print_json(sentences)
        return
    from meshwright.cli.render.tables import heading, lines

    console = answer_console()
    for section, group in groupby(sentences, key=lambda explanation: explanation.section):
        heading(console, section.capitalize())
        lines(console, [explanation.sentence for explanation in group])

"""`meshwright models`: the models known by name."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import answer_console, print_json, print_warnings


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(help="Models known by name, and what a config.json says.", no_args_is_help=True)
    group.command("list")(list_models)
    group.command("show")(show_model)
    app.add_typer(group, name="models")


def list_models() -> None:
    """List the catalogue."""
    from costmodel.models.loader import describe_models
    from meshwright.cli.render.models import render_catalogue

    render_catalogue(answer_console(), describe_models())


def show_model(
    model: Annotated[str, typer.Argument(metavar="M", help="A catalogue name, a config.json or a folder.")],
    as_json: options.Json = False,
) -> None:
    """Show one model: sizes, parameters per layer and in total."""
    from costmodel.models.notices import config_notices
    from meshwright.cli.render.models import render_model
    from meshwright.inputs import load_model

    spec = load_model(model)
    print_warnings(config_notices(spec.hf_config))
    if as_json:
        print_json(spec)
    else:
        render_model(answer_console(), spec)

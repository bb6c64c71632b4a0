"""`meshwright hardware`: machines known by name, and this machine measured."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.detect import detect_hardware
from meshwright.cli.measure import measure_hardware
from meshwright.cli.output import answer_console, print_json


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(help="Machines known by name, and this machine measured.", no_args_is_help=True)
    group.command("list")(list_hardware)
    group.command("show")(show_hardware)
    group.command("measure")(measure_hardware)
    group.command("detect")(detect_hardware)
    app.add_typer(group, name="hardware")


def list_hardware() -> None:
    """List devices, nodes and networks."""
    from hardware_profiles import loader
    from meshwright.cli.render.hardware import render_catalogue

    render_catalogue(
        answer_console(),
        [loader.load_device(name) for name in loader.list_devices()],
        [loader.load_node(name) for name in loader.list_nodes()],
        [loader.load_network(name) for name in loader.list_networks()],
    )


def show_hardware(
    cluster: Annotated[str, typer.Argument(metavar="NAME", help="A device, a cluster (8x8xH100-SXM) or a YAML file.")],
    sources: Annotated[bool, typer.Option("--sources", help="Also where each number comes from.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show peaks, bandwidths, ridge points and links."""
    from meshwright.cli.render.hardware import render_cluster
    from meshwright.inputs import load_cluster

    spec = load_cluster(cluster)
    if as_json:
        print_json(spec)
    else:
        render_cluster(answer_console(), spec, sources=sources)

"""`meshwright export`: a plan as the files of what launches it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from costmodel.specs import InputError, Plan, Rejection
from meshwright.cli import options
from meshwright.cli.light_numpy import import_numpy
from meshwright.cli.output import print_notice, print_warnings

if TYPE_CHECKING:
    from meshwright.exporters import Exporter


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    context: typer.Context,
    plan: options.PlanFile,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="torchrun, megatron, torchtitan, deepspeed, accelerate or transformers; slurm: a job around one; json, yaml: "
            "the plan file.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", readable=False, help="Folder to write into; for json and yaml the file.")
    ],
    launcher: options.Launcher = None,
    target_version: Annotated[
        str | None,
        options.text("--target-version", "Of the target, one of the tested ones. Default: the first.", metavar="V"),
    ] = None,
    force: options.Force = False,
) -> None:
    """Write a plan for another launcher.

    Exit code 2: the target cannot express the plan; the nearest one that it can is shown.
    """
    import_numpy()
    from meshwright.exporters import find_exporter, losses_of, start_command
    from meshwright.exporting import export_plan
    from meshwright.plan_files import load_plan

    if to != "slurm":  # a wrong name is told before the plan is read
        find_exporter(to, launcher=launcher)
    loaded = load_plan(plan)
    exporter = find_exporter(to, launcher=launcher, runtime=loaded.runtime.name)
    command = str(context.obj or "")
    written = export_plan(
        loaded, exporter, output, force=force, version=target_version, command=command, inputs=(plan,)
    )
    if isinstance(written, Rejection):
        raise InputError(_refusal(written, loaded, exporter))
    print_warnings(f"{loss.field}: {loss.message}" for loss in losses_of(exporter, loaded))
    for path in written:
        print(path)
    if exporter.suffix is None:
        print_notice(f"start it with: {start_command(exporter, written[0])}")


def _refusal(rejection: Rejection, plan: Plan, exporter: Exporter) -> str:
    """Why not, and the nearest plan that the target can run."""
    from meshwright import units
    from meshwright.nearest import nearest_plan
    from planner.evaluation import step_seconds
    from planner.summary import summarize

    text = f"{rejection.message}; {rejection.fix}"
    nearest = nearest_plan(plan, exporter)
    if nearest is None:
        return text
    return (
        f"{text}; the nearest plan that it can run: {summarize(nearest.plan)}, "
        f"step time {units.seconds(step_seconds(nearest.plan))}: {nearest.command}"
    )

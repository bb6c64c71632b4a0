"""`meshwright verify`: run a plan dry at full size, and hold the prediction against it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from meshwright.cli import options
from meshwright.cli.exit_codes import FAILURE
from meshwright.cli.output import answer_console, print_json, print_notice


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def _tolerance(name: str, text: str) -> Any:
    return typer.Option(name, metavar="SHARE", help=text)


def verify(
    context: typer.Context,
    plan: options.PlanFile,
    memory_tolerance: Annotated[
        float, _tolerance("--memory-tolerance", "Largest relative error of a pipeline rank's peak memory.")
    ] = 0.03,
    flops_tolerance: Annotated[
        float, _tolerance("--flops-tolerance", "Largest relative error of the FLOP of a step.")
    ] = 0.005,
    as_json: options.Json = False,
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Check a plan's prediction without any device: memory, FLOP and every collective of the executor's own step.

    One process at a time plays a rank of the full world with tensors that have no memory. Communication and state must agree
    to the byte. Exit code 1: something is beyond its tolerance. --output writes what the dry run did.
    """
    _verify(context.params)


def _verify(values: dict[str, Any]) -> None:
    from meshwright.cli.render.verification import render_verification
    from meshwright.files import refuse_inputs
    from meshwright.verifying import verify as hold_against

    if values["output"] is not None:
        refuse_inputs(values["output"], (values["plan"],))
    tolerances = {name: values[name] for name in ("memory_tolerance", "flops_tolerance")}
    observation, comparison = hold_against(
        values["plan"], output=values["output"], force=values["force"], progress=True, **tolerances
    )
    if values["output"] is not None:
        print_notice(f"wrote what the dry run did to {values['output']}")
    if values["as_json"]:
        print_json(comparison)
    else:
        render_verification(answer_console(), observation, comparison)
    if not comparison.passed:
        raise typer.Exit(FAILURE)

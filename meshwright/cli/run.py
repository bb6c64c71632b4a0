"""`meshwright run`: train with a plan on this node, and hold the prediction against it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from costmodel.specs import Observation
from meshwright.cli import options
from meshwright.cli.output import answer_console, print_json, print_notice


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    plan: options.PlanFile,
    data: Annotated[
        Path | None, typer.Option("--data", help="UTF-8 text to train on; default: the text that meshwright carries.")
    ] = None,
    steps: Annotated[int, options.number("--steps", "Optimizer steps.")] = 10,
    nnodes: Annotated[
        int,
        options.number("--nnodes", "Nodes of the run; start this on each."),
    ] = 1,
    node_rank: Annotated[int, options.number("--node-rank", "Number of this node, from 0.", lowest=0)] = 0,
    rdzv_endpoint: Annotated[
        str | None, typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where the nodes meet: node 0.")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Train the same in one process too and compare the losses.")
    ] = False,
    as_json: options.Json = False,
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Train with a plan: torchrun on this node, one process per device."""
    from meshwright import running
    from meshwright.estimating import estimate
    from meshwright.files import check_output
    from meshwright.plan_files import load_plan

    if output is not None:
        check_output(output, force=force, suffixes=(".json",))
    loaded = load_plan(plan)
    predicted = loaded.estimate or estimate(loaded, ignore_memory=True)
    observation = running.run(
        loaded,
        steps=steps,
        data=data,
        output=output,
        force=force,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_endpoint=rdzv_endpoint,
        progress=True,
    )
    if output is not None:
        print_notice(f"wrote the observation to {output}")
    comparison = running.compare(predicted, observation)
    single: Observation | None = None
    if reference:
        print_notice("training the same in one process ...")
        single = running.run_reference(loaded, steps=steps, data=data, progress=True)
    if as_json:
        print_json(observation)
        return
    from meshwright.cli.render.observation import render_comparison, render_observation, render_reference

    console = answer_console()
    render_observation(console, observation)
    render_comparison(console, comparison)
    if single is not None:
        render_reference(console, observation, single, running.loss_difference(observation, single))

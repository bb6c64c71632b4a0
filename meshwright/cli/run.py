"""`meshwright run`: train with a plan on this node, and hold the prediction against it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.specs import Comparison, InputError, Observation
from meshwright.cli import options
from meshwright.cli.output import answer_console, print_json, print_notice

_PASSED_ON = (
    "nnodes", "node_rank", "rdzv_endpoint", "timeout", "save_hf", "save_hf_dtype", "checkpoint", "checkpoint_every", "resume",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    context: typer.Context,
    plan: options.PlanFile,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            readable=False,
            help="Text, JSON Lines (.jsonl) or tokens (.npy, .bin) to train on; default: the text that meshwright carries.",
        ),
    ] = None,
    steps: Annotated[int, options.number("--steps", "Optimizer steps, counted from the start of training.")] = 10,
    save_hf: Annotated[
        Path | None,
        typer.Option("--save-hf", metavar="DIR", readable=False, help="Hugging Face folder for the trained model."),
    ] = None,
    save_hf_dtype: Annotated[
        str | None,
        options.text(
            "--save-hf-dtype", "Its format: fp32, bf16, fp16 or fp64. Default: that of the plan's parameters."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="DIR", readable=False, help="Folder for checkpoints, the same on every node."
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None, options.number("--checkpoint-every", "Steps between checkpoints; default: only after the last.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the newest checkpoint, of this plan or another, if there is one."),
    ] = False,
    nnodes: Annotated[
        int,
        options.number("--nnodes", "Nodes of the run; start this on each."),
    ] = 1,
    node_rank: Annotated[int, options.number("--node-rank", "Number of this node, from 0.", lowest=0)] = 0,
    rdzv_endpoint: Annotated[
        str | None, typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where the nodes meet: node 0.")
    ] = None,
    timeout: options.Timeout = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Train the same in one process too and compare the losses.")
    ] = False,
    as_json: options.Json = False,
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Train with a plan: torchrun on this node, one process per device."""
    _run(context.params)


def _run(values: dict[str, Any]) -> None:
    from meshwright import running
    from meshwright.estimating import estimate
    from meshwright.files import check_output, refuse_inputs
    from meshwright.plan_files import load_plan

    if values["reference"] and values["resume"]:
        raise InputError("--reference trains from the start, so it cannot be held against a run with --resume")
    output, training = values["output"], {"steps": values["steps"], "data": values["data"], "progress": True}
    if output is not None:
        check_output(output, force=values["force"], suffixes=(".json",))
        refuse_inputs(output, (values["plan"], values["data"]))
    plan = load_plan(values["plan"])
    predicted = plan.estimate or estimate(plan, ignore_memory=True)
    observation = running.run(
        plan, output=output, force=values["force"], **{name: values[name] for name in _PASSED_ON}, **training
    )
    if output is not None:
        print_notice(f"wrote the observation to {output}")
    if values["save_hf"] is not None and values["node_rank"] == 0:
        print_notice(f"wrote the model to {values['save_hf']}")
    single: Observation | None = None
    if values["reference"]:
        print_notice("training the same in one process ...")
        single = running.run_reference(plan, **training)
    if values["as_json"]:
        print_json(observation)
    else:
        _show(observation, running.compare(predicted, observation), single)


def _show(observation: Observation, comparison: Comparison, single: Observation | None) -> None:
    from meshwright.cli.render.observation import render_comparison, render_observation, render_reference
    from meshwright.running import loss_difference

    console = answer_console()
    render_observation(console, observation)
    if comparison.fields:  # a run that only exports has nothing to compare
        render_comparison(console, comparison)
    if single is not None:
        render_reference(console, observation, single, loss_difference(observation, single))

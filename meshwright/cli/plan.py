"""`meshwright plan`: the fastest plan that fits, and why."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from costmodel.specs import Infeasible, InputError, Recommendation, Rejection
from meshwright.cli import options
from meshwright.cli.exit_codes import NO_FEASIBLE_PLAN
from meshwright.cli.light_numpy import import_numpy
from meshwright.cli.output import SlowProgress, answer_console, print_json, print_notice, print_warnings

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.shortlist import Shortlist

_PASSED_ON = (
    "global_batch_size", "sequence_length", "runtime", "precision", "optimizer", "attention", "loss_chunks", "tokens",
    "site", "exact", "time_limit", "max_memory_fraction", "reserve_memory",
)  # fmt: skip

_SHOWN = 5


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    context: typer.Context,
    model: options.Model,
    cluster: options.Cluster,
    global_batch_size: options.OptionalGlobalBatchSize = None,
    sequence_length: options.OptionalSequenceLength = None,
    runtime: options.Runtime = "torch",
    precision: options.Precision = None,
    optimizer: options.Optimizer = "adamw",
    attention: options.Attention = "fused",
    loss_chunks: options.LossChunks = 1,
    fix: options.Fix = None,
    allow: options.Allow = None,
    top: options.Top = None,
    tokens: options.Tokens = None,
    exact: options.Exact = False,
    time_limit: options.TimeLimit = None,
    objective: options.Objective = None,
    price: options.Price = None,
    within: options.Within = None,
    minimum_devices: options.MinimumDevices = False,
    maximize: options.Maximize = None,
    granularity: options.Granularity = None,
    export_to: options.ExportTo = None,
    launcher: options.Launcher = None,
    site: options.Site = None,
    max_memory_fraction: options.MaxMemoryFraction = None,
    reserve_memory: options.ReserveMemory = None,
    as_json: options.Json = False,
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Find the fastest parallel plan that fits (or the best one by another objective), with a certificate and alternatives.

    Exit code 3: no plan of the declared space fits; the nearest miss is shown.
    """
    import_numpy()
    values = context.params
    _check_export(values)
    answer = _find(values, command=context.obj)
    shortlist = None
    if values["export_to"] is not None and isinstance(answer, Recommendation):
        shortlist = _export(answer, values, command=context.obj)
    _show(answer, values, shortlist)
    if isinstance(answer, Infeasible):
        raise typer.Exit(NO_FEASIBLE_PLAN)


def _check_export(values: dict[str, Any]) -> None:
    """What ``--export-to`` goes with, before anything is searched."""
    if values["export_to"] is None:
        if values["launcher"] is not None:
            raise InputError("--launcher is for --export-to slurm; leave it out, or name the target")
        return
    from meshwright.exporters import find_exporter
    from meshwright.folders import check_folder

    find_exporter(values["export_to"], launcher=values["launcher"], runtime=values["runtime"])
    if values["output"] is None:
        raise InputError("--export-to needs the folder to write into: -o DIR")
    check_folder(values["output"], ("README.md",), force=values["force"])


def _export(answer: Recommendation, values: dict[str, Any], *, command: str) -> Shortlist:
    """Write the plans worth measuring for another launcher."""
    from meshwright.shortlist import write_shortlist
    from planner.worth_measuring import worth_measuring

    inputs = [values[name] for name in ("model", "cluster", "site")]
    found = write_shortlist(
        worth_measuring(answer, values["top"] or _SHOWN), values["export_to"], values["output"], stated=values,
        force=values["force"], launcher=values["launcher"], command=command, inputs=inputs,
    )  # fmt: skip
    if isinstance(found, Rejection):
        raise InputError(f"{found.message}; {found.fix}")
    print_warnings(found.warnings)
    print_notice(f"wrote {len(found.measurements)} plans to {values['output']}")
    return found


def _find(values: dict[str, Any], *, command: str) -> Recommendation | Infeasible:
    """Plan, and write the best plan before anything is shown."""
    from meshwright.files import DOCUMENT_SUFFIXES, check_output, refuse_inputs
    from meshwright.inputs import parse_assignments
    from meshwright.plan_files import save_plan

    output = None if values["export_to"] else values["output"]
    if output is not None:
        check_output(output, force=values["force"], suffixes=DOCUMENT_SUFFIXES)
        refuse_inputs(output, (values["model"], values["cluster"], values["site"]))
    answer = _ask(
        values,
        fix=parse_assignments(values["fix"] or (), option="--fix"),
        allow=parse_assignments(values["allow"] or (), option="--allow"),
        command=command,
        top=_SHOWN if values["top"] is None else values["top"],
        progress=SlowProgress(),
        **{name: values[name] for name in _PASSED_ON},
    )
    if isinstance(answer, Recommendation):
        if output is not None:
            save_plan(answer.best, output, force=values["force"])
            print_notice(f"wrote the best plan to {output}")
        print_warnings(answer.warnings)
    return answer


def _ask(values: dict[str, Any], **stated: Any) -> Recommendation | Infeasible:
    """The question that the options ask."""
    from meshwright.planning import plan as find_plan
    from meshwright.scaling import maximize

    given = {name: values[name] for name in ("objective", "price", "within") if values[name] is not None}
    if values["minimum_devices"]:
        given.setdefault("objective", "devices")
        other = f"--objective {given['objective']}" if given["objective"] != "devices" else ""
        other = f"--maximize {values['maximize']}" if values["maximize"] is not None else other
        if other:
            raise InputError(f"--minimum-devices and {other} are two questions; ask one of them")
    if values["maximize"] is not None:
        if given:
            raise InputError(
                f"--maximize takes no --{next(iter(given))}; it gives the fastest plan at the largest value"
            )
        return maximize(
            values["maximize"], values["model"], values["cluster"], granularity=values["granularity"], **stated
        )
    if values["granularity"] is not None:
        raise InputError("--granularity is for --maximize sequence_length; leave it out, or maximize")
    missing = [
        f"--{name.replace('_', '-')}" for name in ("global_batch_size", "sequence_length") if values[name] is None
    ]
    if missing:
        raise InputError(f"missing: {', '.join(missing)}; only what --maximize asks for may be left out")
    return find_plan(values["model"], values["cluster"], **given, **stated)


def _show(answer: Recommendation | Infeasible, values: dict[str, Any], shortlist: Shortlist | None) -> None:
    if values["as_json"]:
        print_json(answer)
        return
    from meshwright.cli.render.recommendation import render_infeasible, render_recommendation
    from meshwright.cli.render.tables import commands

    console = answer_console()
    if isinstance(answer, Infeasible):
        render_infeasible(console, answer)
        return
    render_recommendation(console, answer)
    if shortlist is not None:
        _show_shortlist(console, shortlist, values)
        return
    if values["top"] is not None:
        _show_measurements(console, answer, values)
    commands(console, _next_commands(answer, values["output"]))


def _show_shortlist(console: Console, shortlist: Shortlist, values: dict[str, Any]) -> None:
    """The plans that were written, and how they are measured."""
    from meshwright.cli.render.measuring import render_measurements
    from meshwright.measuring import calibrate_command

    found = shortlist.measurements
    for plan, rejection in shortlist.skipped:
        print_notice(f"left out {plan.plan_hash[:12]}: {rejection.message}")
    render_measurements(console, found, calibrate_command(found, values), asked=values["top"] or _SHOWN)


def _show_measurements(console: Console, answer: Recommendation, values: dict[str, Any]) -> None:
    """The plans worth measuring, and how."""
    from meshwright.cli.render.measuring import render_measurements
    from meshwright.measuring import calibrate_command, measurements
    from planner.worth_measuring import worth_measuring

    plans = worth_measuring(answer, values["top"])
    found = measurements(plans, values, values["output"], runnable=_is_runnable(answer))
    render_measurements(console, found, calibrate_command(found, values), asked=values["top"])


def _is_runnable(answer: Recommendation) -> bool:
    from executor.checks import find_lack

    return answer.best.runtime.name == "torch" and find_lack(answer.best) is None


def _target(answer: Recommendation) -> str:
    """The launcher of the plan's runtime with the folder to write into, or a plan file in YAML where it has none."""
    from meshwright.exporters import EXPORTERS, LAUNCHERS, reject

    own = (name for name in LAUNCHERS if answer.best.runtime.name in (EXPORTERS[name].runtimes or ()))
    name = next((name for name in own if reject(EXPORTERS[name], answer.best) is None), None)
    return "yaml -o plan.yaml" if name is None else f"{name} -o {name}-launch"


def _next_commands(answer: Recommendation, output: Path | None) -> list[str]:
    file = quote(str(output or "plan.json"))
    made_by = answer.best.provenance.command if answer.best.provenance else ""
    keep = [] if output else [f"{made_by or 'meshwright plan ...'} -o {file}"]
    if not _is_runnable(answer):
        return [*keep, f"meshwright explain {file}", f"meshwright export {file} --to {_target(answer)}"]
    folder = quote(str((output or Path("plan.json")).with_suffix("")))
    return [
        *keep,
        f"meshwright explain {file}",
        f"meshwright run {file}",
        f"meshwright export {file} --to torchrun -o {folder}",
    ]

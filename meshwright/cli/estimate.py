"""`meshwright estimate`: step time and memory of one stated plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.specs import Infeasible, InputError, Plan
from meshwright.cli import options
from meshwright.cli.exit_codes import NO_FEASIBLE_PLAN
from meshwright.cli.light_numpy import import_numpy
from meshwright.cli.output import answer_console, print_json, print_notice, print_warnings

_MAY_BE_OPEN = ("global_batch_size", "sequence_length", "precision", "optimizer", "attention", "loss_chunks")
_INPUTS = ("model", "cluster", "global_batch_size", "sequence_length")
# What may stand beside a plan file; everything else belongs to a plan that is stated size by size.
_BESIDE_FILE = {
    "plan",
    "ignore_memory",
    "accept_edits",
    "tokens",
    "site",
    "as_json",
    "output",
    "force",
    "max_memory_fraction",
    "reserve_memory",
    "improve",
}
# What may stand beside a config of another framework: its layout is its own.
_BESIDE_CONFIG = (_BESIDE_FILE - {"plan", "accept_edits"}) | {
    "source", "file_format", "model", "cluster", "global_batch_size", "sequence_length", "runtime", "precision", "optimizer",
    "attention", "loss_chunks",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("estimate")(estimate)


def estimate(
    context: typer.Context,
    plan: options.OptionalPlanFile = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", readable=False, help="A launch script or config of another framework."),
    ] = None,
    file_format: Annotated[
        str | None,
        options.text("--format", "Of that file; default: found out. A wrong name lists all.", metavar="TARGET"),
    ] = None,
    improve: Annotated[
        bool, typer.Option("--improve", help="Also show the best plan of the same runtime, and how it differs.")
    ] = False,
    model: options.OptionalModel = None,
    cluster: options.OptionalCluster = None,
    global_batch_size: options.OptionalGlobalBatchSize = None,
    sequence_length: options.OptionalSequenceLength = None,
    runtime: options.Runtime = "torch",
    precision: options.Precision = None,
    optimizer: options.Optimizer = "adamw",
    attention: options.Attention = "fused",
    loss_chunks: options.LossChunks = 1,
    tensor_parallel_size: options.TensorParallelSize = None,
    sequence_parallel: options.SequenceParallel = None,
    loss_parallel: options.LossParallel = None,
    pipeline_parallel_size: options.PipelineParallelSize = None,
    pipeline_schedule: options.PipelineSchedule = None,
    num_model_chunks: options.NumModelChunks = None,
    data_parallel_replicate_size: options.DataParallelReplicateSize = None,
    data_parallel_shard_size: options.DataParallelShardSize = None,
    context_parallel_size: options.ContextParallelSize = None,
    context_parallel_method: options.ContextParallelMethod = None,
    zero_stage: options.ZeroStage = None,
    hierarchical_partition_size: options.HierarchicalPartitionSize = None,
    micro_batch_size: options.MicroBatchSize = None,
    num_micro_batches: options.NumMicroBatches = None,
    recompute: options.Recompute = "none",
    layers_per_stage: options.LayersPerStage = None,
    axis_order: options.AxisOrder = "pipeline_outermost",
    ignore_memory: options.IgnoreMemory = False,
    accept_edits: Annotated[
        bool, typer.Option("--accept-edits", help="Take a plan file that was edited by hand and give it a new hash.")
    ] = False,
    tokens: options.Tokens = None,
    site: options.Site = None,
    max_memory_fraction: options.MaxMemoryFraction = None,
    reserve_memory: options.ReserveMemory = None,
    as_json: options.Json = False,
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Predict one plan: a plan file, a config of another framework, or the inputs of `plan` with explicit sizes.

    Exit code 3: the plan does not fit; what is missing is shown (0 with --ignore-memory).
    """
    import_numpy()
    stated = [name for name in context.params if _is_stated(context, name)]
    _run(context.params, stated, command=context.obj)


def _is_stated(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _run(values: dict[str, Any], stated: list[str], *, command: str) -> None:
    from meshwright.estimating import estimate as predict
    from meshwright.estimating import explain_miss, with_estimate
    from meshwright.files import DOCUMENT_SUFFIXES, check_output, refuse_inputs
    from meshwright.inputs import parse_tokens
    from meshwright.plan_files import save_plan
    from meshwright.planning import notices
    from meshwright.sites import site_warnings, with_site
    from planner.cautions import memory_caution, plan_cautions

    if values["tokens"] is not None:
        parse_tokens(values["tokens"])
    if values["output"] is not None:
        check_output(values["output"], force=values["force"], suffixes=DOCUMENT_SUFFIXES)
        refuse_inputs(values["output"], (values[name] for name in ("plan", "source", "model", "cluster", "site")))
    unpriced = with_site(_stated_plan(values, stated, command=command), values["site"])
    stated_limit = {name: values[name] for name in ("ignore_memory", "max_memory_fraction", "reserve_memory")}
    plan = with_estimate(unpriced, predict(unpriced, **stated_limit))
    assert plan.estimate is not None
    print_warnings((*notices(plan), *memory_caution(plan), *plan_cautions(plan), *site_warnings(plan)))
    if not plan.estimate.fits and not values["ignore_memory"]:
        _show_miss(explain_miss(plan), as_json=values["as_json"])
        if values["improve"]:
            _improve(plan, values)
        raise typer.Exit(NO_FEASIBLE_PLAN)
    if values["output"] is not None:
        save_plan(plan, values["output"], force=values["force"])
        print_notice(f"wrote the plan with its estimate to {values['output']}")
    _show(plan, values)
    if values["improve"]:
        _improve(plan, values)


def _stated_plan(values: dict[str, Any], stated: list[str], *, command: str) -> Plan:
    from meshwright.plan_files import load_plan
    from meshwright.planning import make_plan
    from planner.axes import parse_layers

    if values["source"] is not None:
        return _imported_plan(values, stated, command=command)
    if values["file_format"] is not None:
        raise InputError("--format is for --from FILE; give the file, or leave out --format")
    if values["plan"] is not None:
        clash = next((name for name in stated if name not in _BESIDE_FILE), None)
        if clash is not None:
            raise InputError(f"a plan file has its own inputs: leave out --{clash.replace('_', '-')} or the file")
        return load_plan(values["plan"], accept_edits=values["accept_edits"])
    if values["accept_edits"]:
        raise InputError("--accept-edits is for a plan file; give the file, or leave out --accept-edits")
    missing = [f"--{name.replace('_', '-')}" for name in _INPUTS if values[name] is None]
    if missing:
        raise InputError(f"needed a plan file, or its inputs; missing: {', '.join(missing)}")
    layers = values["layers_per_stage"]
    return make_plan(
        values["model"],
        values["cluster"],
        global_batch_size=values["global_batch_size"],
        sequence_length=values["sequence_length"],
        sizes={name: values[name] for name in options.SIZE_NAMES},
        recompute=values["recompute"],
        layers_per_stage=None if layers is None else parse_layers(layers),
        axis_order=values["axis_order"],
        runtime=values["runtime"],
        precision=values["precision"],
        optimizer=values["optimizer"],
        attention=values["attention"],
        loss_chunks=values["loss_chunks"],
        command=command,
    )


def _imported_plan(values: dict[str, Any], stated: list[str], *, command: str) -> Plan:
    """The plan that a config of another framework describes."""
    from meshwright.importing import import_plan, read_config

    clash = next((name for name in stated if name not in _BESIDE_CONFIG), None)
    if clash is not None:
        what = "the plan file" if clash == "plan" else f"--{clash.replace('_', '-')}"
        raise InputError(f"a config has its own layout: leave out {what}, or --from")
    missing = [f"--{name}" for name in ("model", "cluster") if values[name] is None]
    if missing:
        raise InputError(f"--from needs the model and the cluster too; missing: {', '.join(missing)}")
    read = read_config(values["source"], target=values["file_format"])
    print_warnings(read.warnings)
    if read.ignored:
        print_notice(f"read as {read.target}; without effect on time and memory: {', '.join(read.ignored)}")
    given = {name: values[name] for name in _MAY_BE_OPEN if name in stated}
    runtime = values["runtime"] if "runtime" in stated else None
    return import_plan(read, values["model"], values["cluster"], runtime=runtime, command=command, **given)


def _improve(plan: Plan, values: dict[str, Any]) -> None:
    """The best plan of the same problem, beside the given one; in JSON on stderr, as durations are."""
    from meshwright.cli.render.improvement import render_improvement
    from meshwright.improving import improve

    found = improve(plan, **{name: values[name] for name in ("max_memory_fraction", "reserve_memory")})
    if values["as_json"]:
        print_notice(found.answer.model_dump_json())
    else:
        render_improvement(answer_console(), found)


def _show(plan: Plan, values: dict[str, Any]) -> None:
    from meshwright.cli.render.plan import render_estimate, render_sizes, render_subject
    from meshwright.cli.render.recommendation import render_duration
    from meshwright.estimating import training_duration

    assert plan.estimate is not None
    duration = None if values["tokens"] is None else training_duration(plan, values["tokens"])
    if values["as_json"]:
        print_json(plan.estimate)
        if duration is not None:
            print_notice(duration.model_dump_json())
        return
    console = answer_console()
    render_subject(console, plan)
    render_sizes(console, plan)
    render_estimate(console, plan, plan.estimate)
    if duration is not None:
        render_duration(console, duration)


def _show_miss(answer: Infeasible, *, as_json: bool) -> None:
    from meshwright.cli.render.recommendation import render_infeasible

    if as_json:
        print_json(answer)
    else:
        render_infeasible(answer_console(), answer, "This plan does not fit.")

"""`meshwright scale`: from one node to all of them, and where more stop paying."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from costmodel.specs import Infeasible, Scaling
from meshwright.cli import options
from meshwright.cli.exit_codes import NO_FEASIBLE_PLAN
from meshwright.cli.light_numpy import import_numpy
from meshwright.cli.output import SlowProgress, answer_console, print_json, print_warnings

_PASSED_ON = (
    "global_batch_size", "batch_per_node", "sequence_length", "nodes", "price", "tokens", "marginal_efficiency", "runtime",
    "precision", "optimizer", "attention", "loss_chunks", "site", "max_memory_fraction", "reserve_memory",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scale")(scale)


def scale(
    context: typer.Context,
    model: options.Model,
    cluster: options.Cluster,
    sequence_length: options.SequenceLength,
    global_batch_size: options.OptionalGlobalBatchSize = None,
    batch_per_node: Annotated[
        int | None,
        options.number("--batch-per-node", "Sequences per step and node, in place of a global batch (weak scaling)."),
    ] = None,
    nodes: Annotated[
        str | None,
        options.text("--nodes", "Numbers of nodes. Default: powers of two and the whole cluster.", metavar="1,2,4"),
    ] = None,
    price: options.Price = None,
    marginal_efficiency: Annotated[
        str,
        options.text(
            "--marginal-efficiency", "Share of their ideal tokens/s below which more nodes do not pay.", metavar="F"
        ),
    ] = "50%",
    runtime: options.Runtime = "torch",
    precision: options.Precision = None,
    optimizer: options.Optimizer = "adamw",
    attention: options.Attention = "fused",
    loss_chunks: options.LossChunks = 1,
    fix: options.Fix = None,
    allow: options.Allow = None,
    tokens: options.Tokens = None,
    site: options.Site = None,
    max_memory_fraction: options.MaxMemoryFraction = None,
    reserve_memory: options.ReserveMemory = None,
    as_json: options.Json = False,
) -> None:
    """Plan for 1 to all nodes of a cluster: tokens per second, cost per token, and where more nodes stop paying.

    Exit code 3: no plan fits on any of the numbers of nodes; the nearest miss on the largest is shown.
    """
    import_numpy()
    answer = _find(context.params, command=context.obj)
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if isinstance(answer, Infeasible):
        raise typer.Exit(NO_FEASIBLE_PLAN)


def _find(values: dict[str, Any], *, command: str) -> Scaling | Infeasible:
    from meshwright.inputs import parse_assignments
    from meshwright.scaling import scale as find

    answer = find(
        values["model"],
        values["cluster"],
        fix=parse_assignments(values["fix"] or (), option="--fix"),
        allow=parse_assignments(values["allow"] or (), option="--allow"),
        command=command,
        progress=SlowProgress(),
        **{name: values[name] for name in _PASSED_ON},
    )
    if not isinstance(answer, Infeasible):
        print_warnings(answer.warnings)
    return answer


def _show(answer: Scaling | Infeasible) -> None:
    from meshwright.cli.render.questions import render_scaling
    from meshwright.cli.render.recommendation import render_infeasible

    console = answer_console()
    if isinstance(answer, Infeasible):
        render_infeasible(console, answer, "No feasible plan on any of these numbers of nodes.")
    else:
        render_scaling(console, answer)

"""Choose a plan, or state one: `plan` and `make_plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.specs import (
    ClusterSpec,
    Infeasible,
    ModelSpec,
    OptimizerSpec,
    Plan,
    Provenance,
    Recommendation,
    RecomputeSpec,
    RuntimeProfile,
    SiteProfile,
)
from meshwright.estimating import check_rules, refuse_infinite
from meshwright.inputs import parse_tokens, require_mapping, whole_number
from meshwright.questions import choose_objective, make_inquiry
from meshwright.sites import site_warnings
from meshwright.statement import Setting, as_word, resolve_statement
from meshwright.version import __version__

if TYPE_CHECKING:
    from costmodel.runtimes.grid import RecomputeKind

_MAX_TOP = 1000
_MAX_SECONDS = 604_800


def plan(
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    global_batch_size: int,
    sequence_length: int,
    top: int = 5,
    tokens: int | float | str | None = None,
    exact: bool = False,
    time_limit: int | None = None,
    objective: str = "step-time",
    price: float | str | None = None,
    within: float | str | None = None,
    command: str = "",
    progress: Callable[[str], None] | None = None,
    **setting: Unpack[Setting],
) -> Recommendation | Infeasible:
    """The best plan of the declared space that fits, with a certificate and the alternatives.

    Args:
        model: a spec, a catalogue name, a config.json or a folder.
        cluster: a spec, a name such as ``8x8xH100-SXM``, or a YAML file.
        global_batch_size: sequences per optimizer step.
        sequence_length: tokens per sequence.
        top: plans to return, the best one included.
        tokens: training tokens to give a duration for: a number, ``300e9``, ``300B`` or ``2T``.
        exact: go on until no plan of the space can be faster, or the certificate says why not.
        time_limit: seconds for that; without ``exact`` it replaces the little work that every answer gets. Ctrl-C ends it too.
        objective: ``step-time``; ``devices``, the fewest; ``cost``, the lowest per token; ``memory-headroom``, the most free.
        price: of a device-hour, for ``cost``; None takes the cluster's.
        within: how much slower than the fastest a plan with more headroom may be; None is 10%.
        command: recorded in the plan's provenance.
        progress: told in words what is searched, where it takes several searches.
        setting: runtime, precision, optimizer, attention, loss_chunks, site, max_memory_fraction, reserve_memory, and the
            axes to ``fix`` or to ``allow``, as `meshwright.statement.Setting` says.

    Raises:
        InputError: for wrong input, among it a fixed size that breaks a rule by itself, and a site of another device or runtime.
    """
    top = whole_number("top", top, 1, _MAX_TOP)
    total = None if tokens is None else parse_tokens(tokens)
    limit = None if time_limit is None else whole_number("time_limit", time_limit, 1, _MAX_SECONDS)
    stated = resolve_statement(
        model, cluster, global_batch_size=global_batch_size, sequence_length=sequence_length, **setting
    )
    solve = choose_objective(objective, price=price, within=within, cluster=stated.cluster)
    with refuse_infinite():
        inquiry = make_inquiry(stated, top=top, total_tokens=total, progress=progress)
        answer = solve(inquiry.changed(exact=exact, time_limit=limit))
    return with_origin(answer, command, stated.site)


def make_plan(
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    global_batch_size: int,
    sequence_length: int,
    sizes: Mapping[str, Any] | None = None,
    recompute: RecomputeKind | RecomputeSpec | Sequence[RecomputeKind | RecomputeSpec] = "none",
    layers_per_stage: tuple[int, ...] | None = None,
    axis_order: str = "pipeline_outermost",
    runtime: RuntimeProfile | str = "torch",
    precision: str | None = None,
    optimizer: OptimizerSpec | str = "adamw",
    attention: str = "fused",
    loss_chunks: int = 1,
    site: SiteProfile | str | Path | None = None,
    command: str = "",
) -> Plan:
    """A plan with the sizes stated, without a search and without an estimate.

    Args:
        model: as in `plan`.
        cluster: as in `plan`.
        global_batch_size: as in `plan`.
        sequence_length: as in `plan`.
        sizes: fields of `ParallelConfig`; a data-parallel size or batch for which one value is left may be left out. Sequence
            and loss parallelism are on where the runtime always has them under tensor parallelism.
        recompute: ``none``, ``core_attention``, ``op_policy`` or ``full`` in every stage, or one of them, or a `RecomputeSpec`,
            for each virtual stage; ``full:2`` is the first two layers of a stage.
        layers_per_stage: layers of every virtual stage; None splits evenly.
        axis_order: ``pipeline_outermost`` or ``data_outermost``: how global ranks count through the mesh (`AXIS_ORDERS`).
        runtime: as in `plan`.
        precision: as in `plan`.
        optimizer: as in `plan`.
        attention: as in `plan`.
        loss_chunks: as in `plan`.
        site: as in `plan`.
        command: recorded in the plan's provenance.

    Raises:
        InputError: for wrong input, and for a plan that breaks a rule.
    """
    from costmodel.build import build_plan
    from meshwright.layout import complete_parallel
    from planner.axes import parse_layers, parse_order

    about = resolve_statement(
        model, cluster, global_batch_size=global_batch_size, sequence_length=sequence_length, runtime=runtime, site=site,
        precision=precision, optimizer=optimizer, attention=attention, loss_chunks=loss_chunks,
    )  # fmt: skip
    context = (about.model, about.cluster, about.training, about.runtime)
    stated = require_mapping("sizes", sizes, example="{'tensor_parallel_size': 8}")
    parallel = complete_parallel(stated, cluster=about.cluster, training=about.training, runtime=about.runtime)
    modes = _recomputation(recompute)
    layers = None if layers_per_stage is None else parse_layers(as_word(layers_per_stage))
    order = parse_order(axis_order)
    with refuse_infinite():
        made = build_plan(*context, parallel, recompute=modes, layers_per_stage=layers, axis_order=order)
        check_rules(made, about.runtime)
    return with_provenance(made, command, about.site)


def notices(plan: Plan) -> tuple[str, ...]:
    """What the model's config asks for that training leaves out, one sentence each."""
    from costmodel.models.notices import config_notices

    return config_notices(plan.model.hf_config)


def with_origin(
    answer: Recommendation | Infeasible, command: str, site: SiteProfile | None
) -> Recommendation | Infeasible:
    """An answer whose plans say how they were made, with the warnings of their model and site."""
    if isinstance(answer, Infeasible):
        return answer
    best = with_provenance(answer.best, command, site)
    return answer.model_copy(
        update={
            "best": best,
            "alternatives": tuple(with_provenance(other, command, site) for other in answer.alternatives),
            "warnings": tuple(dict.fromkeys((*answer.warnings, *notices(best), *site_warnings(best)))),
        }
    )


def with_provenance(plan: Plan, command: str, site: SiteProfile | None) -> Plan:
    """The plan with the command that made it and the site it is predicted with."""
    found = plan.provenance or Provenance(meshwright_version=__version__)
    update = {"meshwright_version": __version__, "command": str(command or found.command)}
    return plan.model_copy(update={"provenance": found.model_copy(update=update), "site": site})


def _recomputation(stated: object) -> RecomputeSpec | tuple[RecomputeSpec, ...]:
    from planner.axes import parse_recompute

    several = isinstance(stated, Sequence) and not isinstance(stated, str)
    stages = stated if several and isinstance(stated, Sequence) else [stated]
    words = (stage.word if isinstance(stage, RecomputeSpec) else as_word(stage) for stage in stages)
    return parse_recompute(",".join(words))

"""Questions about more than one size of input: `scale` and `maximize`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

from costmodel.specs import (
    MAX_GLOBAL_BATCH_SIZE,
    ClusterSpec,
    Infeasible,
    InputError,
    ModelSpec,
    Recommendation,
    Scaling,
)
from meshwright.estimating import refuse_infinite
from meshwright.inputs import parse_share, parse_tokens, whole_number
from meshwright.planning import notices, with_origin, with_provenance
from meshwright.questions import Progress, choose_maximum, device_price, make_inquiry
from meshwright.sites import site_warnings
from meshwright.statement import Setting, Statement, resolve_statement

_MAX_TOP = 1000
_NEUTRAL = {"global_batch_size": 1, "sequence_length": 1024}
_MOST_SHOWN = 12


def maximize(
    quantity: str,
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    global_batch_size: int | None = None,
    sequence_length: int | None = None,
    granularity: int | None = None,
    top: int = 5,
    tokens: int | float | str | None = None,
    command: str = "",
    progress: Progress | None = None,
    **setting: Unpack[Setting],
) -> Recommendation | Infeasible:
    """The largest sequence length, micro batch or global batch for which a plan fits, and the fastest plan there.

    Args:
        quantity: ``sequence_length``, ``micro_batch_size``, or ``global_batch_size``: what a step takes without gradient
            accumulation (with it, every batch fits).
        model: as in `plan`.
        cluster: as in `plan`.
        global_batch_size: as in `plan`; None exactly where it is the quantity.
        sequence_length: as in `plan`; None exactly where it is the quantity.
        granularity: sequence lengths are multiples of it; None takes 1024, or 128 or 16 where no such length fits.
        top: as in `plan`.
        tokens: as in `plan`.
        command: recorded in the plan's provenance.
        progress: told in words what is tried.
        setting: as in `plan`.

    Returns:
        A recommendation whose ``maximum`` says what was tried and why the next value does not fit.

    Raises:
        InputError: for wrong input.
    """
    solve = choose_maximum(
        quantity, global_batch_size=global_batch_size, sequence_length=sequence_length, granularity=granularity
    )
    top = whole_number("top", top, 1, _MAX_TOP)
    total = None if tokens is None else parse_tokens(tokens)
    stated = resolve_statement(
        model,
        cluster,
        global_batch_size=_NEUTRAL["global_batch_size"] if global_batch_size is None else global_batch_size,
        sequence_length=_NEUTRAL["sequence_length"] if sequence_length is None else sequence_length,
        **setting,
    )
    with refuse_infinite():
        answer = solve(make_inquiry(stated, top=top, total_tokens=total, progress=progress))
    return with_origin(answer, command, stated.site)


def scale(
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    sequence_length: int,
    global_batch_size: int | None = None,
    batch_per_node: int | None = None,
    nodes: Iterable[int] | str | None = None,
    price: float | str | None = None,
    tokens: int | float | str | None = None,
    marginal_efficiency: float | str = 0.5,
    command: str = "",
    progress: Progress | None = None,
    **setting: Unpack[Setting],
) -> Scaling | Infeasible:
    """The best plan on 1 to all nodes of a cluster, tokens per second, cost per token, and where more nodes stop paying.

    Args:
        model: as in `plan`.
        cluster: as in `plan`; its first nodes are planned for.
        sequence_length: as in `plan`.
        global_batch_size: sequences per step on every number of nodes (strong scaling); this or ``batch_per_node``.
        batch_per_node: sequences per step and node (weak scaling).
        nodes: numbers of nodes, such as ``[1, 2, 3]`` or ``"1,2,3"``; None takes powers of two and the whole cluster.
        price: of a device-hour; None takes the cluster's, and leaves costs out where it has none.
        tokens: training tokens to give cost and duration for.
        marginal_efficiency: of added nodes, below which they do not pay: 0.5 or ``50%`` of linear scaling.
        command: recorded in the plans' provenance.
        progress: told in words what is searched.
        setting: as in `plan`.

    Raises:
        InputError: for wrong input, among it numbers of nodes that the cluster does not have.
    """
    from planner import scale as scaling

    batch = _one_batch(global_batch_size, batch_per_node)
    stated = resolve_statement(model, cluster, global_batch_size=batch, sequence_length=sequence_length, **setting)
    terms = scaling.Terms(
        wanted=parse_share("marginal_efficiency", marginal_efficiency, 1.0),
        price_per_device_hour=device_price(price, stated.cluster),
        total_tokens=None if tokens is None else parse_tokens(tokens),
    )
    inquiry = make_inquiry(stated, progress=progress)
    inquiry.refuse_stated("num_devices_used", "scale")
    inquiries = []
    for count, place in _clusters(stated.cluster, nodes):
        size = whole_number(
            "global_batch_size", batch * (1 if batch_per_node is None else count), 1, MAX_GLOBAL_BATCH_SIZE
        )
        training = stated.training.model_copy(update={"global_batch_size": size})
        inquiries.append(inquiry.changed(cluster=place, training=training))
    with refuse_infinite():
        answer = scaling.scale(inquiries, terms=terms, per_node=batch_per_node is not None)
    return answer if isinstance(answer, Infeasible) else _with_origins(answer, command, stated)


def _one_batch(global_batch_size: int | None, batch_per_node: int | None) -> int:
    """The one of both that is stated."""
    if global_batch_size is not None and batch_per_node is None:
        return global_batch_size
    if batch_per_node is not None and global_batch_size is None:
        return batch_per_node
    found = "neither" if global_batch_size is None else "both"
    raise InputError(f"found {found} of global_batch_size and batch_per_node; needed exactly one of them")


def _clusters(cluster: ClusterSpec, nodes: Iterable[int] | str | None) -> list[tuple[int, ClusterSpec]]:
    """The clusters of the stated numbers of nodes, few first."""
    from planner.scale import default_nodes, first_nodes

    valid = [count for count in range(1, cluster.num_nodes + 1) if first_nodes(cluster, count) is not None]
    counts = default_nodes(cluster) if nodes is None else _parse_nodes(nodes)
    result = []
    for count in sorted(set(counts)):
        place = first_nodes(cluster, count) if count <= cluster.num_nodes else None
        if place is None:
            shown = ", ".join(map(str, valid[:_MOST_SHOWN])) + ", ..." * (len(valid) > _MOST_SHOWN)
            shape = "" if count > cluster.num_nodes else " in whole units of its hierarchy"
            raise InputError(
                f"nodes is {count}, but {cluster.name} has {cluster.num_nodes} node{'s' * (cluster.num_nodes > 1)}{shape}; "
                f"valid: {shown}" + f" (up to {valid[-1]})" * (len(valid) > 1)
            )
        result.append((count, place))
    return result


def _parse_nodes(nodes: Iterable[int] | str) -> list[int]:
    words: Iterable[object] = nodes.split(",") if isinstance(nodes, str) else nodes
    numbers = [int(word) if isinstance(word, str) and word.strip().isdecimal() else word for word in words]
    found = [whole_number("nodes", number, 1) for number in numbers]
    if not found:
        raise InputError("nodes is empty; needed at least one number of nodes, such as 1,2,4")
    return found


def _with_origins(answer: Scaling, command: str, stated: Statement) -> Scaling:
    """Plans that say how they were made, and the warnings of model and site."""
    points = tuple(
        point
        if point.best is None
        else point.model_copy(update={"best": with_provenance(point.best, command, stated.site)})
        for point in answer.points
    )
    best = next(point.best for point in points if point.best is not None)
    warnings = tuple(dict.fromkeys((*answer.warnings, *notices(best), *site_warnings(best))))
    return answer.model_copy(update={"points": points, "warnings": warnings})

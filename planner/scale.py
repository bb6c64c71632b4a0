"""How training speeds up from few nodes to many, and where more of them stop paying.

With n devices on the nodes (idle ones included), S(n) tokens per second of the best plan on them, and n_0 the smallest number
that fits:

    efficiency          = (S(n) / n) / (S(n_0) / n_0)                                     (1)
    marginal efficiency = ((S(n) - S(n')) / (n - n')) / (S(n_0) / n_0)                    (2), n' the number before n
    cost of X tokens    = price per device-hour x n x X / S(n) / 3600                     (3)

More nodes stop paying at the first number whose (2) is below what is wanted. The cheapest number has the smallest n / S(n),
whatever the price. The batch is the same for all numbers (strong scaling) or grows with the nodes (weak scaling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.specs import ClusterSpec, Infeasible, LevelSpec, Recommendation, Scaling, ScalingPoint
from hardware_profiles.grammar import cluster_name
from planner.inquiry import Inquiry
from planner.summary import summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What scaling is judged by. ``price_per_device_hour`` and ``total_tokens``: None leaves costs and durations out."""

    wanted: float = 0.5
    price_per_device_hour: float | None = None
    total_tokens: int | None = None


def default_nodes(cluster: ClusterSpec) -> list[int]:
    """The powers of two that the cluster's hierarchy can hold, and all its nodes."""
    nodes = cluster.num_nodes
    powers = [2**k for k in range(nodes.bit_length())]
    return [count for count in sorted({*powers, nodes}) if count <= nodes and first_nodes(cluster, count) is not None]


def first_nodes(cluster: ClusterSpec, count: int) -> ClusterSpec | None:
    """The cluster's first ``count`` nodes; None where they are no regular hierarchy (three nodes of racks of two)."""
    if count == cluster.num_nodes:
        return cluster
    levels: list[LevelSpec] = [cluster.levels[0]]
    left = count
    for level in cluster.levels[1:]:
        if left == 1:
            break
        size = min(level.size, left)
        if left % size:
            return None
        levels.append(level.model_copy(update={"size": size}))
        left //= size
    node, device = cluster.devices_per_node, cluster.device.name
    whole = cluster_name(cluster.num_nodes, node, device)
    name = cluster_name(count, node, device) if cluster.name == whole else f"{count} of the nodes of {cluster.name}"
    kept = tuple(
        path for path in cluster.sources if not path.startswith("levels.") or int(path.split(".")[1]) < len(levels)
    )
    sources = {path: cluster.sources[path] for path in kept}
    return cluster.model_copy(update={"name": name, "levels": tuple(levels), "sources": sources})


def scale(inquiries: Sequence[Inquiry], *, terms: Terms, per_node: bool) -> Scaling | Infeasible:
    """The best plan on every number of nodes, and what follows.

    Args:
        inquiries: one question for each cluster, from few nodes to many; their batches may differ.
        terms: what is wanted and paid.
        per_node: the batch grows with the nodes.

    Returns:
        The points in the order of the inquiries, or why even the last of them holds no plan, where none does.

    Raises:
        InputError: for stated values that break a rule by themselves.
    """
    points: list[ScalingPoint] = []
    warnings: dict[str, list[int]] = {}
    answer: Recommendation | Infeasible | None = None
    for inquiry in inquiries:
        inquiry.report(f"searching {inquiry.cluster.num_nodes} nodes")
        answer = inquiry.search(inquiry.space())
        points.append(_point(inquiry, answer, points, terms))
        for text in answer.warnings if isinstance(answer, Recommendation) else ():
            warnings.setdefault(text, []).append(inquiry.cluster.num_nodes)
    fitting = [point for point in points if point.best is not None]
    if not fitting:
        assert isinstance(answer, Infeasible)
        return answer
    cheapest = max(fitting, key=lambda point: point.tokens_per_second_per_device or 0.0).num_nodes
    stops = next(
        (p.num_nodes for p in points if p.marginal_efficiency is not None and p.marginal_efficiency < terms.wanted),
        None,
    )
    return Scaling(
        batch="per_node" if per_node else "fixed",
        points=tuple(points),
        marginal_efficiency_wanted=terms.wanted,
        stops_paying_at=stops,
        cheapest=cheapest,
        price_per_device_hour=terms.price_per_device_hour,
        total_tokens=terms.total_tokens,
        statement=_statement(points, stops, cheapest, terms),
        warnings=tuple(f"on {', '.join(map(str, counts))} nodes: {text}" for text, counts in warnings.items()),
    )


def _point(
    inquiry: Inquiry, answer: Recommendation | Infeasible, before: Sequence[ScalingPoint], terms: Terms
) -> ScalingPoint:
    """One row, equations (1) to (3) against the rows before it."""
    devices, training = inquiry.cluster.num_devices, inquiry.training
    row = ScalingPoint(
        num_nodes=inquiry.cluster.num_nodes, num_devices=devices, global_batch_size=training.global_batch_size
    )
    if isinstance(answer, Infeasible):
        reason = "no plan fits" if answer.nearest_miss else answer.rejections[0].example
        return row.model_copy(update={"reason": reason, "nearest_miss": answer.nearest_miss})
    seconds = answer.certificate.upper_seconds
    rate = training.global_batch_size * training.sequence_length / seconds
    fitting = [point for point in before if point.tokens_per_second is not None]
    base = _per_device(fitting[0]) if fitting else rate / devices
    previous = fitting[-1] if fitting else None
    price, tokens = terms.price_per_device_hour, terms.total_tokens
    cost_of_one = None if price is None else price * devices / rate / 3600
    return row.model_copy(
        update={
            "best": answer.best,
            "plan_summary": summarize(answer.best),
            "step_time_seconds": seconds,
            "lower_seconds": answer.certificate.lower_seconds,
            "tokens_per_second": rate,
            "tokens_per_second_per_device": rate / devices,
            "efficiency": rate / devices / base,
            "marginal_efficiency": None if previous is None else _added(rate, devices, previous) / base,
            "cost_per_billion_tokens": None if cost_of_one is None else cost_of_one * 1e9,
            "cost": None if cost_of_one is None or tokens is None else cost_of_one * tokens,
            "training_seconds": None if tokens is None else tokens / rate,
        }
    )


def _added(rate: float, devices: int, previous: ScalingPoint) -> float:
    """Tokens per second that every added device brings."""
    return (rate - (previous.tokens_per_second or 0.0)) / (devices - previous.num_devices)


def _per_device(point: ScalingPoint) -> float:
    return (point.tokens_per_second or 0.0) / point.num_devices


def _statement(points: Sequence[ScalingPoint], stops: int | None, cheapest: int, terms: Terms) -> str:
    """The two answers in words."""
    lowest = f"the lowest cost per token is on {cheapest} node{'s' * (cheapest > 1)}"
    if stops is None:
        most = max(point.num_nodes for point in points)
        return f"every number of nodes up to {most} pays (marginal efficiency at least {terms.wanted:.0%}); {lowest}"
    row = next(point for point in points if point.num_nodes == stops)
    return (
        f"more nodes stop paying at {stops}: the nodes added there bring {row.marginal_efficiency or 0.0:.0%} of their ideal "
        f"tokens/s, less than the {terms.wanted:.0%} wanted; {lowest}"
    )

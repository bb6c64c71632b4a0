"""Predicted beside measured: which pairs stand in the wrong order, and a table that a person can read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence

from closed_loop import FRAMING, Measured, plan_name, predicted_seconds

from costmodel.specs import Plan

APART = 1.25
"""Measured times less than this apart are not asked to be in order."""
WITHIN = 1.10
"""How much slower than the fastest the pick may be."""
WIRE_TOLERANCE = 0.05

Fastest = dict[str, float]
"""Plan name -> seconds of its fastest step: what disturbs a step can only make it longer."""


def wrong_pairs(plans: Sequence[Plan], seconds: Mapping[str, float]) -> list[tuple[str, str]]:
    """(measured faster, predicted faster) of all pairs that are further than `APART` and predicted the other way round."""
    found = []
    for fast in plans:
        for slow in plans:
            apart = seconds[plan_name(slow)] > APART * seconds[plan_name(fast)]
            if apart and predicted_seconds(slow) < predicted_seconds(fast):
                found.append((plan_name(fast), plan_name(slow)))
    return found


def too_slow(plans: Sequence[Plan], seconds: Mapping[str, float]) -> list[str]:
    """The pick, the first of ``plans``, and the fastest, where the pick is slower by more than `WITHIN`."""
    pick, fastest = plan_name(plans[0]), min(seconds, key=lambda name: seconds[name])
    return [pick, fastest] if seconds[pick] > WITHIN * seconds[fastest] else []


def settle(plans: Sequence[Plan], seconds: Fastest, measure: Callable[[Plan], float], *, again: int) -> None:
    """Measure those plans again that seem to be out of order, a few times: a disturbed measurement is not a wrong order."""
    for _ in range(again):
        doubtful = {name for pair in wrong_pairs(plans, seconds) for name in pair} | set(too_slow(plans, seconds))
        for plan in plans:
            if plan_name(plan) in doubtful:
                seconds[plan_name(plan)] = min(seconds[plan_name(plan)], measure(plan))


def table(plans: Sequence[Plan], runs: Mapping[str, Measured], seconds: Fastest) -> str:
    """One line a plan, fastest prediction first."""
    lines = [
        f"load {os.getloadavg()[0]:.1f}; seconds a step: predicted, measured; MB a step: predicted, sent by each node"
    ]
    for plan in plans:
        run, name = runs[plan_name(plan)], plan_name(plan)
        sent = ", ".join(f"{count / 1e6:.2f}" for count in run.sent_bytes)
        predicted = ", ".join(f"{count / 1e6:.2f}" for count in wire_bytes(plan))
        lines.append(f"{name:36} {predicted_seconds(plan):7.3f} {seconds[name]:7.3f}   {predicted}   {sent}")
    return "\n".join(lines)


def wire_bytes(plan: Plan) -> tuple[float, float]:
    """Bytes that each of the two nodes sends to the other in one step, headers included, by the estimate of its traffic.

    (1) a ring's member sends all its bytes to its successor, so an axis loads a node's way out once for every ring that
        leaves it
    (2) pipelines send forward from virtual stage k to k + 1 and back; virtual stage k is on pipeline rank k mod p
    (3) bytes on the wire = FRAMING x bytes sent
    """
    assert plan.estimate is not None
    sent = [0.0, 0.0]
    for entry in plan.estimate.communication:
        if entry.axis == "pp":
            crossings = _messages(plan)
            message = entry.bytes_per_rank / entry.count
        else:
            crossings, message = (_rings_that_leave(plan, entry.axis),) * 2, entry.bytes_per_rank
        sent = [total + count * message for total, count in zip(sent, crossings, strict=True)]
    return FRAMING * sent[0], FRAMING * sent[1]


def _messages(plan: Plan) -> tuple[int, int]:
    """Messages that leave each node in one step, equation (2), of all pipelines."""
    ranks, stride, local = plan.parallel.pipeline_parallel_size, _stride(plan, "pp"), plan.num_devices_used // 2
    counts = [0, 0]
    for first in (rank for rank in range(plan.num_devices_used) if rank // stride % ranks == 0):
        for stage in range(ranks * plan.parallel.num_model_chunks - 1):
            sender, receiver = ((first + rank % ranks * stride) // local for rank in (stage, stage + 1))
            if sender != receiver:
                counts[sender] += 1  # forward
                counts[receiver] += 1  # the gradient, back
    return counts[0] * plan.parallel.num_micro_batches, counts[1] * plan.parallel.num_micro_batches


def _sizes(plan: Plan) -> dict[str, int]:
    """Sizes of the mesh axes, outer to inner."""
    sizes = {
        "pp": plan.parallel.pipeline_parallel_size,
        "dp_replicate": plan.parallel.data_parallel_replicate_size,
        "dp_shard": plan.parallel.data_parallel_shard_size,
        "cp": 1,
        "tp": plan.parallel.tensor_parallel_size,
    }
    return {axis: sizes[axis] for axis in plan.axis_order}


def _stride(plan: Plan, axis: str) -> int:
    """Global ranks from one place on an axis to the next."""
    sizes = _sizes(plan)
    names = list(sizes)
    return math.prod(sizes[inner] for inner in names[names.index(axis) + 1 :])


def _rings_that_leave(plan: Plan, axis: str) -> int:
    """Rings of an axis with members on both nodes; ``world`` is one ring of all ranks."""
    size, stride = (plan.num_devices_used, 1) if axis == "world" else (_sizes(plan)[axis], _stride(plan, axis))
    local = plan.num_devices_used // 2
    starts = {rank - stride * (rank // stride % size) for rank in range(plan.num_devices_used)}
    return sum(len({(start + stride * step) // local for step in range(size)}) > 1 for start in starts)

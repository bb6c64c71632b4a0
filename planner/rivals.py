"""Layouts that people ask about, on this problem: each the fastest of its kind, or the reason why it cannot be.

A kind is a little space of its own, because the searched one may not hold it: default spaces keep tensor parallelism
inside a node, and a user may have fixed an axis. What the user stated of batch, recomputation and devices stays.

"Megatron's usual layout" is that of arXiv 2104.04473, section 3 (takeaways 1 and 2): tensor parallelism over a node, as
few pipeline stages as make the model fit, data parallelism over the rest; ZeRO-1 (the distributed optimizer) on or off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodel.gradient_exchange import gradient_exchange
from costmodel.runtimes.rules import RuleContext, valid_tensor_parallel_sizes
from costmodel.specs import Infeasible, Plan, Recommendation, Rival
from planner.axes import AXES
from planner.candidates import Candidates, device_bytes, survey
from planner.evaluation import Search, step_seconds
from planner.guide import deciding_terms, guide_alone
from planner.space import Space, completer_of, declare_space
from planner.summary import summarize

_NODES = 20_000
_KEPT = ("num_devices_used", "micro_batch_size", "recompute")
_AS_USUAL = {"layers_per_stage": "even", "recompute_layers": "all"}
_UNCUT = {"context_parallel_size": "1"}
_USUAL_SCHEDULES = ("none", "1f1b", "interleaved_1f1b")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of layout: its name, what defines it, and the values of the axes that do."""

    name: str
    layout: str
    values: Mapping[str, str]
    shortest_pipeline: bool = False


def with_rivals(answer: Recommendation, space: Space) -> Recommendation:
    """The answer with its rivals and with both ways to sum gradients over this cluster."""
    context = space.context
    rivals = tuple(_rival(kind, answer.best, space) for kind in kinds(space))
    exchange = gradient_exchange(context.model, context.cluster, context.training)
    return answer.model_copy(update={"rivals": rivals, "gradient_exchange": exchange})


def with_advice(answer: Infeasible, space: Space) -> Infeasible:
    """The answer that no plan fits with what the decision guide says to that, where candidates obey the rules at all."""
    if answer.nearest_miss is None:
        return answer
    return answer.model_copy(update={"guide": guide_alone(survey(space))})


def kinds(space: Space) -> Iterator[Kind]:
    """The kinds of layout that this cluster can be asked about; one device leaves nothing to ask."""
    context, cluster, node = space.context, space.context.cluster, space.context.cluster.devices_per_node
    if max(space.num_devices) == 1:
        return
    alone = {"tensor_parallel_size": "1", **_UNCUT, "pipeline_parallel_size": "1"}
    yield Kind(
        "pure DDP", "a whole model on every device", {**alone, "zero_stage": "0", "data_parallel_shard_size": "1"}
    )
    sharded = {**alone, "zero_stage": "3", "data_parallel_replicate_size": "1", "hierarchical_partition_size": "off"}
    yield Kind("pure ZeRO-3", "everything sharded over all devices", sharded)
    if cluster.num_nodes > 1:
        wide = {"tensor_parallel_size": str(2 * node), **_UNCUT, "micro_batch_size": "1,2,4,8", **_usual(context)}
        yield Kind("TP across nodes", "tensor parallelism over two nodes", wide)
    inside = max((size for size in valid_tensor_parallel_sizes(context) if node % size == 0), default=1)
    layout = f"tensor parallelism over {inside} devices of a node, the shortest pipeline that fits, data parallelism"
    values = {"tensor_parallel_size": str(inside), **_UNCUT, **_usual(context)}
    yield Kind("Megatron's usual layout", layout, values, shortest_pipeline=True)


def _usual(context: RuleContext) -> dict[str, str]:
    """ZeRO off or on as the distributed optimizer, and Megatron's schedules, as far as the runtime has them."""
    stages = [stage for stage in (0, 1) if stage in context.runtime.zero_stages]
    schedules = [name for name in _USUAL_SCHEDULES if name == "none" or name in context.runtime.schedules]
    return {
        "zero_stage": ",".join(map(str, stages or [0])),
        "pipeline_schedule": ",".join(schedules),
        "num_model_chunks": "1,2,4,8",
    }


def _little_space(kind: Kind, space: Space, **changes: str) -> Space:
    """The space of one kind: its own values, what the user stated of ``_KEPT``, defaults for the rest, and stages as people cut
    them by hand.
    """
    context = space.context
    stated = {
        name: ",".join(AXES[name].show(code) for code in codes)
        for name, codes in space.declared.items()
        if name in _KEPT
    }
    inputs = (context.model, context.cluster, context.training, context.runtime)
    return declare_space(
        *inputs, fix=_AS_USUAL, allow={**kind.values, **stated, **changes}, memory_limit=context.memory_limit
    )


def _survey(kind: Kind, space: Space) -> Candidates:
    """The candidates of one kind; of pipelines that are to be short, those of the shortest that fits."""
    if not kind.shortest_pipeline:
        found = survey(_little_space(kind, space))
        if kind.values["zero_stage"] != "3" or (found.grid.zero_stage == 3).any():
            return found
        # Where no number of devices takes ZeRO-3, one device is left, on which it is nothing: say why on all of them.
        return survey(_little_space(kind, space, num_devices_used=str(space.context.cluster.num_devices)))
    plain = ",".join(name for name in ("none", "1f1b") if name in kind.values["pipeline_schedule"].split(","))
    lean = survey(_little_space(kind, space, micro_batch_size="1", pipeline_schedule=plain))
    lean.weigh(np.flatnonzero(lean.fits))
    if not lean.fits.any():
        return lean
    shortest = int(lean.grid.pipeline_parallel_size[lean.fits].min())
    return survey(_little_space(kind, space, pipeline_parallel_size=str(shortest)))


def _rival(kind: Kind, best: Plan, space: Space) -> Rival:
    """The fastest candidate of one kind that fits beside the best plan, or why there is none."""
    candidates = _survey(kind, space)
    usual = replace(completer_of(space), context=candidates.context, free=False, counts="all")
    found = Search(candidates, usual, _NODES)
    row = found.fastest()
    if row is None:
        return _refused(kind, candidates)
    plan = found.plan(row)
    same = plan.plan_hash == best.plan_hash
    return Rival(
        name=kind.name,
        layout=kind.layout,
        is_best=same,
        plan_summary=summarize(plan),
        num_devices_used=plan.num_devices_used,
        step_time_seconds=step_seconds(plan),
        slowdown=step_seconds(plan) / step_seconds(best) - 1,
        deciding=() if same else deciding_terms(plan, best),
    )


def _refused(kind: Kind, candidates: Candidates) -> Rival:
    """What the leanest candidate needs, or the rule that stands against most of them."""
    if len(candidates.grid):
        needed = device_bytes(candidates.context, candidates.grid)
        row = int(np.argmin(needed))
        summary, needs = candidates.summary(row), int(needed[row])
        return Rival(name=kind.name, layout=kind.layout, plan_summary=summary, needed_bytes=needs)
    broken = max(candidates.rejections, key=lambda rejection: rejection.count, default=None)
    reason = "no sizes multiply to the devices" if broken is None else broken.example
    return Rival(name=kind.name, layout=kind.layout, rejection=reason)

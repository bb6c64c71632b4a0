"""Warnings about the best plan that a person must know before using it."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.specs import Plan
from planner.candidates import GIB
from planner.evaluation import Search, estimate_of, step_seconds
from planner.space import Space

BORDERLINE_FRACTION = 0.92
BUBBLE_FRACTION = 0.20
_SLOW_LINK_FRACTION = 0.10
_NODES = 20_000


def find_cautions(space: Space, found: Search) -> tuple[str, ...]:
    """All warnings about the best plan, the gravest first."""
    best = found.plan(found.best())
    parts = (
        _memory(best, found),
        _slow_link(best),
        _bubble(best),
        _idle(best, space),
        _normalised(best, space),
        _positions(best),
        network_caution(best),
    )
    return tuple(text for part in parts for text in part)


def network_caution(plan: Plan) -> Iterator[str]:
    """One warning where the plan leaves its nodes over a network that nobody measured."""
    cluster = plan.cluster
    if plan.num_devices_used <= cluster.devices_per_node:
        return
    unmeasured = [level.link for level in cluster.levels[1:] if level.link.measured_bytes_per_second is None]
    if unmeasured:
        names = " and ".join(dict.fromkeys(link.name for link in unmeasured))
        yield (
            f"only nominal rates of {names} are known, of which {unmeasured[0].efficiency:.0%} is assumed to be reached; "
            "measure it (meshwright hardware measure under torchrun, or nccl-tests and meshwright hardware detect)"
        )


def _memory(best: Plan, found: Search) -> Iterator[str]:
    estimate = estimate_of(best)
    used = estimate.peak_memory_bytes.device / estimate.memory_capacity_bytes
    if used <= BORDERLINE_FRACTION:
        return
    text = f"memory is borderline: {used:.1%} of {estimate.memory_capacity_bytes / GIB:.1f} GiB"
    limit = BORDERLINE_FRACTION * estimate.memory_capacity_bytes
    row = found.fastest(found.candidates.needed_bytes <= limit, budget=_NODES)
    if row is None:
        yield f"{text}; no plan of the space stays below {BORDERLINE_FRACTION:.0%}"
        return
    share = found.candidates.needed_bytes[row] / estimate.memory_capacity_bytes
    slower = found.seconds(row) / step_seconds(best) - 1
    yield f"{text}; safer: {found.candidates.summary(row)} uses {share:.1%} and is {slower:.1%} slower"


def _slow_link(best: Plan) -> Iterator[str]:
    parallel, node = best.parallel, best.cluster.devices_per_node
    span = parallel.data_parallel_shard_size * parallel.tensor_parallel_size
    if parallel.zero_stage != 3 or span <= node:
        return
    estimate = estimate_of(best)
    exposed = sum(term.exposed_seconds for term in estimate.terms if term.name == "zero_gather")
    share = exposed / estimate.step_time_seconds.value
    if share > _SLOW_LINK_FRACTION:
        link = best.cluster.levels[-1].link.name
        yield (
            f"ZeRO-3 gathers parameters over {link}: {exposed:.3g} s of the step ({share:.0%}) is waiting for them; "
            f"sharding inside a node of {node} devices avoids it where memory allows"
        )


def _bubble(best: Plan) -> Iterator[str]:
    parallel, estimate = best.parallel, estimate_of(best)
    exposed = sum(term.exposed_seconds for term in estimate.terms if term.name == "bubble")
    share = exposed / estimate.step_time_seconds.value
    if parallel.pipeline_parallel_size > 1 and share > BUBBLE_FRACTION:
        count = parallel.num_micro_batches
        yield (
            f"{share:.0%} of the step is pipeline bubble: {count} micro-batch{'es' if count > 1 else ''} for "
            f"{parallel.pipeline_parallel_size} stages; a larger global batch or a shorter pipeline fills it"
        )


def _idle(best: Plan, space: Space) -> Iterator[str]:
    idle = best.cluster.num_devices - best.num_devices_used
    if idle:
        stated = "num_devices_used" in space.declared
        reason = "as num_devices_used states" if stated else "no valid sizes multiply to all of them"
        yield f"{idle} of {best.cluster.num_devices} devices stay idle: {reason}"


def _normalised(best: Plan, space: Space) -> Iterator[str]:
    stages = space.declared.get("zero_stage", (0,))
    if 0 not in stages and best.parallel.zero_stage == 0:
        yield (
            f"zero_stage {', '.join(map(str, stages))} has nothing to shard with data_parallel_shard_size 1: "
            "normalised to zero_stage 0"
        )


def _positions(best: Plan) -> Iterator[str]:
    length, limit = best.training.sequence_length, best.model.max_position_embeddings
    if length > limit:
        yield f"sequence_length {length} exceeds the {limit} positions that {best.model.name} was configured for"

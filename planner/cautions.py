"""Warnings about the best plan that a person must know before using it.

They are sentences of figures (figures.py) over the part of an answer that they speak of, so that the search can make them and an
explanation can say again where their numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import AxisValues, Estimate, Plan, SaferPlan
from planner.axes import AXES
from planner.evaluation import Search, estimate_of
from planner.figures import Explanation, Telling
from planner.space import Space
from planner.summary import summarize

BORDERLINE_FRACTION = 0.92
BUBBLE_FRACTION = 0.20
_SLOW_LINK_FRACTION = 0.10
_NODES = 20_000
_STEP = "best.estimate.step_time_seconds.value"
_CAPACITY = "best.estimate.memory_capacity_bytes"


class Cautions(NamedTuple):
    """The warnings, and what they speak of beside the best plan."""

    warnings: tuple[str, ...]
    safer: SaferPlan | None
    stated: tuple[AxisValues, ...]


def find_cautions(space: Space, found: Search) -> Cautions:
    """All warnings about the best plan, the gravest first."""
    best = found.plan(found.best())
    safer = _safer(best, found)
    stated = tuple(
        AxisValues(axis=name, values=tuple(AXES[name].show(code) for code in codes))
        for name, codes in space.declared.items()
    )
    sentences = tell_cautions(best, safer, stated)
    return Cautions(tuple(one.sentence for one in sentences), safer, stated)


def tell_cautions(best: Plan, safer: SaferPlan | None, stated: tuple[AxisValues, ...]) -> tuple[Explanation, ...]:
    """The warnings as sentences without a full stop; paths are those of the answer that holds the three."""
    document = {"best": best, "safer": safer, "stated": stated}
    parts = (
        _memory(document, best, safer),
        _slow_link(document, best),
        _bubble(document, best),
        _idle(document, best, stated),
        _normalised(document, best, stated),
        _positions(document, best),
        _window(document, best, "best."),
        _network(document, best, "best."),
    )
    return tuple(sentence for part in parts for sentence in part)


def plan_cautions(plan: Plan) -> Iterator[str]:
    """Warnings about one plan that no search has to be made for: a window that saves nothing, a network that nobody measured."""
    yield from (sentence.sentence for part in (_window, _network) for sentence in part(plan, plan, ""))


def _window(document: Any, plan: Plan, base: str) -> Iterator[Explanation]:
    if load_runtime(plan.runtime.name).windowed_attention == "window":
        return
    length = f"{base}training.sequence_length"
    for index, group in enumerate(plan.model.layers):
        if group.attention.slides_over(plan.training.sequence_length):
            tell, window = Telling(document, "warnings"), f"{base}model.layers[{index}].attention.window"
            yield tell.say(
                f"the sliding window of {tell.number(window)} tokens saves nothing: runtime {tell.word(f'{base}runtime.name')} "
                f"computes all scores of {tell.number(length)} tokens and uses {tell.window_share(window, length)} of them"
            )
            return


def memory_caution(plan: Plan) -> tuple[str, ...]:
    """A sentence where a plan that fits leaves so little memory that runs of it may fail, else none."""
    estimate = estimate_of(plan)
    if not estimate.fits or not _is_borderline(estimate):
        return ()
    share = estimate.peak_memory_bytes.device / estimate.memory_capacity_bytes
    return (f"memory is borderline: {share:.1%} of a device; runs of such plans fail now and then",)


def _is_borderline(estimate: Estimate) -> bool:
    return estimate.peak_memory_bytes.device > BORDERLINE_FRACTION * estimate.memory_capacity_bytes


def _safer(best: Plan, found: Search) -> SaferPlan | None:
    """The fastest plan that stays below the borderline, where the best does not."""
    estimate = estimate_of(best)
    limit = BORDERLINE_FRACTION * estimate.memory_capacity_bytes
    if not _is_borderline(estimate):
        return None
    lean = found.below(limit, budget=_NODES)
    row = lean.fastest()
    if row is None:
        return None
    return SaferPlan(
        plan_summary=summarize(lean.plan(row)),
        step_time_seconds=lean.seconds(row),
        needed_bytes=int(lean.needed_bytes[row]),
    )


def _network(document: Any, plan: Plan, base: str) -> Iterator[Explanation]:
    cluster = plan.cluster
    if plan.num_devices_used <= cluster.devices_per_node:
        return
    unmeasured = {
        level.link.name: f"{base}cluster.levels[{index}].link"
        for index, level in reversed(list(enumerate(cluster.levels)))
        if index and level.link.measured_bytes_per_second is None
    }
    if unmeasured:
        tell, places = Telling(document, "warnings"), list(unmeasured.values())[::-1]
        names = " and ".join(tell.word(f"{place}.name") for place in places)
        reached = tell.number(f"{places[0]}.efficiency", "percent")
        yield tell.say(
            f"only nominal rates of {names} are known, of which {reached} is assumed to be reached; "
            "measure it (meshwright hardware measure under torchrun, or nccl-tests and meshwright hardware detect)"
        )


def _memory(document: Any, best: Plan, safer: SaferPlan | None) -> Iterator[Explanation]:
    estimate, peak = estimate_of(best), "best.estimate.peak_memory_bytes.device"
    if not _is_borderline(estimate):
        return
    tell = Telling(document, "warnings")
    text = f"memory is borderline: {tell.share([peak], _CAPACITY)} of {tell.number(_CAPACITY, 'memory')}"
    if safer is None:
        yield tell.say(f"{text}; no plan of the space is safer")
        return
    summary, share = tell.word("safer.plan_summary"), tell.share(["safer.needed_bytes"], _CAPACITY)
    yield tell.say(f"{text}; safer: {summary} uses {share} and {tell.beside('safer.step_time_seconds', _STEP)}")


def _exposed(best: Plan, name: str) -> tuple[float, str]:
    """The exposed share of a term, and where its seconds stand."""
    estimate = estimate_of(best)
    index, seconds = next(
        ((index, term.exposed_seconds) for index, term in enumerate(estimate.terms) if term.name == name), (0, 0.0)
    )
    return seconds / estimate.step_time_seconds.value, f"best.estimate.terms[{index}].exposed_seconds"


def _slow_link(document: Any, best: Plan) -> Iterator[Explanation]:
    parallel = best.parallel
    span = parallel.data_parallel_shard_size * parallel.context_parallel_size * parallel.tensor_parallel_size
    share, exposed = _exposed(best, "zero_gather")
    if parallel.zero_stage == 3 and span > best.cluster.devices_per_node and share > _SLOW_LINK_FRACTION:
        tell = Telling(document, "warnings")
        link = tell.word(f"best.cluster.levels[{len(best.cluster.levels) - 1}].link.name")
        seconds, part = tell.number(exposed, "seconds"), tell.share([exposed], _STEP)
        yield tell.say(
            f"ZeRO-3 gathers parameters over {link}: {seconds} of the step ({part}) is waiting for them; sharding inside a node "
            f"of {tell.number('best.cluster.levels[0].size')} devices avoids it where memory allows"
        )


def _bubble(document: Any, best: Plan) -> Iterator[Explanation]:
    share, exposed = _exposed(best, "bubble")
    if best.parallel.pipeline_parallel_size > 1 and share > BUBBLE_FRACTION:
        tell, count = Telling(document, "warnings"), best.parallel.num_micro_batches
        part, batches = tell.share([exposed], _STEP), tell.number("best.parallel.num_micro_batches")
        yield tell.say(
            f"{part} of the step is pipeline bubble: {batches} micro-batch{'es' if count > 1 else ''} for "
            f"{tell.number('best.parallel.pipeline_parallel_size')} stages; a larger global batch or a shorter pipeline fills it"
        )


def _idle(document: Any, best: Plan, stated: tuple[AxisValues, ...]) -> Iterator[Explanation]:
    if best.cluster.num_devices == best.num_devices_used:
        return
    tell = Telling(document, "warnings")
    levels = [f"best.cluster.levels[{index}].size" for index in range(len(best.cluster.levels))]
    idle = tell.remainder(levels, "best.num_devices_used")
    told = any(axis.axis == "num_devices_used" for axis in stated)
    reason = "as num_devices_used states" if told else "no valid sizes multiply to all of them"
    yield tell.say(f"{idle} of {tell.product(levels)} devices stay idle: {reason}")


def _normalised(document: Any, best: Plan, stated: tuple[AxisValues, ...]) -> Iterator[Explanation]:
    index, values = next(
        ((index, axis.values) for index, axis in enumerate(stated) if axis.axis == "zero_stage"), (0, ("0",))
    )
    if "0" not in values and best.parallel.zero_stage == 0:
        tell = Telling(document, "warnings")
        stages = ", ".join(tell.word(f"stated[{index}].values[{number}]") for number in range(len(values)))
        yield tell.say(
            f"zero_stage {stages} has nothing to shard with data_parallel_shard_size "
            f"{tell.number('best.parallel.data_parallel_shard_size')}: normalised to zero_stage "
            f"{tell.number('best.parallel.zero_stage')}"
        )


def _positions(document: Any, best: Plan) -> Iterator[Explanation]:
    if best.training.sequence_length > best.model.max_position_embeddings:
        tell = Telling(document, "warnings")
        length, limit = (
            tell.number(f"best.{name}") for name in ("training.sequence_length", "model.max_position_embeddings")
        )
        yield tell.say(
            f"sequence_length {length} exceeds the {limit} positions that {tell.word('best.model.name')} was configured for"
        )

"""What other plans would cost: one step away, the runner-up, the usual layouts; and two ways to sum gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costmodel.specs import Neighbour, Recommendation, Rival, TermDifference
from planner.evaluation import estimate_of
from planner.explain_bounds import capacity_place, term_words
from planner.figures import Explanation, Telling
from planner.guide import deciding_terms

BEST_STEP = "best.estimate.step_time_seconds.value"
_STEPPED = {
    **{
        axis: f"best.parallel.{axis}"
        for axis in (
            "tensor_parallel_size",
            "context_parallel_size",
            "pipeline_parallel_size",
            "micro_batch_size",
            "zero_stage",
            "data_parallel_shard_size",
        )
    },
    "num_devices_used": "best.num_devices_used",
}


def named(tell: Telling, place: str, terms: Sequence[TermDifference]) -> str:
    """The terms that decide, in words; empty where none stands out."""
    told = [
        f"{term_words(term.name)} ({tell.pair(f'{place}[{index}].seconds', f'{place}[{index}].best_seconds')})"
        for index, term in enumerate(terms)
    ]
    return f", because of {' and '.join(told)}" if told else ""


def explain_neighbours(answer: Recommendation) -> Iterator[Explanation]:
    """What every single step away from the plan would cost."""
    for index, neighbour in enumerate(answer.neighbours):
        yield _neighbour(answer, neighbour, f"neighbours[{index}]")
    yield from _ends(answer)


def _ends(answer: Recommendation) -> Iterator[Explanation]:
    """The axes on which the plan stands at the end of the searched values, so that one step is missing."""
    tell = Telling(answer, "neighbours")
    told = []
    for axis, path in _STEPPED.items():
        steps = [int(neighbour.value) for neighbour in answer.neighbours if neighbour.axis == axis]
        current = tell.value(path)
        if len(steps) == 1:
            end = "smallest" if steps[0] > current else "largest"
            told.append(f"{axis} {tell.number(path)} is the {end}")
    if told:
        yield tell.say(f"No further value was searched: {', '.join(told)}.")


def _neighbour(answer: Recommendation, neighbour: Neighbour, place: str) -> Explanation:
    tell = Telling(answer, "neighbours")
    head = f"With {neighbour.axis} {tell.word(f'{place}.value')}"
    if neighbour.step_time_seconds is not None:
        return tell.say(f"{head} the step {tell.beside(f'{place}.step_time_seconds', BEST_STEP)}.")
    if neighbour.needed_bytes is not None:
        return tell.say(f"{head} {_too_large(tell, place, answer)}.")
    return tell.say(f"{head} this plan would not run: {tell.word(f'{place}.rejection')}.")


def _too_large(tell: Telling, place: str, answer: Recommendation) -> str:
    """What a plan needs, what a device has, and the difference, which may be all that tells them apart."""
    needed, capacity = f"{place}.needed_bytes", capacity_place(estimate_of(answer.best), "best.estimate")
    return (
        f"a device would need {tell.number(needed, 'memory')} of {tell.number(capacity, 'memory')}, "
        f"{tell.difference(needed, capacity, 'memory')} too much"
    )


def explain_runner_up(answer: Recommendation) -> Iterator[Explanation]:
    """Why the next different layout lost."""
    index = next((i for i, plan in enumerate(answer.alternatives) if plan.estimate is not None), None)
    if index is not None:
        tell, place = Telling(answer, "runner-up"), f"alternatives[{index}]"
        reasons = deciding_terms(answer.alternatives[index], answer.best)
        yield tell.say(
            f"The runner-up, {tell.plan(place)}, {tell.beside(f'{place}.estimate.step_time_seconds.value', BEST_STEP)}"
            f"{_reasons(tell, answer, index, reasons)}."
        )
    if answer.ties:
        tell = Telling(answer, "runner-up")
        others = f"{tell.length('ties')} other layout{'s' if len(answer.ties) > 1 else ''}"
        yield tell.say(
            f"The model's own error cannot tell {others} from this plan; the simplest is {tell.word('ties[0]')}."
        )


def _reasons(tell: Telling, answer: Recommendation, index: int, terms: Sequence[TermDifference]) -> str:
    """Deciding terms, read from the two estimates."""
    other, best = estimate_of(answer.alternatives[index]), estimate_of(answer.best)
    told = []
    for term in terms:
        pair = [
            f"{place}.estimate.terms[{number}].exposed_seconds"
            for place, estimate in ((f"alternatives[{index}]", other), ("best", best))
            for number, found in enumerate(estimate.terms)
            if found.name == term.name
        ]
        told.append(f"{term_words(term.name)} ({tell.pair(*pair)})")
    return f", because of {' and '.join(told)}" if told else ""


def explain_rivals(answer: Recommendation) -> Iterator[Explanation]:
    """Why the layouts that people ask about lose here, or that one of them is the plan."""
    for index, rival in enumerate(answer.rivals):
        yield _rival(answer, rival, f"rivals[{index}]")


def _rival(answer: Recommendation, rival: Rival, place: str) -> Explanation:
    tell = Telling(answer, "usual layouts")
    head = f"{rival.name[:1].upper()}{rival.name[1:]} ({tell.word(f'{place}.layout')})"
    if rival.is_best:
        return tell.say(f"{head} is this plan.")
    if rival.rejection is not None:
        return tell.say(f"{head} would not run: {tell.word(f'{place}.rejection')}.")
    summary = tell.word(f"{place}.plan_summary")
    if rival.step_time_seconds is None:
        return tell.say(f"{head} does not fit: at its leanest, {summary}, {_too_large(tell, place, answer)}.")
    if rival.num_devices_used != answer.best.num_devices_used:
        used = tell.number(f"{place}.num_devices_used")
        summary += f" on {used} devices"
    beside = tell.beside(f"{place}.step_time_seconds", BEST_STEP)
    return tell.say(f"{head} at its fastest, {summary}, {beside}{named(tell, f'{place}.deciding', rival.deciding)}.")


def explain_exchange(answer: Recommendation) -> Iterator[Explanation]:
    """A ring all-reduce beside a parameter server, for the whole model's gradients over this cluster."""
    if answer.gradient_exchange is None:
        return
    place, section = "gradient_exchange", "gradient exchange"
    tell = Telling(answer, section)
    yield tell.say(
        f"A ring all-reduce of the whole model's gradients ({tell.number(f'{place}.gradient_bytes', 'traffic')}) over "
        f"{tell.number(f'{place}.num_devices')} devices takes {tell.number(f'{place}.ring_seconds', 'seconds')} at "
        f"{tell.number(f'{place}.ring_bytes_per_second', 'rate')}."
    )
    tell = Telling(answer, section)
    yield tell.say(
        f"A parameter server on one node, behind {tell.word(f'{place}.server_link')} at "
        f"{tell.number(f'{place}.server_bytes_per_second', 'rate')}, takes "
        f"{tell.number(f'{place}.server_seconds', 'seconds')}; with a server on every device, at "
        f"{tell.number(f'{place}.sharded_bytes_per_second', 'rate')} each, "
        f"{tell.number(f'{place}.sharded_seconds', 'seconds')}."
    )

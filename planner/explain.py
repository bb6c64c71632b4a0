"""Say in sentences why a plan is what it is, from the numbers stored with it; nothing is computed anew or invented.

A plan alone explains its own terms. A recommendation adds the guide, the neighbours, the runner-up, the usual layouts, the two
ways to sum gradients, the warnings and the certificate. Every number carries the JSON path it was read from (figures.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.specs import Guide, Infeasible, InputError, Plan, Recommendation
from planner.cautions import tell_cautions
from planner.evaluation import estimate_of
from planner.explain_bounds import explain_bounds
from planner.explain_rivals import (
    BEST_STEP,
    explain_exchange,
    explain_neighbours,
    explain_rivals,
    explain_runner_up,
    named,
)
from planner.figures import Explanation, Telling

__all__ = ["Explanation", "explain"]

_LARGEST = 3
_UNITS = {"_bytes_per_second": "rate", "_bytes": "memory", "_seconds": "seconds"}


def explain(subject: Recommendation | Plan | Infeasible) -> tuple[Explanation, ...]:
    """Why this plan, or why none.

    Args:
        subject: a recommendation, a plan with its estimate, or the answer that no plan is feasible.

    Returns:
        Sentences in reading order, grouped by section; the paths of their numbers lead into ``subject``.

    Raises:
        InputError: when the plan carries no estimate.
    """
    if isinstance(subject, Infeasible):
        return tuple(_nothing_fits(subject))
    plan = subject.best if isinstance(subject, Recommendation) else subject
    if plan.estimate is None:
        raise InputError(f"plan {plan.plan_hash[:12]} carries no estimate; estimate it first")
    if isinstance(subject, Plan):
        return (_what(subject, plan), *explain_bounds(subject))
    return (
        _what(subject, plan),
        *_warnings(subject),
        *_guide(subject, subject.guide),
        _agreement(subject),
        *explain_bounds(subject),
        *explain_neighbours(subject),
        *explain_runner_up(subject),
        *explain_rivals(subject),
        *explain_exchange(subject),
        _certificate(subject),
    )


def _what(subject: Recommendation | Plan, plan: Plan) -> Explanation:
    tell, root = Telling(subject, "plan"), "best" if isinstance(subject, Recommendation) else ""
    base = f"{root}." if root else ""
    levels = [f"{base}cluster.levels[{index}].size" for index in range(len(plan.cluster.levels))]
    return tell.say(
        f"{tell.word(f'{base}model.name')} on {tell.number(f'{base}num_devices_used')} of {tell.product(levels)} devices of "
        f"{tell.word(f'{base}cluster.name')}: {tell.plan(root)}, "
        f"{tell.number(f'{base}estimate.step_time_seconds.value', 'seconds')} a step."
    )


def _warnings(answer: Recommendation) -> Iterator[Explanation]:
    """Warnings of the search with the origin of their numbers; others, such as notices of a config, as they stand."""
    known = {one.sentence: one for one in tell_cautions(answer.best, answer.safer, answer.stated)}
    for index, warning in enumerate(answer.warnings):
        tell = Telling(answer, "warnings")
        numbers = known[warning].numbers if warning in known else tell.say(tell.word(f"warnings[{index}]")).numbers
        yield Explanation(section="warnings", sentence=f"{warning}.", numbers=numbers)


def _nothing_fits(answer: Infeasible) -> Iterator[Explanation]:
    """The nearest miss, what fills it, what would fix it, and the guide."""
    if answer.nearest_miss is not None:
        tell, place = Telling(answer, "plan"), "nearest_miss"
        needed, capacity = f"{place}.needed_bytes", f"{place}.capacity_bytes"
        yield tell.say(
            f"No plan fits. The nearest miss, {tell.word(f'{place}.plan_summary')}, needs {tell.number(needed, 'memory')} a "
            f"device of {tell.number(capacity, 'memory')}, {tell.difference(needed, capacity, 'memory')} too much."
        )
        tell = Telling(answer, "memory")
        held = (
            f"{term.name.replace('_', ' ')} {tell.number(f'{place}.terms[{index}].bytes', 'memory')}"
            for index, term in enumerate(answer.nearest_miss.terms[:_LARGEST])
        )
        yield tell.say(f"Most of it: {', '.join(held)}.")
        for index in range(len(answer.nearest_miss.fixes)):
            tell = Telling(answer, "what would fix it")
            yield tell.say(f"{tell.word(f'{place}.fixes[{index}]')}.")
    for index in range(len(answer.rejections)):
        tell, place = Telling(answer, "rejections"), f"rejections[{index}]"
        yield tell.say(
            f"Rule {answer.rejections[index].rule} removed {tell.number(f'{place}.count')} candidates: "
            f"{tell.word(f'{place}.example')}."
        )
    if answer.guide is not None:
        yield from _guide(answer, answer.guide)


def _guide(answer: Recommendation | Infeasible, guide: Guide) -> Iterator[Explanation]:
    """The questions on the way, and the branch with its list."""
    for index, step in enumerate(guide.steps):
        tell = Telling(answer, "guide")
        told = ", ".join(_spell(tell, f"guide.steps[{index}].numbers", name) for name in step.numbers)
        yield tell.say(f"{step.question} {step.answer.capitalize()}: {told}.")
    tell = Telling(answer, "guide")
    order = ", then ".join(_option(tell, index, guide) for index in range(len(guide.options)))
    yield tell.say(f"The guide's branch is '{guide.branch}': {order}.")


def _spell(tell: Telling, place: str, name: str) -> str:
    """A number with the unit that its name ends in, or a word in its place."""
    path = f"{place}.{name}"
    if isinstance(tell.value(path), str):
        return f"{name.replace('_', ' ')} {tell.word(path)}"
    ending = next((ending for ending in _UNITS if name.endswith(ending)), "")
    return f"{name.removesuffix(ending).replace('_', ' ')} {tell.number(path, _UNITS.get(ending, 'number'))}"


def _option(tell: Telling, index: int, guide: Guide) -> str:
    option = guide.options[index]
    if option.step_time_seconds is None:
        return f"{option.strategy} (no plan)"
    return f"{option.strategy} ({tell.number(f'guide.options[{index}].step_time_seconds', 'seconds')} a step)"


def _agreement(answer: Recommendation) -> Explanation:
    guide, tell = answer.guide, Telling(answer, "guide")
    if guide.agrees:
        return tell.say("The search agrees with the guide's first strategy that has a plan.")
    first = next((index for index, option in enumerate(guide.options) if option.step_time_seconds is not None), None)
    if first is None:
        return tell.say(
            "The search disagrees: none of the guide's strategies has a plan that fits in the searched space."
        )
    place = f"guide.options[{first}]"
    text = (
        f"The search disagrees: the guide's {guide.options[first].strategy}, "
        f"{tell.word(f'{place}.plan_summary')}, {tell.beside(f'{place}.step_time_seconds', BEST_STEP)}"
        f"{named(tell, f'{place}.deciding', guide.options[first].deciding)}"
    )
    if (guide.options[first].step_time_seconds or 0.0) <= estimate_of(answer.best).step_time_seconds.high:
        high = tell.number("best.estimate.step_time_seconds.high", "seconds")
        text += f"; the model's own error reaches to {high}, so measure both"
    return tell.say(f"{text}.")


def _certificate(answer: Recommendation) -> Explanation:
    tell, counts = Telling(answer, "certificate"), ("candidates", "rejected_by_rule", "rejected_by_memory")
    total, rule, memory = (tell.number(f"certificate.{name}") for name in counts)
    return tell.say(
        f"{total} candidates: {rule} broke a rule, {memory} did not fit, {tell.number('certificate.pruned_by_bound')} cannot "
        f"be faster, {tell.number('certificate.evaluated')} were evaluated; the answer is "
        f"{tell.word('certificate.statement')}."
    )

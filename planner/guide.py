"""The decision guide of the documents beside the search's answer.

For each strategy of the branch taken the fastest plan of that kind is evaluated, so that the guide's order can be
compared with what the search found; where they differ, the numbers that decide are given.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.runtimes.grid import Grid
from costmodel.specs import Guide, GuideOption, Plan, TermDifference
from planner.candidates import Candidates
from planner.evaluation import Search, estimate_of, step_seconds
from planner.guide_advice import Advice, advise
from planner.guide_facts import Facts, gather_facts
from planner.guide_options import STRATEGIES, belongs
from planner.summary import summarize

_NODES_PER_STRATEGY = 20_000
_TELLING_FRACTION = 1e-4


def guide(found: Search) -> Guide:
    """The guide's advice with the fastest plan of every strategy, beside the search's answer."""
    facts = gather_facts(found.candidates)
    advice = advise(facts)
    plans = [_fastest(found, name, facts) for name, _ in advice.options]
    best = found.plan(found.best())
    options = tuple(
        _option(rank, name, reason, plan, best)
        for rank, ((name, reason), plan) in enumerate(zip(advice.options, plans, strict=True), start=1)
    )
    disagreement = _disagreement(advice, plans, best, facts)
    return Guide(
        branch=advice.branch,
        source=advice.source,
        steps=advice.steps,
        options=options,
        agrees=disagreement is None,
        disagreement=disagreement,
    )


def guide_alone(candidates: Candidates) -> Guide:
    """The guide's advice where no candidate fits, so that no strategy has a plan."""
    advice = advise(gather_facts(candidates))
    options = tuple(
        _option(rank, name, reason, None, None) for rank, (name, reason) in enumerate(advice.options, start=1)
    )
    return Guide(
        branch=advice.branch,
        source=advice.source,
        steps=advice.steps,
        options=options,
        agrees=False,
        disagreement="none of the guide's strategies has a plan that fits in the searched space",
    )


def _fastest(found: Search, name: str, facts: Facts) -> Plan | None:
    rows = belongs(STRATEGIES[name], found.candidates.grid, facts.devices_per_node)
    row = found.fastest(rows, budget=_NODES_PER_STRATEGY)
    return None if row is None else found.plan(row)


def _option(rank: int, name: str, reason: str, plan: Plan | None, best: Plan | None) -> GuideOption:
    if plan is None and STRATEGIES[name].rows is not None:
        reason += "; the searched space holds no plan of this kind that fits"
    return GuideOption(
        rank=rank,
        strategy=name,
        reason=reason,
        model_code_change=STRATEGIES[name].model_code_change,
        step_time_seconds=None if plan is None else step_seconds(plan),
        plan_summary=None if plan is None else summarize(plan),
        deciding=() if plan is None or best is None else deciding_terms(plan, best),
    )


def _disagreement(advice: Advice, plans: Sequence[Plan | None], best: Plan, facts: Facts) -> str | None:
    """None when the best plan is of the first strategy that has a plan; else the numbers that decide."""
    chosen = f"the search found {summarize(best)} at {step_seconds(best):.4g} s"
    first = next((index for index, plan in enumerate(plans) if plan is not None), None)
    if first is None:
        return f"none of the guide's strategies has a plan that fits in the searched space; {chosen}"
    name, plan = advice.options[first][0], plans[first]
    if plan is None or belongs(STRATEGIES[name], Grid.from_plan(best), facts.devices_per_node)[0]:
        return None
    text = (
        f"of the guide's strategies that have a plan, {name} comes first: its fastest, {summarize(plan)}, takes "
        f"{step_seconds(plan):.4g} s; {chosen}, {_faster(step_seconds(plan) / step_seconds(best))}, because of "
        f"{_words(deciding_terms(plan, best))}"
    )
    band = estimate_of(best).step_time_seconds
    if step_seconds(plan) <= band.high:
        text += f"; the model's own error reaches to {band.high:.4g} s, so measure both"
    return text


def _faster(ratio: float) -> str:
    """A ratio of step times in words: a percentage below 2, a factor from there."""
    return f"{ratio - 1:.1%} faster" if ratio < 2 else f"{ratio:.2f} times as fast"


def deciding_terms(slower: Plan, faster: Plan) -> tuple[TermDifference, ...]:
    """At most two terms: those whose exposed seconds differ most in favour of the faster plan."""
    before = {term.name: term.exposed_seconds for term in estimate_of(slower).terms}
    after = {term.name: term.exposed_seconds for term in estimate_of(faster).terms}
    pairs = [
        TermDifference(name=name, seconds=before.get(name, 0.0), best_seconds=after.get(name, 0.0))
        for name in {*before, *after}
    ]
    telling = [pair for pair in pairs if pair.seconds - pair.best_seconds > _TELLING_FRACTION * step_seconds(faster)]
    return tuple(sorted(telling, key=lambda pair: (pair.best_seconds - pair.seconds, pair.name))[:2])


def _words(terms: Sequence[TermDifference]) -> str:
    told = (f"{term.name} ({term.seconds:.4g} s against {term.best_seconds:.4g} s)" for term in terms)
    return " and ".join(told) or "no single term"

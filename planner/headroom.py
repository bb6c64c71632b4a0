"""The most free memory per device among plans that are nearly as fast as the fastest.

Such plans take at most (1 + w) U seconds, U being the fastest found. Let T(M) be the fastest step time among plans that need at
most M bytes; it does not grow with M, so the smallest M with T(M) <= (1 + w) U is found by bisection. A search over M decides,
and ends as soon as it can: one of its plans is within the time, or no bound is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from costmodel.runtimes.memory_limit import make_memory_limit
from costmodel.specs import Infeasible, Objective, Plan, Recommendation, Trial
from planner import closing
from planner.candidates import survey
from planner.effort import quick
from planner.evaluation import Search, estimate_of, step_seconds
from planner.inquiry import Inquiry, try_space
from planner.rivals import with_advice, with_rivals
from planner.search import NODE_BUDGET
from planner.space import Space, completer_of
from planner.summary import summarize

_RESOLUTION = 1 / 1024
"""Of a device's memory: closer than this the bisection does not look."""


def most_headroom(inquiry: Inquiry, within: float) -> Recommendation | Infeasible:
    """The plan with the most free memory among those at most ``within`` slower than the fastest.

    Args:
        inquiry: the question.
        within: share of the fastest step time that may be given up, such as 0.1.

    Raises:
        InputError: for stated values that break a rule by themselves.
    """
    fastest = inquiry.search(inquiry.space())
    if isinstance(fastest, Infeasible):
        return with_advice(fastest, inquiry.space())
    first = fastest.certificate.upper_seconds
    usable = inquiry.space().context.usable_bytes
    bisection = Bisection(inquiry, slowest=(1 + within) * first, high=_needed(fastest.best))
    bisection.run(max(1, int(_RESOLUTION * usable)))
    best = bisection.answer() or fastest
    value, bound = usable - _needed(best.best), usable - bisection.low
    gap = (bound - value) / bound if bound else 0.0
    seconds = best.certificate.upper_seconds
    objective = Objective(
        name="memory-headroom",
        value=value,
        bound=bound,
        gap=gap,
        statement=f"{value / 2**30:.2f} of {usable / 2**30:.2f} GiB a device stay free, {seconds / first - 1:+.1%} in step time "
        f"against the fastest plan: the most among plans at most {100 * within:g}% slower, under this cost model, gap {gap:.2%}"
        f"{'; it was interrupted' if bisection.interrupted else ''}",
        trials=tuple(bisection.trials),
        within=within,
        fastest_seconds=first,
    )
    return with_rivals(best, inquiry.space()).model_copy(update={"objective": objective})


@dataclass(slots=True, eq=False)
class Bisection:
    """Plans of at most ``slowest`` seconds: one needs ``high`` bytes, none needs fewer than ``low``. ``trials``: limits tried;
    ``held``: the least limit with such a plan, and what was searched for it. ``interrupted``: no more was tried.
    """

    inquiry: Inquiry
    slowest: float
    high: int
    low: int = 0
    trials: list[Trial] = field(default_factory=list)
    held: tuple[Inquiry, Space, Search] | None = None
    interrupted: bool = False

    def run(self, resolution: int) -> None:
        """Bring the two within ``resolution`` bytes, as far as searches can decide; an interrupt leaves them as they are."""
        try:
            while self.high - self.low > resolution and self._halve((self.low + self.high) // 2):
                pass
            if self.high > self.low and not self.interrupted:
                self._halve(self.high - 1)
        except KeyboardInterrupt:
            self.interrupted = True

    def answer(self) -> Recommendation | None:
        """The fastest plan within the least limit; None where only the user's own has one."""
        if self.held is None:
            return None
        held, space, found = self.held
        answer = held.search(space, found)
        assert isinstance(answer, Recommendation)  # one plan is known
        return _unlimited(answer, self.inquiry)

    def _halve(self, limit: int) -> bool:
        """Whether it is known that a plan within ``limit`` bytes is fast enough, or that none is."""
        self.inquiry.report(f"trying plans of at most {limit / 2**30:.1f} GiB a device")
        device = self.inquiry.cluster.device
        reserved = make_memory_limit(device, reserve_bytes=device.memory_bytes - limit)
        held = self.inquiry.changed(memory_limit=reserved)
        space = held.space()
        self.trials.append(trial := try_space(space, limit))
        if not trial.fits or (trial.lower_seconds or 0.0) > self.slowest:
            self.low = limit + 1
            return True
        found = Search(survey(space), completer_of(space), NODE_BUDGET)
        row, lower = closing.within(found, self.slowest, work := replace(quick(), enough=0.0))
        self.interrupted = work.interrupted
        self.trials[-1] = trial.model_copy(update={"lower_seconds": lower})
        if row is None:
            self.low = limit + 1 if lower > self.slowest else self.low
            return lower > self.slowest and not self.interrupted
        plan = found.plan(row)
        known = {
            "step_time_seconds": step_seconds(plan),
            "plan_summary": summarize(plan),
            "needed_bytes": _needed(plan),
        }
        self.trials[-1] = self.trials[-1].model_copy(update=known)
        self.high, self.held = _needed(plan), (held, space, found)
        return not self.interrupted


def _unlimited(answer: Recommendation, inquiry: Inquiry) -> Recommendation:
    """The limit of a bisection step was the search's own: estimates show the user's."""
    held = answer.best.estimate.memory_limit if answer.best.estimate else None
    if held is None or held == inquiry.memory_limit:
        return answer
    own = {"memory_limit": inquiry.memory_limit}
    plans = tuple(
        plan.model_copy(update={"estimate": plan.estimate and plan.estimate.model_copy(update=own)})
        for plan in (answer.best, *answer.alternatives)
    )
    rejections = tuple(
        rejection.model_copy(update={"example": rejection.example.replace(held.words, "for the headroom wanted")})
        for rejection in answer.rejections
    )
    statement = f"{answer.certificate.statement}, among plans of at most {held.usable_bytes / 2**30:.2f} GiB a device"
    certificate = answer.certificate.model_copy(update={"statement": statement})
    changed = {"best": plans[0], "alternatives": plans[1:], "rejections": rejections, "certificate": certificate}
    return answer.model_copy(update=changed)


def _needed(plan: Plan) -> int:
    return estimate_of(plan).peak_memory_bytes.device

"""What a question is asked about, and the searches it takes.

Questions (objectives.py, maximize.py, scale.py) are answered by declaring and searching spaces over changed inputs, each with
its own certificate; nothing here looks into a search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np

from costmodel.specs import (
    ClusterSpec,
    Infeasible,
    InputError,
    MemoryLimit,
    ModelSpec,
    NearestMiss,
    Recommendation,
    RuntimeProfile,
    TrainingSpec,
    Trial,
)
from planner.axes import OPEN_AXES, parse_values
from planner.candidates import sift, survey
from planner.effort import exact
from planner.evaluation import Search
from planner.infeasible import closest_miss, explain_infeasible
from planner.rivals import with_advice, with_rivals
from planner.search import NODE_BUDGET, search
from planner.space import Space, completer_of, declare_space
from planner.summary import summarize

Report = Callable[[str], None]


def _silent(_: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """The inputs of `declare_space` and `search`. ``report`` is told in words what is tried, before it is; ``exact`` and
    ``time_limit`` (seconds) ask every search to close its gap.
    """

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    runtime: RuntimeProfile
    fix: Mapping[str, str] = field(default_factory=dict)
    allow: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    memory_limit: MemoryLimit | None = None
    top: int = 5
    total_tokens: int | None = None
    report: Report = _silent
    exact: bool = False
    time_limit: int | None = None

    def changed(self, **inputs: Any) -> Inquiry:
        """The same question about other inputs."""
        return replace(self, **inputs)

    def space(self) -> Space:
        """The declared space; refuses stated values that break a rule by themselves."""
        inputs = (self.model, self.cluster, self.training, self.runtime)
        return declare_space(*inputs, fix=self.fix, allow=self.allow, memory_limit=self.memory_limit)

    def narrowed(self, **axes: int | Sequence[int]) -> Space:
        """The space with further axes held to values that are not stated by the user: a rule that they break rejects
        candidates and is no bad input, so all axes count as allowed values here.
        """
        stated = {name: [text] for name, text in self.fix.items() if name not in OPEN_AXES}
        held = {
            name: [str(v) for v in (value if isinstance(value, Sequence) else [value])] for name, value in axes.items()
        }
        stages = {name: text for name, text in self.fix.items() if name in OPEN_AXES}
        if "recompute" in self.fix:
            stages.setdefault("recompute_layers", "all")
        return self.changed(fix=stages, allow={**self.allow, **stated, **held}).space()

    def stated(self, axis: str) -> tuple[int, ...] | None:
        """The values of an axis that the user stated; None where the axis is free."""
        if axis in self.fix:
            return parse_values(axis, self.fix[axis], "fix")
        if axis in self.allow:
            words = self.allow[axis]
            return parse_values(axis, words if isinstance(words, str) else ",".join(words), "allow")
        return None

    def search(self, space: Space, found: Search | None = None) -> Recommendation | Infeasible:
        """The fastest plan of a space declared from this question; ``found``: what is known of its candidates already."""
        inputs = (self.model, self.cluster, self.training, self.runtime)
        closes = self.exact or self.time_limit is not None
        effort = exact(self.time_limit, self.report) if closes else None
        return search(*inputs, space, self.top, total_tokens=self.total_tokens, effort=effort, found=found)

    def answer(self, space: Space) -> Recommendation | Infeasible:
        """What `search` finds, with all that is told about it beside its space."""
        return told(self.search(space), space)

    def refuse_stated(self, axis: str, question: str) -> None:
        """Refuse an axis that the question itself decides.

        Raises:
            InputError: when it is stated.
        """
        for option in ("fix", "allow"):
            if axis in getattr(self, option):
                raise InputError(f"{question} decides {axis}; leave out --{option} {axis}")


def told(answer: Recommendation | Infeasible, space: Space) -> Recommendation | Infeasible:
    """An answer with the layouts that people ask about, or with the guide's advice where nothing fits."""
    return with_advice(answer, space) if isinstance(answer, Infeasible) else with_rivals(answer, space)


def try_space(space: Space, value: int) -> Trial:
    """Whether a space holds a plan that fits; ``value`` names the trial.

    Rules, memory and bounds decide where they can: some candidate fits as it stands, or none can be made to fit. Only
    in between is the space searched.
    """
    found, context = survey(space), space.context
    found.average(np.flatnonzero(found.fits))
    lower, rows = float(found.bounds.min(initial=np.inf)), np.flatnonzero(found.fits)
    if len(rows) and found.leanest(rows)[1] <= context.usable_bytes:
        return Trial(value=value, candidates=found.total, fits=True, lower_seconds=lower)
    # Where no completion fits, why is not asked: that takes longer than to find out.
    if len(rows) and Search(found, completer_of(space), NODE_BUDGET).holds_one():
        return Trial(value=value, candidates=found.total, fits=True, lower_seconds=lower)
    if not len(found.grid):
        counts = sorted(found.rejections, key=lambda rejection: -rejection.count)
        reason = counts[0].example if counts else "no sizes of the space multiply to it"
        return Trial(value=value, candidates=found.total, fits=False, reason=reason)
    row, needed = found.leanest(np.arange(len(found.grid)))
    return Trial(
        value=value, candidates=found.total, fits=False, plan_summary=found.summary(row), needed_bytes=ceil(needed)
    )


def miss_of(space: Space) -> Infeasible:
    """Why a space, of which `try_space` found that nothing fits, holds no plan."""
    return with_advice(explain_infeasible(space, sift(space)), space)


def nearest_miss(space: Space | None, fix: str) -> NearestMiss | None:
    """The candidate that comes closest to fitting; None without a space, and where every candidate breaks a rule.

    ``fix``: what is known to fit instead.
    """
    miss = None if space is None else closest_miss(space, sift(space))
    return None if miss is None else miss.model_copy(update={"fixes": (fix,)})


def searched(trial: Trial, answer: Recommendation) -> Trial:
    """A trial with what the search of its space found."""
    made = answer.best.estimate
    assert made is not None  # every plan of a search carries one
    return trial.model_copy(
        update={
            "lower_seconds": answer.certificate.lower_seconds,
            "step_time_seconds": answer.certificate.upper_seconds,
            "plan_summary": summarize(answer.best),
            "needed_bytes": made.peak_memory_bytes.device,
        }
    )

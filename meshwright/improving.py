"""What would be better than a given plan, within the same runtime, model, cluster, batch and sequence, and why."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.runtimes.axis_orders import axis_order_word
from costmodel.specs import Infeasible, InputError, ParallelConfig, Plan, Recommendation, TermDifference
from meshwright.nearest import plan_again
from meshwright.sites import runtime_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that differs: in the given plan and in the better one, as a person writes it."""

    field: str
    given: str
    better: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """The best plan of the same problem beside the given one.

    ``answer``: the planner's. ``changes``: what is set otherwise; none where the given plan is the best. ``gained_seconds``: of
    one step, and ``saved_bytes`` of a device, negative where the better plan takes more. ``deciding``: the terms that
    make the given plan slower.
    """

    given: Plan
    answer: Recommendation | Infeasible
    changes: tuple[Change, ...] = ()
    gained_seconds: float | None = None
    saved_bytes: int | None = None
    deciding: tuple[TermDifference, ...] = ()


def improve(
    plan: Plan, *, max_memory_fraction: float | str | None = None, reserve_memory: int | str | None = None
) -> Improvement:
    """The best plan of the given plan's problem, and how both differ.

    Args:
        plan: a plan with its estimate.
        max_memory_fraction: as in `meshwright.plan`.
        reserve_memory: as in `meshwright.plan`.

    Raises:
        InputError: when the plan has no estimate.
    """
    from planner.guide import deciding_terms

    if plan.estimate is None:
        raise InputError("the plan has no estimate; estimate it first")
    answer = plan_again(plan, runtime_of(plan), max_memory_fraction=max_memory_fraction, reserve_memory=reserve_memory)
    if isinstance(answer, Infeasible):
        return Improvement(given=plan, answer=answer)
    best = answer.best
    assert best.estimate is not None
    gained = plan.estimate.step_time_seconds.value - best.estimate.step_time_seconds.value
    return Improvement(
        given=plan,
        answer=answer,
        changes=changes(plan, best),
        gained_seconds=gained,
        saved_bytes=plan.estimate.peak_memory_bytes.device - best.estimate.peak_memory_bytes.device,
        deciding=deciding_terms(plan, best) if gained > 0 else (),
    )


def changes(given: Plan, better: Plan) -> tuple[Change, ...]:
    """The settings in which two plans of one problem differ."""
    found = [
        Change(field=name, given=_word(one), better=_word(other))
        for name in ParallelConfig.model_fields
        if (one := getattr(given.parallel, name)) != (other := getattr(better.parallel, name))
    ]
    others: dict[str, list[str]] = {
        "axis_order": [axis_order_word(plan.axis_order) for plan in (given, better)],
        "layers_per_stage": [_runs([str(stage.num_layers) for stage in plan.stages]) for plan in (given, better)],
        "recompute": [_runs([stage.recompute.word for stage in plan.stages]) for plan in (given, better)],
    }
    found += [Change(field=name, given=pair[0], better=pair[1]) for name, pair in others.items() if pair[0] != pair[1]]
    return tuple(found)


def _word(value: object) -> str:
    if value is None:
        return "off"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _runs(words: list[str]) -> str:
    """Words of stages, equal neighbours counted: ``32``, ``16 x 8``, ``9, 3 x 8, 7``."""
    runs: list[tuple[str, int]] = []
    for word in words:
        if runs and runs[-1][0] == word:
            runs[-1] = (word, runs[-1][1] + 1)
        else:
            runs.append((word, 1))
    return ", ".join(word if count == 1 else f"{count} x {word}" for word, count in runs)

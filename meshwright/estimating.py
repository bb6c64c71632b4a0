"""What a given plan costs: `estimate`, and what follows from it."""

from __future__ import annotations

import math
from pathlib import Path

from costmodel.specs import (
    Estimate,
    InputError,
    Plan,
    Recommendation,
    RuntimeProfile,
    TrainingDuration,
)
from meshwright.inputs import parse_tokens, resolve_runtime
from meshwright.plan_files import load_plan


def check_rules(plan: Plan, runtime: RuntimeProfile | None = None) -> None:
    """Refuse a plan that no framework could run.

    Raises:
        InputError: with the first broken rule and what would fix it.
    """
    from costmodel.runtimes.rules import check

    broken = check(plan, runtime)
    if broken:
        fix = f"; {broken[0].fix}" if broken[0].fix else ""
        more = f" (and {len(broken) - 1} more broken rules)" if len(broken) > 1 else ""
        raise InputError(f"{broken[0].message}{fix}{more}")


def estimate(plan: Plan | Recommendation | str | Path, *, ignore_memory: bool = False) -> Estimate:
    """Step time and memory of one plan, whether it fits or not (see ``fits``).

    Args:
        plan: a plan, a recommendation (its best plan), or a file of either.
        ignore_memory: mark the estimate of a plan that does not fit as wanted nevertheless.

    Raises:
        InputError: when the file is no valid plan, or the plan breaks a rule.
    """
    from costmodel.estimate import estimate as estimate_plan

    plan = load_plan(plan)
    runtime = resolve_runtime(plan.runtime.name)
    check_rules(plan, runtime)
    return estimate_plan(plan, runtime, ignore_memory=ignore_memory)


def with_estimate(plan: Plan, made: Estimate) -> Plan:
    """The plan carrying an estimate; the estimate is not part of a plan's identity."""
    return plan.model_copy(update={"estimate": made})


def training_duration(plan: Plan, tokens: int | float | str) -> TrainingDuration:
    """Time to train on ``tokens`` tokens at the plan's estimated step time.

    Raises:
        InputError: when ``tokens`` is no positive number, or the plan has no estimate.
    """
    total = parse_tokens(tokens)
    if plan.estimate is None:
        raise InputError("the plan has no estimate; estimate it first")
    training = plan.training
    steps = math.ceil(total / (training.global_batch_size * training.sequence_length))
    seconds = steps * plan.estimate.step_time_seconds.value
    return TrainingDuration(
        total_tokens=total,
        num_steps=steps,
        seconds=seconds,
        device_hours=seconds * plan.cluster.num_devices / 3600,
    )

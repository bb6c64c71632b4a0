"""What a given plan costs: `estimate`, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from costmodel.specs import (
    Estimate,
    Infeasible,
    InputError,
    MissTerm,
    NearestMiss,
    Plan,
    Recommendation,
    RuntimeProfile,
    SiteProfile,
    TrainingDuration,
)
from meshwright.inputs import parse_memory_limit, parse_tokens
from meshwright.plan_files import load_plan
from meshwright.sites import runtime_of, with_site


def check_rules(plan: Plan, runtime: RuntimeProfile | None = None) -> None:
    """Refuse a plan that no framework could run.

    Raises:
        InputError: with the first broken rule and what would fix it.
    """
    from costmodel.runtimes.rules import check

    broken = check(plan, runtime)
    if broken:
        fix = f"; {broken[0].fix}" if broken[0].fix else ""
        more = f" (and {len(broken) - 1} more broken rule{'s' * (len(broken) > 2)})" if len(broken) > 1 else ""
        raise InputError(f"{broken[0].message}{fix}{more}")


def estimate(
    plan: Plan | Recommendation | str | Path,
    *,
    ignore_memory: bool = False,
    site: SiteProfile | str | Path | None = None,
    max_memory_fraction: float | str | None = None,
    reserve_memory: int | str | None = None,
) -> Estimate:
    """Step time and memory of one plan, whether it fits or not (see ``fits``).

    Args:
        plan: a plan, a recommendation (its best plan), or a file of either.
        ignore_memory: mark the estimate of a plan that does not fit as wanted nevertheless.
        site: corrections to predict with, a spec or a file; None takes those that the plan carries, if any.
        max_memory_fraction: share of a device's memory that ``fits`` compares with: 0.9 or ``90%``; None is all.
        reserve_memory: bytes of a device, or ``4 GiB``, that are left to others.

    Raises:
        InputError: when the file is no valid plan, the plan breaks a rule, the site is of another device or
            runtime, or the limit leaves no memory.
    """
    from costmodel.estimate import estimate as estimate_plan

    plan = with_site(load_plan(plan), site)
    runtime = runtime_of(plan)
    limit = parse_memory_limit(plan.cluster.device, max_memory_fraction, reserve_memory)
    with refuse_infinite():
        check_rules(plan, runtime)
        return estimate_plan(plan, runtime, ignore_memory=ignore_memory, memory_limit=limit)


@contextmanager
def refuse_infinite() -> Iterator[None]:
    """Turn a prediction that is no finite number into the input error that it is.

    Raises:
        InputError: when a rate or latency of the input is so far from any machine that times overflow.
    """
    import numpy as np

    out_of_range = InputError(
        "the prediction is not a finite number: a rate, latency or size of the cluster or model is out of any range"
    )
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except OverflowError:
        raise out_of_range from None
    except ValidationError as error:
        if not any(problem["type"] == "finite_number" for problem in error.errors()):
            raise
        raise out_of_range from None


def with_estimate(plan: Plan, made: Estimate) -> Plan:
    """The plan carrying an estimate; the estimate is not part of a plan's identity."""
    return plan.model_copy(update={"estimate": made})


def explain_miss(plan: Plan) -> Infeasible:
    """Why an estimated plan does not fit: its memory term by term, and changes that were checked to help.

    Args:
        plan: a plan whose estimate does not fit.

    Raises:
        InputError: when the plan has no estimate, or fits.
    """
    from planner.search import search
    from planner.space import declare_space

    if plan.estimate is None or plan.estimate.fits:
        raise InputError("the plan has no estimate that does not fit")
    runtime = runtime_of(plan)
    context = (plan.model, plan.cluster, plan.training, runtime)
    space = declare_space(*context, fix=as_fixed(plan), memory_limit=plan.estimate.memory_limit)
    answer = search(*context, space, top=1)
    if isinstance(answer, Infeasible):
        return answer
    return Infeasible(rejections=(), nearest_miss=_own_miss(plan, plan.estimate), space=())


def as_fixed(plan: Plan) -> dict[str, str]:
    """The plan as a space of one candidate, axis -> value in the words of ``--fix``."""
    from costmodel.runtimes.grid import Grid
    from planner.axes import AXES

    grid = Grid.from_plan(plan)
    fixed = {name: axis.show(int(getattr(grid, name)[0])) for name, axis in AXES.items() if hasattr(grid, name)}
    fixed["num_devices_used"] = str(plan.num_devices_used)
    if len(plan.stages) > 1:
        fixed["layers_per_stage"] = ",".join(str(stage.num_layers) for stage in plan.stages)
    return fixed


def _own_miss(plan: Plan, made: Estimate) -> NearestMiss:
    """The miss as the estimate alone tells it."""
    from planner.summary import summarize

    stage = max(made.memory, key=lambda stage: stage.peak_bytes)
    at_peak = [term for term in stage.terms if term.phase == stage.peak_phase and term.bytes]
    return NearestMiss(
        plan_summary=summarize(plan),
        needed_bytes=made.peak_memory_bytes.device,
        capacity_bytes=made.memory_limit.usable_bytes if made.memory_limit else made.memory_capacity_bytes,
        memory_limit=made.memory_limit,
        terms=tuple(MissTerm(name=term.name, bytes=term.bytes) for term in at_peak),
        fixes=("plan without fixed sizes: meshwright plan finds what fits, or what is missing",),
    )


def training_duration(plan: Plan, tokens: int | float | str) -> TrainingDuration:
    """Time to train on ``tokens`` tokens at the plan's estimated step time.

    Raises:
        InputError: when ``tokens`` is no positive number, or the plan has no estimate.
    """
    from planner.duration import training_duration as price

    total = parse_tokens(tokens)
    if plan.estimate is None:
        raise InputError("the plan has no estimate; estimate it first")
    return price(plan, total)

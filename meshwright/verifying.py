"""Hold a plan's prediction against a dry run of the executor at full size. Needs torch, and no device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.specs import Comparison, InputError, Observation, Plan, Recommendation
from hardware_profiles.errors import show_value
from meshwright.files import check_output, write_text
from meshwright.running import load_runnable, require_torch

if TYPE_CHECKING:
    from costmodel.specs import Estimate

MEMORY_TOLERANCE, FLOPS_TOLERANCE = 0.03, 0.005


def verify(
    plan: Plan | Recommendation | str | Path,
    *,
    memory_tolerance: float = MEMORY_TOLERANCE,
    flops_tolerance: float = FLOPS_TOLERANCE,
    output: str | Path | None = None,
    force: bool = False,
    progress: bool = False,
) -> tuple[Observation, Comparison]:
    """Run one step of the plan's executor without memory and without peers, and compare it with the estimate.

    Communication and state must agree to the byte, whatever the tolerances.

    Args:
        plan: a plan for the runtime ``torch``, a recommendation (its best plan), or a file of either.
        memory_tolerance: largest relative error of a pipeline rank's peak memory.
        flops_tolerance: largest relative error of the FLOP of the step.
        output: file for the observation (JSON); None writes none.
        force: replace an existing ``output``.
        progress: tell on stderr which ranks are done.

    Raises:
        InputError: when the plan, a tolerance or the output cannot be used, or torch is missing.
        ExecutionError: when a process fails.
    """
    from meshwright.validation.compare import compare
    from meshwright.validation.compare_ranks import Tolerances

    tolerances = Tolerances(
        memory=_share("memory_tolerance", memory_tolerance), flops=_share("flops_tolerance", flops_tolerance)
    )
    path = None if output is None else check_output(output, force=force, suffixes=(".json",))
    require_torch()
    from executor.verify import dry_run

    loaded = load_runnable(plan)
    predicted = _predict(loaded)
    observation = dry_run(loaded, progress=progress)
    if path is not None:
        write_text(path, observation.model_dump_json(indent=2) + "\n", force=force)
    return observation, compare(predicted, observation, tolerances)


def _predict(plan: Plan) -> Estimate:
    """A fresh estimate: the plan's own may be of an earlier release."""
    from meshwright.estimating import estimate

    return estimate(plan, ignore_memory=True)


def _share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name} is {show_value(value)}; needed a number from 0 to below 1")
    return float(value)

"""Every validity rule, once: a NumPy mask over a grid of candidates and one message.

The planner evaluates whole grids, the executor and the estimator check single plans (a grid of one
row); both read the same `RULES`. No physics here: memory and time are the cost model's.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules_context import CONTEXT_RULES
from costmodel.runtimes.rules_core import BoolColumn, Rule, RuleContext, RuleOutcome, divisors
from costmodel.runtimes.rules_data import DATA_RULES
from costmodel.runtimes.rules_frameworks import FRAMEWORK_RULES
from costmodel.runtimes.rules_pipeline import PIPELINE_RULES
from costmodel.runtimes.rules_plan import check_plan_invariants, check_recompute_layers
from costmodel.runtimes.rules_runtime import RUNTIME_RULES, device_supports, longest_sequence_length, valid_precisions
from costmodel.runtimes.rules_stages import STAGE_RULES
from costmodel.runtimes.rules_tensor import TENSOR_RULES, valid_tensor_parallel_sizes
from costmodel.specs import AXIS_ORDERS, DEFAULT_AXIS_ORDER, Plan, Rejection, RuntimeProfile

__all__ = [
    "RULES", "Rule", "RuleContext", "RuleOutcome", "check", "device_supports", "divisors", "evaluate",
    "longest_sequence_length", "obeys_rules", "valid_precisions", "valid_tensor_parallel_sizes",
]  # fmt: skip

# Searches count a candidate under the first rule it breaks, so the general ones come first.
RULES: tuple[Rule, ...] = (
    *RUNTIME_RULES,
    *FRAMEWORK_RULES,
    *TENSOR_RULES,
    *CONTEXT_RULES,
    *PIPELINE_RULES,
    *STAGE_RULES,
    *DATA_RULES,
)


def evaluate(context: RuleContext, grid: Grid) -> tuple[RuleOutcome, ...]:
    """Every rule over every row.

    Args:
        context: what all rows share.
        grid: n candidates.

    Returns:
        One outcome per rule, in the order of `RULES`; each ``mask_ok`` has n entries.
    """
    return tuple(RuleOutcome(rule, rule.mask(context, grid), context, grid) for rule in RULES)


def obeyed(outcomes: tuple[RuleOutcome, ...]) -> BoolColumn:
    """True for the rows that break no rule, [n]."""
    return reduce(np.logical_and, (outcome.mask_ok for outcome in outcomes))


def obeys_rules(context: RuleContext, grid: Grid) -> BoolColumn:
    """True for the rows that break no rule, [n]."""
    return obeyed(evaluate(context, grid))


def check(plan: Plan, runtime: RuntimeProfile | None = None) -> list[Rejection]:
    """Everything that makes one plan invalid; an empty list means valid.

    Args:
        plan: a complete plan.
        runtime: the profile of ``plan.runtime.name``; None loads it.

    Raises:
        InputError: when the plan names a runtime that does not exist.
    """
    if runtime is None:
        from costmodel.runtimes.loader import load_runtime

        runtime = load_runtime(plan.runtime.name)
    invariants = check_plan_invariants(plan)
    recompute = check_recompute_layers(plan, runtime)
    # A broken stage list is reported once, as the invariant; its counts say nothing more.
    counts = None if invariants else tuple(stage.num_layers for stage in plan.stages)
    context = RuleContext(
        model=plan.model, cluster=plan.cluster, training=plan.training, runtime=runtime, layers_per_stage=counts
    )
    order = plan.axis_order if plan.axis_order in AXIS_ORDERS.values() else DEFAULT_AXIS_ORDER
    broken: dict[str, Rejection] = {}
    for kind in sorted({stage.recompute.kind for stage in plan.stages}):
        for outcome in evaluate(context, Grid.from_parallel(plan.parallel, kind, order)):
            if not outcome.mask_ok[0]:
                broken.setdefault(outcome.rule.name, outcome.rejection(0))
    return [*broken.values(), *invariants, *recompute]

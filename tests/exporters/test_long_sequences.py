"""Plans that the search finds with context parallelism go through the exporters and come back."""

from __future__ import annotations

from typing import Any

import pytest
from sample_plans import neutral

from costmodel.specs import InputError, Plan, Recommendation
from executor.checks import check_runnable
from meshwright.exporters import EXPORTERS, losses_of, reject, render
from meshwright.importing import import_plan
from meshwright.planning import plan as find_plan


def longest(runtime: str, **stated: Any) -> Plan:
    """The best plan for sequences of 131,072 tokens on four nodes."""
    found = find_plan(
        "llama-3-8b", "4x8xH100-SXM", global_batch_size=8, sequence_length=131072, runtime=runtime, **stated
    )
    assert isinstance(found, Recommendation)
    return found.best


@pytest.mark.parametrize(
    ("runtime", "target", "method"),
    [("megatron", "megatron", "ring"), ("torchtitan", "torchtitan", "all_gather"), ("accelerate", "accelerate", "all_gather"),
        ("deepspeed", "deepspeed", "all_to_all")],
)  # fmt: skip
def test_a_plan_found_comes_back(runtime: str, target: str, method: str) -> None:
    plan, exporter = longest(runtime), EXPORTERS[target]
    assert plan.parallel.context_parallel_size >= 4
    assert plan.parallel.context_parallel_method == method
    assert reject(exporter, plan) is None
    files = render(plan, target)
    assert isinstance(files, dict)
    assert exporter.read is not None
    back = import_plan(exporter.read(files), plan.model, plan.cluster, runtime=runtime)
    losses = losses_of(exporter, plan)
    assert neutral(back, losses) == neutral(plan, losses)


def test_it_is_not_run() -> None:
    with pytest.raises(InputError, match="plan is for the runtime 'megatron'; only plans for 'torch' can be run here"):
        check_runnable(longest("megatron"))

"""Export then import gives the same plan, for every plan that a target can express."""

from __future__ import annotations

import pytest
from generated_plans import drawn_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from real_plans import real_plans
from sample_plans import neutral

from costmodel.runtimes.rules import check
from costmodel.specs import AXIS_ORDERS, Plan, Rejection
from meshwright.exporters import EXPORTERS, READERS, losses_of, reject, render
from meshwright.importing import import_plan

MODELS = ("llama-3-8b", "llama-3-70b", "qwen2.5-7b", "mistral-7b", "gpt2-xl", "llama-3.1-405b", "gemma-2-9b")
EVERY = pytest.mark.parametrize("target", READERS)


def imported(plan: Plan, target: str) -> Plan:
    files = render(plan, target)
    assert isinstance(files, dict), files
    read = EXPORTERS[target].read
    assert read is not None
    return import_plan(read(files), plan.model, plan.cluster, runtime=plan.runtime.name)


@EVERY
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_plan_comes_back(target: str, seed: int) -> None:
    exporter = EXPORTERS[target]
    assert exporter.runtimes is not None
    plan = drawn_plan(seed, exporter.runtimes[0], MODELS, lambda plan: reject(exporter, plan) is None)
    losses = losses_of(exporter, plan)
    assert neutral(imported(plan, target), losses) == neutral(plan, losses)


@EVERY
def test_plans_of_real_size_come_back(target: str) -> None:
    runtimes = EXPORTERS[target].runtimes
    assert runtimes is not None
    found = [plan for plan in real_plans(runtimes[0]) if reject(EXPORTERS[target], plan) is None]
    assert len(found) >= 4  # not every runtime has pipelines
    for plan in found:
        assert neutral(imported(plan, target), losses_of(EXPORTERS[target], plan)) == neutral(
            plan, losses_of(EXPORTERS[target], plan)
        )


@EVERY
def test_what_a_target_cannot_express_is_refused_or_warned_of(target: str) -> None:
    """Plans that differ in one field alone never become the same files in silence."""
    exporter = EXPORTERS[target]
    assert exporter.runtimes is not None
    plan = next(plan for plan in real_plans(exporter.runtimes[0]) if reject(exporter, plan) is None)
    files = render(plan, target)
    training, optimizer = plan.training, plan.training.optimizer
    others = {
        "training.seed": {"training": training.model_copy(update={"seed": 7})},
        "training.loss_chunks": {"training": training.model_copy(update={"loss_chunks": 4})},
        "training.optimizer.learning_rate": _optimizer(plan, learning_rate=0.5),
        "training.optimizer.weight_decay": _optimizer(plan, weight_decay=0.5),
        "training.optimizer.betas": _optimizer(plan, betas=(0.5, 0.5)),
        "training.optimizer.epsilon": _optimizer(plan, epsilon=0.5),
        "training.optimizer.max_grad_norm": _optimizer(plan, max_grad_norm=None),
        "axis_order": {"axis_order": AXIS_ORDERS["data_outermost"]},
        "parallel.hierarchical_partition_size": {
            "parallel": plan.parallel.model_copy(update={"hierarchical_partition_size": 2})
        },
    }
    assert optimizer.max_grad_norm is not None
    for field, update in others.items():
        other = plan.model_copy(update=update)
        if check(other):  # no plan of this runtime, so `export` refuses it
            continue
        answer = render(other, target)
        told = {loss.field for loss in losses_of(exporter, other)} - {loss.field for loss in losses_of(exporter, plan)}
        assert isinstance(answer, Rejection) or answer != files or told, field
        if told:
            assert any(field.startswith(name) or name.startswith(field) for name in told), field
            assert isinstance(answer, dict)
            assert any("warning: " in text or '"warnings": [' in text for text in answer.values())


def _optimizer(plan: Plan, **update: object) -> dict[str, object]:
    optimizer = plan.training.optimizer.model_copy(update=update)
    return {"training": plan.training.model_copy(update={"optimizer": optimizer})}

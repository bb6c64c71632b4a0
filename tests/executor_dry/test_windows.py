"""What torch computes and keeps under a sliding window, in dry runs: all scores where the window hides some, and masks."""

from __future__ import annotations

from typing import Any

import pytest
from dry_worlds import SEQUENCE, WINDOW, WINDOWED, dry, make_plan, zero

from costmodel.build import build_plan
from costmodel.estimate import estimate
from costmodel.models.loader import build_model
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Estimate, Plan
from executor.dry_run_extend import largest_window

HIDDEN, WIDTH, VOCABULARY, LAYERS = 64, 176, 259, 4
SLIDING = {"mistral": 4, "phi3": 4, "qwen2": 3, "gemma2-uncapped": 2}
"""Layers that slide: all; qwen2's from the first but one on; every other one of gemma2."""


def executed(model: str, length: int) -> float:
    """FLOP of one step of one sequence without recomputation.

    A product of queries and keys, or of scores and values, of all s^2 scores is 2 s^2 h. Fused attention makes 2 of them forward
    and 5 backward, over s^2 / 2 scores where it can skip what causal attention does not look at: not under a mask tensor. Capped
    scores (gemma2) are products of their own, 2 forward and 4 backward, of all scores.
    """
    projections = HIDDEN * (2 * HIDDEN + 2 * HIDDEN // 2 + 3 * WIDTH)
    products = 3 * 2 * length * (LAYERS * projections + HIDDEN * VOCABULARY)
    scores = 2 * length * length * HIDDEN
    if model == "gemma2":
        return products + LAYERS * (2 + 4) * scores
    masked = SLIDING[model] if length > WINDOW else 0
    return products + (2 + 5) * (masked * scores + (LAYERS - masked) * scores / 2)


def predicted(plan: Plan) -> Estimate:
    return estimate(plan, load_runtime("torch"))


@pytest.mark.parametrize("length", [WINDOW // 2, WINDOW, WINDOW + 1], ids=["longer", "equal", "shorter"])
@pytest.mark.parametrize("model", WINDOWED)
def test_all_scores_are_computed_where_a_window_is_shorter_than_the_sequence(model: str, length: int) -> None:
    plan = make_plan(model, sequence=length, num_micro_batches=1)
    assert dry(plan).flops == executed(model, length)
    assert predicted(plan).flops.hardware == pytest.approx(executed(model, length), rel=1e-12)


@pytest.mark.parametrize(
    ("model", "recompute"),
    [
        ("mistral", "none"),
        *(pytest.param(model, "none", marks=pytest.mark.slow) for model in WINDOWED if model != "mistral"),
        ("mistral", "core_attention"),
        ("mistral", "full"),
    ],
)
def test_a_window_costs_the_masks_that_are_predicted(model: str, recompute: str) -> None:
    """To the byte, beside the same model whose window hides nothing; mistral's in closed form."""
    sizes: dict[str, Any] = {"sequence": 2 * WINDOW, "recompute": recompute, **zero(3, micro_batch_size=2)}
    windowed, plain = make_plan(model, **sizes), without_window(make_plan(model, **sizes))
    peaks = [largest_peak(plan) for plan in (windowed, plain)]
    told = [predicted(plan).memory[0].peak_bytes for plan in (windowed, plain)]
    assert told[0] - told[1] == peaks[0] - peaks[1]
    # The stage's bool mask; of every layer that keeps its attention a bf16 mask, and keys and values of 8 heads instead of 4.
    mask, expanded = (2 * WINDOW) ** 2, 2 * 2 * (2 * 2 * WINDOW) * HIDDEN // 2
    layers = {"none": LAYERS, "core_attention": 0, "full": 1}[recompute]
    if model == "mistral":
        assert told[0] - told[1] == mask + layers * (2 * mask + expanded)


def without_window(plan: Plan) -> Plan:
    """The plan of a model that sees four times as far."""
    config = {**plan.model.hf_config, "sliding_window": 4 * WINDOW}
    return build_plan(
        build_model(config, name=plan.model.name),
        plan.cluster,
        plan.training,
        load_runtime("torch"),
        plan.parallel,
        recompute=plan.stages[0].recompute.kind,
    )


def largest_peak(plan: Plan) -> int:
    peaks = dry(plan).peaks
    return peaks[largest_window(peaks)].total


@pytest.mark.parametrize("recompute", ["core_attention", "full"])
def test_gemma2_makes_again_what_backward_needs_of_it(recompute: str) -> None:
    """Capped attention stops before its last product; a layer does not, since a norm follows its last product."""
    length = 2 * WINDOW
    plan = make_plan("gemma2", sequence=length, recompute=recompute, num_micro_batches=1)
    scores = 2 * length * length * HIDDEN
    again = LAYERS * scores
    if recompute == "full":
        again += LAYERS * (scores + 2 * length * HIDDEN * (2 * HIDDEN + 2 * HIDDEN // 2 + 3 * WIDTH))
    assert dry(plan).flops == executed("gemma2", length) + again
    assert predicted(plan).flops.hardware == pytest.approx(executed("gemma2", length) + again, rel=1e-12)


def test_gemma2_sends_again_what_its_recomputed_product_sums() -> None:
    """Reduce-scatters of a layer: 2 forward, 2 backward, 2 again; one of the head's gradient."""
    plan = make_plan("gemma2", recompute="full", num_micro_batches=1, **SEQUENCE)
    step, told = dry(plan), predicted(plan)
    sums = {(entry.axis, entry.op): entry.count for entry in told.communication}
    counted = {(route.axis, route.op): total.count for route, total in step.traffic.items()}
    assert sums["tp", "reduce_scatter"] == counted["tp", "reduce_scatter"] == 6 * LAYERS + 1

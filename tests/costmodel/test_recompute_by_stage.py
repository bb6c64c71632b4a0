"""Plans whose stages recompute different layers: each quantity is the sum of what its layers cost alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memory_worlds import llama, make_plan

from costmodel.activation_memory import torch_layer_bytes
from costmodel.estimate import estimate
from costmodel.layer_backward import layer_modes, widest_backward
from costmodel.memory import plan_memory
from costmodel.runtimes.grid import RECOMPUTE_KINDS, Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Plan, RecomputeSpec, with_hash
from costmodel.stage_contents import plan_contents

TORCH = load_runtime("torch")
NONE, ATTENTION, FULL = RecomputeSpec(), RecomputeSpec(kind="core_attention"), RecomputeSpec(kind="full")
SIZES: dict[str, Any] = {
    "pipeline_parallel_size": 2,
    "pipeline_schedule": "1f1b",
    "num_micro_batches": 4,
    "tensor_parallel_size": 2,
    "loss_parallel": True,
}


def some(kind: Any, layers: int) -> RecomputeSpec:
    return RecomputeSpec(kind=kind, num_layers=layers)


def plan(recompute: Any, **sizes: Any) -> Plan:
    """6 layers in two stages of 3."""
    return make_plan(llama(), recompute=recompute, sequence=512, **{**SIZES, **sizes})


def hardware_flops(recompute: Any) -> float:
    return float(estimate(plan(recompute), TORCH).flops.hardware)


def activations(recompute: Any, rank: int) -> int:
    terms = plan_memory(plan(recompute), TORCH)[rank].terms
    return max(term.bytes for term in terms if term.name == "activations")


def test_flops_are_those_of_the_layers_that_run_again() -> None:
    """A third of full recomputation per layer of 6: 1 + 2 of them are half of all."""
    none, full = hardware_flops("none"), hardware_flops("full")
    assert hardware_flops((some("full", 1), some("full", 2))) - none == pytest.approx((full - none) / 2, rel=1e-12)
    assert hardware_flops((NONE, FULL)) - none == pytest.approx((full - none) / 2, rel=1e-12)
    assert hardware_flops((some("full", 3), FULL)) == full
    attention = hardware_flops("core_attention")
    mixed = hardware_flops((some("full", 1), some("core_attention", 2)))
    assert mixed - none == pytest.approx((full - none) / 6 + (attention - none) / 3, rel=1e-12)


def test_tensor_parallel_traffic_repeats_for_the_recomputed_layers() -> None:
    """4 all-reduces a layer and micro-batch, and one more of each recomputed one, which stops before its last."""

    def all_reduces(recompute: Any) -> int:
        shares = estimate(plan(recompute), TORCH).communication
        return next(share.count for share in shares if (share.axis, share.op) == ("tp", "all_reduce"))

    busier = (some("full", 2), NONE)  # rank 0 does more, so the terms are its own
    assert all_reduces(busier) == 4 * (4 * 3 + 2)


def test_kept_activations_are_the_sum_over_layers() -> None:
    """Rank 0 of 2 keeps 2 micro-batches of its 3 layers."""
    plain = plan("none")
    layers = torch_layer_bytes(plain.model, plain.model.layers[0], plain.training, Grid.from_plan(plain))
    kept, whole = int(layers.kept[0]), int(layers.layer_input[0])
    attention = kept - int(layers.attention_internals[0])
    assert activations("none", 0) == 2 * 3 * kept
    assert activations((some("full", 1), NONE), 0) == 2 * (whole + 2 * kept)
    assert activations((some("full", 2), NONE), 0) == 2 * (2 * whole + kept)
    assert activations((some("core_attention", 1), FULL), 0) == 2 * (attention + 2 * kept)
    assert activations((some("full", 1), NONE), 1) == activations("none", 1)


def test_backward_frees_the_layers_behind_the_one_that_it_recomputes() -> None:
    """Of the most that is needed beside the activations in flight, layer by layer from the last to the first."""
    plain, whole = plan("none"), RECOMPUTE_KINDS.index("full")
    layer = torch_layer_bytes(plain.model, plain.model.layers[0], plain.training, Grid.from_plan(plain))
    needed = {kind: int(layer.working_set(np.array([kind])).needed[0]) for kind in (0, whole)}
    assert needed[whole] > needed[0]
    for count in (1, 2):
        contents = plan_contents(plan((some("full", count), NONE)), [0])
        found = widest_backward(contents.chunks, layer_modes((layer,), contents.chunks)).needed
        assert found == max(needed[0], needed[whole] - (3 - count) * int(layer.kept[0]))


def test_time_lies_between_its_neighbours_and_the_recompute_term_adds_up() -> None:
    def recompute_seconds(recompute: Any) -> float:
        terms = {term.name: term.exposed_seconds for term in estimate(plan(recompute), TORCH).terms}
        return terms["recompute"]

    steps = [estimate(plan((some("full", count), FULL)), TORCH).step_time_seconds.value for count in (1, 2, 3)]
    assert steps == sorted(steps)
    assert steps[2] == estimate(plan("full"), TORCH).step_time_seconds.value
    assert recompute_seconds((FULL, some("full", 1))) == pytest.approx(
        3 * recompute_seconds((some("full", 1), some("full", 1)))
    )


def test_a_whole_layer_keeps_the_backward_of_its_chunk_together() -> None:
    """Under ZBV a chunk with a recomputed layer ends in I; the other chunks put their weight gradients off as before."""
    sizes = {"pipeline_schedule": "zbv_zero_bubble", "num_model_chunks": 2, "num_micro_batches": 8}
    none, mixed, full = (
        [stage.peak_bytes for stage in plan_memory(plan(recompute, **sizes), TORCH)]
        for recompute in ("none", (NONE, some("full", 1), NONE, NONE), "full")
    )
    assert mixed[0] == none[0]
    assert full[1] < mixed[1] < none[1]


def test_plans_survive_json_and_keep_their_hashes() -> None:
    made = plan((some("full", 2), ATTENTION))
    again = Plan.model_validate_json(made.model_dump_json())
    assert again == made == with_hash(again)
    assert [stage.recompute.word for stage in again.stages] == ["full:2", "core_attention"]
    assert made.plan_hash != plan((FULL, ATTENTION)).plan_hash
    assert set(RECOMPUTE_KINDS) == {"none", "core_attention", "op_policy", "full"}

"""Parameters, gradients and optimizer state: published identities, measured storages, shards that sum, monotone laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_worlds import gpt, llama, make_plan

from costmodel.memory import plan_memory
from costmodel.models.parameters import num_layer_parameters, num_parameters
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import InputError, OptimizerSpec, Plan
from costmodel.state_memory import StateBytes, coordinates, flat_state_bytes, state_bytes

TORCH, MEGATRON = load_runtime("torch"), load_runtime("megatron")


def total(state: StateBytes) -> int:
    return state.parameters + state.gradients + state.optimizer_state


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_of_7_5_billion_parameters_on_64_devices(stage: int, gigabytes: float) -> None:
    """ZeRO, arXiv 1910.02054, figure 1: 2 + 2 + 12 bytes per parameter with mixed-precision Adam."""
    precision = MEGATRON.precisions["fp16"]
    state = flat_state_bytes(7_500_000_000, 64, stage, precision=precision, optimizer=OptimizerSpec())
    assert round(total(state) / 1e9, 1) == gigabytes


def test_zero3_hybrid_shard_and_hierarchical_partition_of_70_billion_parameters() -> None:
    """16 bytes per parameter on 64 devices in groups of 8: ZeRO-3 1/64, hybrid shard 1/8, hpZ ZeRO-3 + 2 bytes / 8.

    For 70e9 parameters those are 17.5, 140 and 35 GB. hpZ's second copy holds the layers (ZeRO++, arXiv 2306.10209).
    """
    model = llama(hidden=8192, layers=80, heads=64, key_heads=8, width=28672, vocab=32000)
    count, in_layers = num_parameters(model), 80 * num_layer_parameters(model, 0)
    sizes: dict[str, Any] = {"zero_stage": 3, "sequence": 4096, "num_micro_batches": 2}
    zero3 = make_plan(model, data_parallel_shard_size=64, **sizes)
    hybrid = make_plan(model, data_parallel_shard_size=8, data_parallel_replicate_size=8, **sizes)
    hierarchical = make_plan(model, data_parallel_shard_size=64, hierarchical_partition_size=8, **sizes)
    assert total(state_bytes(zero3, TORCH, 0)["after_step"]) == pytest.approx(16 * count / 64, rel=1e-4)
    assert total(state_bytes(hybrid, TORCH, 0)["after_step"]) == pytest.approx(16 * count / 8, rel=1e-4)
    (stage,) = plan_memory(hierarchical, TORCH)
    copies = [term.bytes for term in stage.terms if term.name == "hierarchical_shards"]
    assert copies == [pytest.approx(2 * in_layers / 8, rel=1e-4)]
    both = total(state_bytes(hierarchical, TORCH, 0)["after_step"]) + copies[0]
    assert both * 70e9 / count == pytest.approx(35e9, rel=0.01)


MEASURED = llama(hidden=128, layers=4, heads=8, key_heads=2, width=352, vocab=515)
FOUR = {"data_parallel_shard_size": 4}


@pytest.mark.parametrize(
    ("precision", "micro_batches", "sizes", "expected"),
    [
        # parameters, gradients before reduction, gradients after the step, optimizer state
        ("bf16", 1, {**FOUR, "zero_stage": 3}, (837760, 484864, 837760, 1675676)),
        ("fp32", 1, {**FOUR, "zero_stage": 3}, (837760, 969728, 837760, 1675676)),
        ("bf16", 2, {**FOUR, "zero_stage": 3}, (837760, 1322624, 837760, 1675676)),
        ("bf16", 2, {**FOUR, "zero_stage": 2}, (837760, 1322624, 837760, 1675676)),
        ("bf16", 2, {**FOUR, "zero_stage": 1}, (837760, 3834880, 837760, 1675676)),
        ("fp32", 2, {**FOUR, "zero_stage": 1}, (837760, 3350016, 837760, 1675676)),
        ("bf16", 1, {"data_parallel_replicate_size": 4}, (3350016, 484864, 3350016, 6700188)),
        ("bf16", 2, {"data_parallel_replicate_size": 4}, (3350016, 3834880, 3350016, 6700188)),
        ("fp32", 2, {"data_parallel_replicate_size": 4}, (3350016, 3350016, 3350016, 6700188)),
        (
            "bf16",
            2,
            {"data_parallel_shard_size": 2, "data_parallel_replicate_size": 2, "zero_stage": 3},
            (1675520, 2160384, 1675520, 3351196),
        ),
        (
            "fp32",
            1,
            {**FOUR, "zero_stage": 3, "hierarchical_partition_size": 2},
            (837760, 969728, 837760, 1675676),
        ),
    ],
)
def test_storages_that_torch_2_13_holds_on_rank_0(
    precision: str, micro_batches: int, sizes: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """Literals counted in fully_shard and replicate of this llama under the fake process group of 4 devices.

    Hybrid shard's figure is G padded + current: what fully_shard keeps as `_partial_reduce_output` has the shard's size.
    """
    plan = make_plan(MEASURED, precision=precision, num_micro_batches=micro_batches, **sizes)
    state = state_bytes(plan, TORCH, 0)
    before, after = state["before_reduction"], state["after_step"]
    assert (before.parameters, before.gradients, after.gradients, after.optimizer_state) == expected
    assert state["after_init"] == StateBytes(expected[0], 0, 0)
    assert before.optimizer_state == after.optimizer_state


def test_the_last_shard_is_padded_but_its_moments_are_not() -> None:
    """515 rows over 4: every rank stores 129 rows of the two tables, the last owns 128; moments follow what is owned."""
    plan = make_plan(MEASURED, zero_stage=3, **FOUR)
    first, last = (state_bytes(plan, TORCH, rank)["after_step"] for rank in (0, 3))
    assert first.parameters == last.parameters
    assert first.optimizer_state - last.optimizer_state == 8 * 2 * 128


def test_sgd_has_no_scalars_and_its_momentum_one_moment() -> None:
    plain, momentum = (
        state_bytes(make_plan(MEASURED, training={"optimizer": optimizer}), TORCH, 0)["after_step"].optimizer_state
        for optimizer in (OptimizerSpec(name="sgd"), OptimizerSpec(name="sgd", momentum=0.9))
    )
    assert (plain, momentum) == (0, 4 * num_parameters(MEASURED))


def test_interleaving_in_one_round_has_gradients_of_the_last_chunk_only() -> None:
    sizes: dict[str, Any] = {
        "pipeline_parallel_size": 2,
        "pipeline_schedule": "interleaved_1f1b",
        "num_model_chunks": 2,
        "data_parallel_replicate_size": 2,
    }
    model = llama(layers=4)
    layer = 4 * num_layer_parameters(model, 0)
    gradients = {
        count: state_bytes(make_plan(model, num_micro_batches=count, **sizes), TORCH, 0)["before_reduction"].gradients
        for count in (2, 4)
    }
    assert gradients == {2: layer, 4: 2 * layer + 4 * 131 * 64}


def test_megatron_buffers_by_hand() -> None:
    """bf16 with the distributed optimizer over 2 devices: 2 + 4 bytes per parameter and (4 + 8) / 2."""
    model = gpt(hidden=64, layers=2, heads=8, vocab=128)
    plan = make_plan(model, runtime="megatron", data_parallel_shard_size=2, zero_stage=1)
    count = num_parameters(model)
    state = state_bytes(plan, MEGATRON, 0)
    assert state["after_init"] == StateBytes(2 * count, 4 * count, 4 * count // 2)
    assert state["after_step"] == StateBytes(2 * count, 4 * count, 12 * count // 2)


def test_global_ranks_are_row_major_over_the_axis_order() -> None:
    plan = make_plan(
        llama(),
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        pipeline_schedule="1f1b",
        num_micro_batches=2,
        data_parallel_shard_size=2,
        data_parallel_replicate_size=2,
        zero_stage=1,
    )
    axes = ("pp", "dp_replicate", "dp_shard", "tp")
    places = [tuple(coordinates(plan, rank)[axis] for axis in axes) for rank in range(16)]
    assert places == [tuple(int(index) for index in np.unravel_index(rank, (2, 2, 2, 2))) for rank in range(16)]
    with pytest.raises(InputError, match="rank 16 is not in the plan; it uses ranks 0 to 15"):
        state_bytes(plan, TORCH, 16)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(33, 97), st.integers(2, 5), st.booleans())
def test_moments_of_all_shards_sum_to_the_model(shards: int, stages: int, vocab: int, layers: int, tied: bool) -> None:
    """Own shards tile every tensor: no element twice, none missing, whatever the padding."""
    stages = min(stages, layers)
    model = llama(vocab=vocab, layers=layers, tied=tied)
    plan = make_plan(
        model,
        data_parallel_shard_size=shards,
        zero_stage=3 if shards > 1 else 0,
        pipeline_parallel_size=stages,
        pipeline_schedule="1f1b" if stages > 1 else "none",
        num_micro_batches=stages,
        training={"optimizer": OptimizerSpec(name="sgd", momentum=0.9)},
    )
    held = sum(state_bytes(plan, TORCH, rank)["after_step"].optimizer_state for rank in range(plan.num_devices_used))
    copies = vocab * 64 if tied and stages > 1 else 0
    assert held == 4 * (num_parameters(model) + copies)


def fullest(plan: Plan) -> int:
    return max(total(state_bytes(plan, TORCH, rank)["after_step"]) for rank in range(plan.num_devices_used))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(17, 90), st.sampled_from([1, 2, 4]), st.integers(0, 2))
def test_more_tensor_parallelism_or_sharding_never_needs_more_state(
    layers: int, vocab: int, size: int, doublings: int
) -> None:
    model, shards = llama(layers=layers, vocab=vocab), 2**doublings
    sizes: dict[str, Any] = {"zero_stage": 3 if shards > 1 else 0, "data_parallel_shard_size": shards}
    wider = {"zero_stage": 3, "data_parallel_shard_size": 2 * shards}
    base = fullest(make_plan(model, tensor_parallel_size=size, **sizes))
    assert fullest(make_plan(model, tensor_parallel_size=2 * size, **sizes)) <= base
    assert fullest(make_plan(model, tensor_parallel_size=size, **wider)) <= base


def test_a_higher_zero_stage_never_needs_more_state_before_reduction() -> None:
    def held(stage: int) -> int:
        plan = make_plan(MEASURED, zero_stage=stage, num_micro_batches=2, **FOUR)
        return total(state_bytes(plan, TORCH, 0)["before_reduction"])

    assert held(1) > held(2) == held(3)

"""Every validity rule accepts what it must, refuses what it must, and names the valid alternatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rule_worlds import GOOD, broken, make_context

from costmodel.build import build_plan
from costmodel.runtimes.axis_orders import AXIS_ORDER_WORDS
from costmodel.runtimes.grid import CONTEXT_PARALLEL_METHODS, RECOMPUTE_KINDS, Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import (
    RULES,
    check,
    evaluate,
    valid_precisions,
    valid_tensor_parallel_sizes,
)
from costmodel.specs import (
    InputError,
    ParallelConfig,
    Plan,
)

HPZ_TENSOR = "runtime_hierarchical_partition_tensor_parallel"
TENSOR_DIMS = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size")
# changes to GOOD, the only rule that breaks, what its message must say
SIZE_CASES: list[tuple[dict[str, Any], set[str], list[str]]] = [
    (
        {"tensor_parallel_size": 3, "sequence_parallel": False},
        {
            f"tensor_parallel_divides_{dim}"
            for dim in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
        }
        | {"tensor_parallel_divides_hidden_size"},
        ["tensor_parallel_size 3", "1, 2, 4, 8"],
    ),
    (
        {
            "tensor_parallel_size": 16,
            "pipeline_parallel_size": 1,
            "pipeline_schedule": "none",
            "data_parallel_shard_size": 4,
            "num_micro_batches": 16,
        },
        {"tensor_parallel_divides_num_key_value_heads"},
        ["num_key_value_heads 8", "valid tensor_parallel_size: 1, 2, 4, 8"],
    ),
    (
        {"data_parallel_replicate_size": 2, "num_micro_batches": 4},
        {"device_count"},
        ["multiply to 128 devices", "has 64"],
    ),
    ({"tensor_parallel_size": 1, "loss_parallel": False}, {"sequence_parallel_needs_tensor_parallel"}, ["at least 2"]),
    ({"tensor_parallel_size": 1, "sequence_parallel": False}, {"loss_parallel_needs_tensor_parallel"}, ["at least 2"]),
    ({"pipeline_schedule": "none"}, {"schedule_matches_pipeline"}, ["pipeline_parallel_size 2", "1f1b"]),
    ({"pipeline_schedule": "naive"}, {"naive_one_micro_batch"}, ["found num_micro_batches 8", "num_micro_batches 1"]),
    ({"num_model_chunks": 2}, {"model_chunks_match_schedule"}, ["1f1b needs num_model_chunks exactly 1, found 2"]),
    ({"pipeline_schedule": "interleaved_1f1b"}, {"model_chunks_match_schedule"}, ["at least 2, found 1"]),
    (
        {"micro_batch_size": 8, "num_micro_batches": 1},
        {"full_pipeline"},
        ["num_micro_batches 1", "pipeline_parallel_size 2"],
    ),
    ({"num_micro_batches": 4}, {"batch_product"}, ["= 32", "global_batch_size 64"]),
    ({"micro_batch_size": 3}, {"batch_divisible", "batch_product"}, ["global_batch_size 64", "1, 2, 4, 8, 16, 32, 64"]),
    ({"zero_stage": 0}, {"shards_need_zero"}, ["data_parallel_shard_size 8 with zero_stage 0", "1, 2, 3"]),
    (
        {"data_parallel_shard_size": 1, "data_parallel_replicate_size": 8},
        {"zero_needs_shards"},
        ["zero_stage 1", "valid zero_stage here: 0"],
    ),
    (
        {"hierarchical_partition_size": 4},
        {"hierarchical_partition_needs_zero3", HPZ_TENSOR},
        ["zero_stage 1", "zero_stage 3"],
    ),
    (
        {"zero_stage": 3, "hierarchical_partition_size": 3},
        {"hierarchical_partition_divides_shards", HPZ_TENSOR},
        ["valid: 2, 4"],
    ),
    (
        {"zero_stage": 3, "hierarchical_partition_size": 8},
        {"hierarchical_partition_divides_shards", HPZ_TENSOR},
        ["shard_size 8"],
    ),
]


def test_a_valid_plan_breaks_nothing() -> None:
    assert broken(make_context(), **GOOD) == {}
    sharded = {"data_parallel_shard_size": 64, "zero_stage": 3, "hierarchical_partition_size": 8}
    assert broken(make_context(), **sharded) == {}


@pytest.mark.parametrize(("changes", "rules", "words"), SIZE_CASES, ids=[",".join(sorted(c[1])) for c in SIZE_CASES])
def test_size_rules_refuse_with_found_needed_and_alternatives(
    changes: dict[str, Any], rules: set[str], words: list[str]
) -> None:
    found = broken(make_context(), **{**GOOD, **changes})
    assert set(found) == rules
    for word in words:
        assert any(word in f"{rejection.message} {rejection.fix}" for rejection in found.values()), (word, found)
    assert all(rejection.fix for rejection in found.values())


def test_sequence_parallel_needs_a_divisible_sequence() -> None:
    found = broken(make_context(sequence=1022), **GOOD)
    assert set(found) == {"sequence_parallel_divides_sequence"}
    rejection = found["sequence_parallel_divides_sequence"]
    assert "valid tensor_parallel_size: 1, 2" in rejection.message
    assert "1024" in rejection.fix
    assert broken(make_context(sequence=1022), **{**GOOD, "sequence_parallel": False}) == {}


def test_layers_bound_the_stages() -> None:
    sizes = {"pipeline_parallel_size": 64, "pipeline_schedule": "gpipe", "micro_batch_size": 1, "num_micro_batches": 64}
    assert set(broken(make_context(), **sizes)) == {"pipeline_layers"}  # llama-3-8b has 32 layers
    chunks = {**GOOD, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 17}
    assert "32 layers" in broken(make_context(), **chunks)["pipeline_layers"].message
    assert broken(make_context(), **{**chunks, "num_model_chunks": 16}) == {}


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 6, 9, 12, 16])
def test_interleaving_multiple_of_each_runtime(micro_batches: int) -> None:
    # torch 2.13: m % max(1, m // p) == 0; with p = 4: 3, 5, 6, 12 run and 9 raises. Megatron-LM: m % p == 0.
    sizes = {
        "tensor_parallel_size": 2,
        "loss_parallel": True,
        "pipeline_parallel_size": 4,
        "pipeline_schedule": "interleaved_1f1b",
        "num_model_chunks": 2,
        "data_parallel_replicate_size": 8,
        "num_micro_batches": micro_batches,
    }
    torch = broken(make_context(batch=8 * micro_batches), **sizes)
    megatron = broken(make_context(batch=8 * micro_batches, runtime="megatron"), **sizes)
    assert ("interleaving_multiple" in torch) == (micro_batches % max(1, micro_batches // 4) != 0)
    assert ("interleaving_multiple" in megatron) == (micro_batches % 4 != 0)
    assert set(torch) | set(megatron) <= {"interleaving_multiple"}
    if micro_batches == 9:
        assert "8, 12" in torch["interleaving_multiple"].message


def test_few_micro_batches_are_refused_by_torch_1f1b_only() -> None:
    sizes = {"pipeline_parallel_size": 4, "num_micro_batches": 2, "data_parallel_replicate_size": 8}
    context = {"batch": 16}
    assert set(broken(make_context(**context), pipeline_schedule="1f1b", **sizes)) == {"full_pipeline"}
    assert broken(make_context(**context), pipeline_schedule="gpipe", **sizes) == {}
    assert broken(make_context(runtime="megatron", **context), pipeline_schedule="1f1b", **sizes) == {}


def test_runtimes_refuse_what_they_lack() -> None:
    zero3 = {"data_parallel_shard_size": 64, "zero_stage": 3}
    found = broken(make_context(runtime="megatron"), **zero3)
    assert "supported: 0, 1" in found["runtime_zero_stage"].message
    assert broken(make_context(), **zero3) == {}
    gpipe = {"pipeline_parallel_size": 2, "pipeline_schedule": "gpipe", "num_micro_batches": 2, "micro_batch_size": 1}
    found = broken(make_context(runtime="megatron"), **{**gpipe, "data_parallel_replicate_size": 32})
    assert "none, 1f1b, interleaved_1f1b" in found["runtime_pipeline_schedule"].message
    hybrid = {"data_parallel_replicate_size": 8, "data_parallel_shard_size": 8, "zero_stage": 1}
    assert "1 x 64" in broken(make_context(runtime="megatron"), **hybrid)["runtime_hybrid_shard"].message
    partition = {"data_parallel_shard_size": 64, "zero_stage": 3, "hierarchical_partition_size": 8}
    assert "runtime_hierarchical_partition" in broken(make_context(runtime="megatron"), **partition)
    no_recompute = make_context(runtime_changes={"recompute_kinds": ("none",)})
    assert (
        "supported: none" in broken(no_recompute, "full", data_parallel_replicate_size=64)["runtime_recompute"].message
    )


def test_tied_embeddings_stay_on_one_stage_of_torchtitan_only() -> None:
    sizes = {**GOOD, "tensor_parallel_size": 4, "num_micro_batches": 8, "zero_stage": 2}
    (message,) = broken(make_context(model="qwen3-0.6b", runtime="torchtitan"), **sizes).values()
    assert message.rule == "runtime_tied_pipeline"
    assert "pipeline_parallel_size 2; valid: 1" in message.message
    assert not broken(make_context(model="llama-3-8b", runtime="torchtitan"), **sizes)
    whole = {**sizes, "pipeline_parallel_size": 1, "pipeline_schedule": "none", "data_parallel_shard_size": 16}
    assert not broken(make_context(model="qwen3-0.6b", runtime="torchtitan"), **{**whole, "num_micro_batches": 4})
    for runtime, stage in {"torch": 2, "megatron": 1}.items():
        assert not broken(make_context(model="qwen3-0.6b", runtime=runtime), **{**sizes, "zero_stage": stage})


def test_hierarchical_partition_does_not_combine_with_tensor_parallelism() -> None:
    sizes = {"data_parallel_shard_size": 8, "zero_stage": 3, "hierarchical_partition_size": 4, "num_micro_batches": 8}
    assert broken(make_context(), **sizes) == {}
    assert broken(make_context(batch=128), data_parallel_replicate_size=2, **sizes) == {}
    assert broken(make_context(), pipeline_parallel_size=2, pipeline_schedule="1f1b", **sizes) == {}
    found = broken(make_context(), tensor_parallel_size=2, **sizes)
    assert set(found) == {HPZ_TENSOR}
    assert "tensor_parallel_size to 1" in found[HPZ_TENSOR].fix


def test_runtime_wide_rules_hold_for_every_row() -> None:
    sizes = {"data_parallel_replicate_size": 4, "micro_batch_size": 16}
    cpu = broken(make_context(model="gpt2", cluster="4xcpu", runtime="megatron", precision="fp32"), **sizes)
    assert "supported: cuda" in cpu["runtime_device"].message
    other = make_context(runtime_changes={"model_families": ("gpt",), "optimizers": ("sgd",)})
    found = broken(other, data_parallel_replicate_size=64)
    assert "supported: gpt" in found["runtime_model_family"].message
    assert "supported: sgd" in found["runtime_optimizer"].message


def test_precision_must_suit_device_and_runtime() -> None:
    v100 = make_context(cluster="8xV100-SXM-32GB")
    found = broken(v100, data_parallel_replicate_size=8, micro_batch_size=8)
    assert set(found) == {"device_precision"}
    assert "bf16; use fp16 or fp32" in found["device_precision"].message
    assert valid_precisions(v100) == ["fp16", "fp32"]
    assert set(broken(make_context(precision="fp64"), data_parallel_replicate_size=64)) >= {"fp64_on_cpu"}
    cpu = make_context(model="gpt2", cluster="4xcpu", precision="fp64")
    assert broken(cpu, data_parallel_replicate_size=4, micro_batch_size=16) == {}
    foreign = make_context(runtime_changes={"precisions": {"fp32": load_runtime("torch").precisions["fp32"]}})
    assert "valid here: fp32" in broken(foreign, data_parallel_replicate_size=64)["runtime_precision"].message


def test_learned_positions_bound_the_sequence_and_rotary_ones_do_not() -> None:
    sizes = {"data_parallel_replicate_size": 64}
    found = broken(make_context(model="gpt2", sequence=2048), **sizes)
    assert set(found) == {"learned_positions"}
    assert "1024" in found["learned_positions"].fix
    assert broken(make_context(model="gpt2", sequence=1024), **sizes) == {}
    assert broken(make_context(sequence=65536), **sizes) == {}


def test_masks_of_many_rows_equal_the_checks_of_each_row() -> None:
    context = make_context()
    rng = np.random.default_rng(0)
    size = 400
    columns = {
        "tensor_parallel_size": rng.choice([1, 2, 3, 8, 16], size),
        "sequence_parallel": rng.integers(0, 2, size),
        "loss_parallel": rng.integers(0, 2, size),
        "pipeline_parallel_size": rng.choice([1, 2, 5, 40], size),
        "pipeline_schedule": rng.integers(0, 5, size),
        "num_model_chunks": rng.choice([1, 2, 20], size),
        "data_parallel_replicate_size": rng.choice([1, 2, 3], size),
        "data_parallel_shard_size": rng.choice([1, 2, 8], size),
        "zero_stage": rng.integers(0, 4, size),
        "hierarchical_partition_size": rng.choice([0, 2, 4], size),
        "micro_batch_size": rng.choice([1, 2, 3], size),
        "num_micro_batches": rng.choice([1, 4, 9, 16], size),
        "recompute": rng.integers(0, len(RECOMPUTE_KINDS), size),
        "context_parallel_size": rng.choice([1, 2, 4], size),
        "context_parallel_method": rng.integers(0, len(CONTEXT_PARALLEL_METHODS), size),
        "axis_order": rng.integers(0, len(AXIS_ORDER_WORDS), size),
    }
    grid = Grid(**{name: np.asarray(column, dtype=np.int64) for name, column in columns.items()})
    outcomes = evaluate(context, grid)
    assert [outcome.rule for outcome in outcomes] == list(RULES)
    for row in range(size):
        whole = {outcome.rule.name for outcome in outcomes if not outcome.mask_ok[row]}
        single = {
            outcome.rule.name for outcome in evaluate(context, grid.take(np.array([row]))) if not outcome.mask_ok[0]
        }
        assert whole == single
    for outcome in outcomes:
        for row in np.flatnonzero(~outcome.mask_ok)[:3]:
            assert outcome.rejection(int(row)).message


def test_valid_tensor_parallel_sizes_really_divide() -> None:
    context = make_context(model="gpt2")  # 12 heads, hidden 768, feed-forward 3072
    assert valid_tensor_parallel_sizes(context) == [1, 2, 3, 4, 6, 12]
    for size in valid_tensor_parallel_sizes(context):
        assert broken(context, tensor_parallel_size=size, micro_batch_size=64) == {}


def make_plan(**changes: Any) -> Plan:
    context = make_context()
    plan = build_plan(context.model, context.cluster, context.training, context.runtime, ParallelConfig(**GOOD))
    return plan.model_copy(update=changes)


def test_check_accepts_a_built_plan_and_reports_size_rules() -> None:
    assert check(make_plan()) == []
    plan = make_plan(parallel=ParallelConfig(**{**GOOD, "num_micro_batches": 4}))
    assert [rejection.rule for rejection in check(plan)] == ["batch_product"]


def test_check_reports_broken_invariants() -> None:
    stages = make_plan().stages
    gap = (stages[0].model_copy(update={"stop": 15}), stages[1])
    assert [r.rule for r in check(make_plan(stages=gap))] == ["plan_stage_layers"]
    short = (stages[0], stages[1].model_copy(update={"stop": 31}))
    assert "cover 0-32" in check(make_plan(stages=short))[0].message
    swapped = (stages[0].model_copy(update={"rank": 1}), stages[1].model_copy(update={"rank": 0}))
    assert [r.rule for r in check(make_plan(stages=swapped))] == ["plan_stage_order"]
    headless = (stages[0], stages[1].model_copy(update={"head": False}))
    assert [r.rule for r in check(make_plan(stages=headless))] == ["plan_stage_ends"]
    one = (stages[0].model_copy(update={"stop": 32, "head": True}),)
    assert [r.rule for r in check(make_plan(stages=one))] == ["plan_stage_order"]
    assert "multiply to 64" in check(make_plan(num_devices_used=32))[0].message
    order = check(make_plan(axis_order=("tp", "cp", "dp_shard", "dp_replicate", "pp")))
    assert [r.rule for r in order] == ["plan_axis_order"]
    assert "pp, dp_replicate, dp_shard, cp, tp" in order[0].message


def test_check_of_an_unknown_runtime_is_bad_input() -> None:
    plan = make_plan()
    with pytest.raises(InputError, match="supported: "):
        check(plan.model_copy(update={"runtime": plan.runtime.model_copy(update={"name": "nothing"})}))


def test_the_documents_batch_of_1024_is_8_times_32_times_4() -> None:
    """Hugging Face, "Parallelism" (v4.9.2): mbs 8 x chunks 32 x dp_degree 4 = 1024."""
    sizes: dict[str, Any] = {
        "data_parallel_replicate_size": 4,
        "micro_batch_size": 8,
        "num_micro_batches": 32,
        "pipeline_parallel_size": 4,
        "pipeline_schedule": "gpipe",
    }
    assert broken(make_context(cluster="4x4xA100-SXM-80GB", batch=1024), **sizes) == {}
    refused = broken(make_context(cluster="4x4xA100-SXM-80GB", batch=1000), **sizes)
    assert "= 1024" in refused["batch_product"].message

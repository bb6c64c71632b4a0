"""What megatron, deepspeed, torchtitan and their kin refuse and torch takes: each rule with a neighbour that passes."""

from __future__ import annotations

from typing import Any

import pytest
from rule_worlds import broken, make_context

from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import OptimizerSpec

TENSOR: dict[str, Any] = {"tensor_parallel_size": 4, "sequence_parallel": True, "loss_parallel": True}
SHARDS: dict[str, Any] = {"data_parallel_shard_size": 16, "zero_stage": 2, "num_micro_batches": 4}
PIPELINE: dict[str, Any] = {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "num_micro_batches": 4}
CONTEXT: dict[str, Any] = {"context_parallel_size": 4, "data_parallel_shard_size": 16, "num_micro_batches": 4}


def refused(context: RuleContext, rule: str, **sizes: Any) -> str:
    """The message and fix of the only rule that breaks."""
    found = broken(context, **sizes)
    assert set(found) == {f"runtime_{rule}"}, found
    (rejection,) = found.values()
    assert rejection.fix
    assert "valid" in rejection.numbers
    return f"{rejection.message}; {rejection.fix}"


def test_composer_has_no_tensor_parallelism() -> None:
    message = refused(make_context(runtime="composer-fsdp"), "tensor_parallel", **TENSOR, **SHARDS)
    assert "no tensor parallelism, found tensor_parallel_size 4; valid: 1" in message
    assert broken(make_context(), **TENSOR, **SHARDS) == {}


def test_torchtitan_has_sequence_parallelism_wherever_it_has_tensor_parallelism() -> None:
    context, off = make_context(runtime="torchtitan"), {**TENSOR, "sequence_parallel": False}
    message = refused(context, "sequence_parallel", **off, **SHARDS)
    assert (
        "sequence_parallel always on under tensor parallelism, found off with tensor_parallel_size 4; valid: on"
        in message
    )
    assert broken(context, **TENSOR, **SHARDS) == {}
    assert broken(context, **SHARDS | {"data_parallel_shard_size": 64, "num_micro_batches": 1}) == {}
    assert broken(make_context(), **off, **SHARDS) == {}


@pytest.mark.parametrize(("runtime", "stage"), [("megatron", 1), ("nemo", 1), ("nanotron", 1), ("torchtitan", 2)])
def test_logits_stay_cut_in_megatron_and_its_kin(runtime: str, stage: int) -> None:
    context, zero = make_context(runtime=runtime), {**SHARDS, "zero_stage": stage}
    message = refused(context, "loss_parallel", **TENSOR | {"loss_parallel": False}, **zero)
    assert "loss_parallel always on under tensor parallelism, found off" in message
    assert broken(context, **TENSOR, **zero) == {}
    for either in ("torch", "deepspeed", "internevo"):
        assert "runtime_loss_parallel" not in broken(
            make_context(runtime=either), **TENSOR | {"loss_parallel": False}, **zero
        )


def test_torchtitan_cuts_sequences_into_two_pieces_for_every_tensor_and_context_rank() -> None:
    """torchtitan: seq_len % (tp x 2 x cp) == 0, with either of them 1 too."""

    def message(sequence: int, **sizes: Any) -> str:
        return refused(make_context(runtime="torchtitan", sequence=sequence), "sequence_multiple", **sizes)

    text = message(1020, **TENSOR, **SHARDS)
    assert "a multiple of 2 x tensor_parallel_size 4 x context_parallel_size 1 = 8, found 1020" in text
    assert "valid tensor_parallel_size x context_parallel_size: 1, 2, 3, 5, 6, 10" in text
    assert "pad sequence_length to 1024" in text
    whole = {"data_parallel_shard_size": 64, "zero_stage": 3}
    assert "valid tensor_parallel_size x context_parallel_size: none" in message(1023, **whole)
    assert broken(make_context(sequence=1020), **TENSOR, **SHARDS) == {}
    assert broken(make_context(runtime="torchtitan", sequence=1016), **TENSOR, **SHARDS) == {}
    cut = {**CONTEXT, "zero_stage": 3, "context_parallel_method": "all_gather"}
    assert broken(make_context(runtime="torchtitan", sequence=1024), **cut) == {}
    assert "runtime_sequence_multiple" in broken(make_context(runtime="torchtitan", sequence=1020), **cut)


def test_transformer_engine_copies_no_key_value_heads() -> None:
    """llama-3-8b has 32 query heads and 8 key-value heads."""
    exchange = {
        **TENSOR,
        **CONTEXT,
        "context_parallel_method": "all_to_all",
        "data_parallel_shard_size": 4,
        "zero_stage": 1,
    }
    exchange["num_micro_batches"] = 16
    message = refused(make_context(runtime="megatron"), "key_value_heads", **exchange)
    assert (
        "8 num_key_value_heads / tensor_parallel_size 4 do not fall into whole heads over context_parallel_size 4"
        in message
    )
    assert "valid context_parallel_size: 1, 2" in message
    assert "or use ring or all_gather" in message
    assert broken(make_context(runtime="megatron"), **exchange | {"context_parallel_method": "ring"}) == {}
    assert broken(make_context(runtime="deepspeed"), **exchange | {"sequence_parallel": False}) == {}
    alone = {**CONTEXT, "context_parallel_method": "all_to_all", "zero_stage": 1}
    assert broken(make_context(runtime="megatron"), **alone) == {}  # 8 heads over 4 devices


def test_deepspeed_copies_every_key_value_head_as_often() -> None:
    """phi-4 has 40 query heads and 10 key-value heads: 4 devices would get two or three of them, 20 get one of two copies."""
    phi = {"model": "phi-4", "runtime": "deepspeed", "cluster": "10x8xH100-SXM", "batch": 80, "sequence": 1600}
    cut: dict[str, Any] = {"context_parallel_method": "all_to_all", "zero_stage": 1}
    four = {**cut, "context_parallel_size": 4, "data_parallel_shard_size": 20, "num_micro_batches": 4}
    message = refused(make_context(**phi), "key_value_heads", **four)
    assert "10 num_key_value_heads / tensor_parallel_size 1 do not fall into whole heads or copies" in message
    assert "valid context_parallel_size: 1, 2, 5, 10, 20, 40" in message
    assert "or use another runtime" in message
    for size in (5, 20, 40):
        shard = 80 // size
        sizes = {
            **cut,
            "context_parallel_size": size,
            "data_parallel_shard_size": shard,
            "num_micro_batches": 80 // shard,
        }
        assert broken(make_context(**phi), **sizes) == {}


def test_torchtitan_replicates_only_where_nothing_else_is_parallel() -> None:
    context = make_context(runtime="torchtitan")
    copies = {"data_parallel_replicate_size": 16, "num_micro_batches": 4}
    message = refused(context, "replicas_alone", **TENSOR, **copies)
    assert (
        "found data_parallel_replicate_size 16 x tensor_parallel_size 4 with zero_stage 0; valid zero_stage: 2, 3"
        in message
    )
    assert "data_parallel_shard_size to 16" in message
    assert "pipeline_parallel_size 4" in refused(context, "replicas_alone", **PIPELINE | copies)
    cut = {"context_parallel_size": 4, "context_parallel_method": "all_gather", "num_micro_batches": 64}
    message = refused(context, "replicas_alone", **cut)
    assert "which shards over the 4 context-parallel devices, or context_parallel_size to 1" in message
    assert broken(context, **cut, zero_stage=3) == {}
    assert broken(context, data_parallel_replicate_size=64) == {}
    assert broken(context, **TENSOR, num_micro_batches=64) == {}
    assert broken(make_context(), **TENSOR, **copies) == {}


@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_shards_inside_replicas_under_zero_3_only(stage: int) -> None:
    context = make_context(runtime="deepspeed")
    hybrid = {"data_parallel_replicate_size": 8, "data_parallel_shard_size": 8}
    message = refused(context, "hybrid_zero_stage", **hybrid, zero_stage=stage)
    assert f"found zero_stage {stage}; valid: 3" in message
    assert "data_parallel_replicate_size to 1 and data_parallel_shard_size to 64" in message
    assert broken(context, **hybrid, zero_stage=3) == {}
    assert broken(context, data_parallel_shard_size=64, zero_stage=stage) == {}
    assert broken(make_context(), **hybrid, zero_stage=stage) == {}


def test_deepspeed_has_no_second_copy_inside_replicas() -> None:
    context, zero = make_context(runtime="deepspeed"), {"zero_stage": 3, "hierarchical_partition_size": 4}
    hybrid = {"data_parallel_replicate_size": 4, "data_parallel_shard_size": 16}
    message = refused(context, "hybrid_hierarchical_partition", **hybrid, **zero)
    assert (
        "hierarchical_partition_size 4 with data_parallel_replicate_size 4; valid: hierarchical_partition_size off"
        in message
    )
    assert broken(context, data_parallel_shard_size=64, **zero) == {}
    assert broken(make_context(), **hybrid, **zero) == {}


def test_a_partition_divides_the_ranks_that_shard_and_has_whole_parameters() -> None:
    """DeepSpeed takes any zero_hpz_partition_size; its groups are neighbouring ranks, which tensor parallelism would occupy."""
    context = make_context(runtime="deepspeed")
    zero = {"zero_stage": 3, "data_parallel_shard_size": 64}
    found = broken(context, **zero, hierarchical_partition_size=12)
    assert set(found) == {"hierarchical_partition_divides_shards"}
    assert "must divide data_parallel_shard_size 64" in found["hierarchical_partition_divides_shards"].message
    assert "valid: 2, 4, 8, 16, 32" in found["hierarchical_partition_divides_shards"].message
    cut = {**CONTEXT, "context_parallel_method": "all_to_all", "zero_stage": 3}
    found = broken(context, **cut, hierarchical_partition_size=12)
    assert (
        "data_parallel_shard_size 16 x context_parallel_size 4 = 64"
        in found["hierarchical_partition_divides_shards"].message
    )
    assert broken(context, **cut, hierarchical_partition_size=32) == {}
    tensor = {**TENSOR, **SHARDS, "zero_stage": 3}
    assert set(broken(context, **tensor, hierarchical_partition_size=4)) == {
        "runtime_hierarchical_partition_tensor_parallel"
    }


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_pipelines_take_no_zero_2_or_3(stage: int) -> None:
    context = make_context(runtime="megatron-deepspeed")
    zero = {"data_parallel_shard_size": 16, "zero_stage": stage}
    message = refused(context, "pipeline_zero_stage", **PIPELINE, **zero)
    assert f"refuses zero_stage {stage} with pipelines (pipeline_parallel_size 4)" in message
    assert "valid zero_stage: 0, 1" in message
    assert broken(context, **PIPELINE, data_parallel_shard_size=16, zero_stage=1) == {}
    assert broken(context, data_parallel_shard_size=64, zero_stage=stage) == {}
    assert broken(make_context(), **PIPELINE, **zero) == {}


@pytest.mark.parametrize("runtime", ["deepspeed", "composer-fsdp"])
def test_stacks_without_pipelines_say_so(runtime: str) -> None:
    found = broken(make_context(runtime=runtime), **PIPELINE, data_parallel_shard_size=16, zero_stage=3)
    assert set(found) == {"runtime_pipelines", "runtime_pipeline_schedule"}
    assert "no pipelines, found pipeline_parallel_size 4; valid: 1" in found["runtime_pipelines"].message
    for name in ("torch", "torchtitan", "megatron", "megatron-deepspeed", "nemo"):
        assert name in found["runtime_pipelines"].fix
        assert len(load_runtime(name).schedules) > 1


@pytest.mark.parametrize("runtime", ["megatron", "nemo"])
def test_the_distributed_optimizer_is_adam(runtime: str) -> None:
    context = make_context(runtime=runtime)
    training = context.training.model_copy(update={"optimizer": OptimizerSpec(name="sgd")})
    sgd = RuleContext(model=context.model, cluster=context.cluster, training=training, runtime=context.runtime)
    zero = {"data_parallel_shard_size": 64, "zero_stage": 1}
    message = refused(sgd, "zero_optimizer", **zero)
    assert "shards the states of adamw only, found optimizer sgd with zero_stage 1; valid optimizer: adamw" in message
    assert broken(context, **zero) == {}
    assert broken(sgd, data_parallel_replicate_size=64) == {}


def test_torchtitan_has_fsdp2_without_zero_1_and_two_formats() -> None:
    """fsdp_reshard_after_forward is never or always, mixed_precision_param bfloat16 or float32, the optimizer Adam or AdamW."""
    titan = load_runtime("torchtitan")
    assert titan.zero_stages == (0, 2, 3)
    assert titan.optimizers == ("adamw",)
    assert {"fp16", "fp64"}.isdisjoint(titan.precisions)
    context = make_context(runtime="torchtitan")
    found = broken(context, data_parallel_shard_size=64, zero_stage=1)
    assert set(found) == {"runtime_zero_stage"}
    assert "supported: 0, 2, 3" in found["runtime_zero_stage"].message
    found = broken(context, data_parallel_shard_size=64, zero_stage=3, hierarchical_partition_size=8)
    assert set(found) == {"runtime_hierarchical_partition"}
    looped = {
        "pipeline_parallel_size": 4,
        "pipeline_schedule": "looped_bfs",
        "num_model_chunks": 2,
        "num_micro_batches": 4,
    }
    assert broken(context, **looped, data_parallel_shard_size=16, zero_stage=2) == {}


def test_deepspeed_recomputes_layers_as_a_whole() -> None:
    context = make_context(runtime="deepspeed")
    found = broken(context, "core_attention", data_parallel_shard_size=64, zero_stage=3)
    assert "supported: none, full" in found["runtime_recompute"].message
    assert broken(context, "full", data_parallel_shard_size=64, zero_stage=3) == {}

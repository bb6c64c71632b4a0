"""A run becomes the plan that it ran: sizes, links, vocabulary and words, checked by hand."""

from typing import Any

import pytest
from replay_rows import vary

from costmodel.models.parameters import num_parameters
from meshwright.validation.adapters.errors import UnknownAcceleratorError, UnsupportedRunError
from meshwright.validation.adapters.frameworks import BY_DATASET, BY_SOURCE, BY_WORD, FRAMEWORKS, framework_of
from meshwright.validation.adapters.layout import AdaptedRun, adapt
from meshwright.validation.adapters.words import unmodelled_memory
from meshwright.validation.run_rows import RunRow, step_time_seconds, tokens_per_second_per_device, was_measured


def run(**changes: Any) -> AdaptedRun:
    return adapt(RunRow.model_validate(vary(**changes)))


def test_a_complete_run_becomes_its_plan() -> None:
    adapted = run()
    plan = adapted.plan
    assert (adapted.framework, adapted.runtime.name, plan.runtime.name) == ("megatron", "megatron", "megatron")
    # 32 x (4 h^2 + 3 h f + 2 h) + 2 V h + h, Llama-2-7B's published 6,738,415,616.
    assert num_parameters(plan.model) == 6_738_415_616
    assert plan.model.family == "llama"
    parallel = plan.parallel
    assert (parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.zero_stage) == (2, 2, 1)
    assert (parallel.data_parallel_replicate_size, parallel.data_parallel_shard_size) == (1, 4)
    assert (parallel.micro_batch_size, parallel.num_micro_batches) == (1, 16)  # 64 / (1 x 4)
    assert (parallel.pipeline_schedule, parallel.num_model_chunks) == ("1f1b", 1)
    assert (parallel.sequence_parallel, parallel.loss_parallel) == (False, True)
    assert plan.training.attention_implementation == "fused"
    assert plan.training.precision.compute == "bf16"
    assert [level.size for level in plan.cluster.levels] == [8, 2]
    assert [stage.num_layers for stage in plan.stages] == [16, 16]


def test_stated_link_rates_replace_nominal_ones() -> None:
    plan = run(hardware__intra_node_gbps_per_gpu=200, hardware__inter_node_gbps_per_gpu=6.25).plan
    inner, outer = plan.cluster.levels
    assert inner.link.nominal_bytes_per_second == 200e9
    assert inner.link.measured_bytes_per_second is None  # measured at 300 GB/s: void at 200
    assert outer.link.nominal_bytes_per_second * outer.ports == pytest.approx(8 * 6.25e9)
    same = run(hardware__intra_node_gbps_per_gpu=300, hardware__inter_node_gbps_per_gpu=25).plan
    assert same.cluster.levels == run().plan.cluster.levels  # a DGX A100's own rates


@pytest.mark.parametrize(("measured", "ports"), [(5.06, 1), (160.0, 8)])
def test_a_measured_bus_bandwidth_is_one_port_s_or_else_all_ports_(measured: float, ports: int) -> None:
    """A DGX A100 has 8 ports of 25 GB/s: a ring of 160 GB/s uses them all, one of 5 GB/s one."""
    outer = run(hardware__inter_node_measured_busbw_gbps_per_node=measured).plan.cluster.levels[1]
    assert outer.ports == 8
    assert outer.link.measured_bytes_per_second is not None
    assert outer.link.measured_bytes_per_second * ports == pytest.approx(measured * 1e9)


def test_fewer_devices_than_a_node_are_one_part_of_it() -> None:
    plan = run(hardware__n_gpus=4, parallel__dp=1).plan
    assert [level.size for level in plan.cluster.levels] == [4]
    assert plan.parallel.zero_stage == 0  # one rank has nothing to shard


def test_the_vocabulary_is_padded_as_the_runtime_pads_it() -> None:
    gpt = {"model__gated_mlp": False, "model__tied_embeddings": True, "model__vocab": 50257, "model__ffn_hidden": ...}
    megatron = run(**gpt, parallel__tp=4, parallel__dp=2).plan.model
    assert (megatron.vocab_size, megatron.padded_vocab_size) == (50257, 50688)  # 99 x 128 x 4
    assert megatron.layers[0].feed_forward.intermediate_size == 4 * 4096
    torch = run(**gpt, parallel__tp=4, parallel__dp=2, runtime="torch").plan.model
    assert torch.padded_vocab_size == 50257  # cut into parts of 12,565 and less


def test_a_gpt_may_have_fewer_key_value_heads() -> None:
    attention = run(model__gated_mlp=False, model__n_kv_heads=8).plan.model.layers[0].attention
    assert (attention.num_attention_heads, attention.num_key_value_heads) == (32, 8)


@pytest.mark.parametrize(("runtime", "stated", "found"), [
    ("megatron", None, False), ("nemo", None, True), ("nemo", False, False), ("megatron", True, True),
    ("nanotron", None, True), ("aleph", None, False),
])  # fmt: skip
def test_unsaid_sequence_parallelism_is_the_framework_s(runtime: str, stated: bool | None, found: bool) -> None:
    assert run(runtime=runtime, parallel__sequence_parallel=stated).plan.parallel.sequence_parallel is found


@pytest.mark.parametrize(("runtime", "stage", "profile", "found"), [
    ("nemo", None, "nemo", 1), ("megatron", None, "megatron", 0), ("deepspeed", 3, "deepspeed", 3),
    ("composer-fsdp", None, "composer-fsdp", 3), ("my-own", 1, "unknown", 1),
])  # fmt: skip
def test_zero_stage_and_profile(runtime: str, stage: int | None, profile: str, found: int) -> None:
    adapted = run(runtime=runtime, parallel__zero_stage=stage, parallel__pp=1, parallel__tp=1, parallel__dp=16)
    assert (adapted.runtime.name, adapted.plan.parallel.zero_stage) == (profile, found)


def test_plain_fsdp_has_no_fused_loss() -> None:
    found = [run(runtime=name, parallel__pp=1, parallel__tp=1, parallel__dp=16) for name in ("composer-fsdp", "fsdp")]
    assert [each.runtime.memory.loss_bytes for each in found] == [4, None]


@pytest.mark.parametrize(("word", "replicate", "shard"), [
    (None, 1, 16), ("HYBRID_SHARD", 2, 8), ("FSDP2 degree 4", 4, 4), ("ZeRO-1 over 8 ranks (hybrid)", 2, 8),
    ("dcn_FSDP=2; dcn_DP=1; ici_FSDP=4", 2, 8), ("FULL_SHARD", 1, 16),
])  # fmt: skip
def test_the_shard_group_is_read_from_the_word(word: str | None, replicate: int, shard: int) -> None:
    sizes = run(
        runtime="fsdp", parallel__zero_stage=3, parallel__fsdp=word, parallel__pp=1, parallel__tp=1, parallel__dp=16
    )
    parallel = sizes.plan.parallel
    assert (parallel.data_parallel_replicate_size, parallel.data_parallel_shard_size) == (replicate, shard)


def test_selective_is_core_attention_in_the_megatron_family_alone() -> None:
    plan = run(parallel__recompute="selective").plan
    assert {stage.recompute.kind for stage in plan.stages} == {"core_attention"}
    with pytest.raises(UnsupportedRunError, match="recompute 'selective' of torchtitan"):
        run(runtime="torchtitan", parallel__recompute="selective")


@pytest.mark.parametrize(("word", "found"), [
    (True, "fused"), (False, "unfused"), ("flash_attentionv1.0.8", "fused"), ("none (torch attention)", "unfused"),
    (None, "fused"),
])  # fmt: skip
def test_attention_words(word: bool | str | None, found: str) -> None:
    assert run(parallel__flash_attention=word).plan.training.attention_implementation == found


@pytest.mark.parametrize(("runtime", "method"), [
    ("megatron", "ring"), ("nemo", "ring"), ("torchtitan", "all_gather"), ("deepspeed", "all_to_all"),
])  # fmt: skip
def test_the_framework_says_how_a_sequence_is_cut(runtime: str, method: str) -> None:
    stage = 2 if runtime == "torchtitan" else 1
    parallel = run(
        runtime=runtime, parallel__pp=1, parallel__cp=2, parallel__dp=4, parallel__zero_stage=stage
    ).plan.parallel
    assert (parallel.context_parallel_size, parallel.context_parallel_method) == (2, method)
    assert (parallel.data_parallel_size, parallel.num_devices, parallel.zero_stage) == (4, 16, stage)


def test_context_ranks_alone_share_the_optimizer_s_state() -> None:
    parallel = run(parallel__pp=1, parallel__cp=8, parallel__dp=1).plan.parallel
    assert (parallel.zero_stage, parallel.data_parallel_shard_size) == (1, 1)


@pytest.mark.parametrize(("runtime", "word", "recipe"), [
    ("megatron", "fp8", "delayed"), ("nemo", "FP8", "delayed"), ("nemo", "FP8-CS", "current"), ("nemo", "FP8-MX", "mxfp8"),
    ("nemo", "FP8-alt-granularity", "mxfp8"), ("torchtitan", "fp8", "current"), ("torchtitan", "fp8 rowwise", "rowwise"),
    ("composer-fsdp", "fp8", "delayed"), ("megatron", "bf16", None),
])  # fmt: skip
def test_fp8_words(runtime: str, word: str, recipe: str | None) -> None:
    one = {
        "parallel__pp": 1,
        "parallel__tp": 1,
        "parallel__dp": 16,
        "parallel__zero_stage": None,
        "parallel__recompute": "none",
    }
    adapted = run(runtime=runtime, hardware__gpu="H100-80GB", parallel__dtype=word, **one)
    precision = adapted.plan.training.precision
    assert (precision.compute, precision.fp8_recipe) == ("bf16", recipe)
    assert precision in adapted.runtime.precisions.values()


@pytest.mark.parametrize(("runtime", "word", "name"), [
    ("nemo", "bf16", "bf16-gradients"), ("nemo", "FP8-CS", "fp8-current-bf16-gradients"),
    ("megatron", "bf16", "bf16"), ("megatron", "fp8", "fp8"), ("fsdp", "bf16", "bf16-reduce"), ("composer-fsdp", "bf16", "bf16"),
])  # fmt: skip
def test_gradients_of_nvidia_s_benchmarks_and_of_fsdp_are_reduced_in_bf16(runtime: str, word: str, name: str) -> None:
    one = {"parallel__pp": 1, "parallel__tp": 1, "parallel__dp": 16, "parallel__zero_stage": None}
    adapted = run(runtime=runtime, hardware__gpu="H100-80GB", parallel__dtype=word, **one)
    assert adapted.plan.training.precision == adapted.runtime.precisions[name]


@pytest.mark.parametrize(("runtime", "squared"), [("hf-deepspeed", True), ("deepspeed", False)])
def test_the_trainer_s_reduction_bucket_has_hidden_squared_elements(runtime: str, squared: bool) -> None:
    zero3 = {"parallel__pp": 1, "parallel__tp": 1, "parallel__dp": 16, "parallel__zero_stage": 3}
    adapted = run(runtime=runtime, **zero3)
    assert adapted.runtime.memory.hidden_squared_bucket is squared


@pytest.mark.parametrize(("extra", "tensor", "found"), [
    (None, 2, None),
    ({"checkpoints_in_cpu": True, "layers_per_checkpoint": 1}, 1, "activation checkpoints in host memory"),
    ({"partitioned_checkpoints": True}, 1, None),
    ({"partitioned_checkpoints": True}, 2, "activation checkpoints cut over tensor-parallel ranks"),
    ({"checkpoints_in_cpu": False, "layers_per_checkpoint": 2}, 2, "activation checkpoints of 2 layers each"),
    ({"checkpoints_in_cpu": "no", "layers_per_checkpoint": "two"}, 2, None),
])  # fmt: skip
def test_savings_of_memory_that_are_not_modelled(extra: dict[str, Any] | None, tensor: int, found: str | None) -> None:
    row = RunRow.model_validate(vary(parallel__extra=extra, parallel__tp=tensor))
    assert unmodelled_memory(row.parallel) == found


@pytest.mark.parametrize(("measured", "ran"), [
    ({"oom": False}, False), ({"oom": False, "extra": {"total_gib": 104.8}}, False), ({"step_time_s": 1.0}, True),
    ({"tflops_per_gpu": 117}, True), ({"extra": {"peak_reserved_gib": 80}}, True),
])  # fmt: skip
def test_a_run_left_a_figure(measured: dict[str, Any], ran: bool) -> None:
    assert was_measured(RunRow.model_validate(vary(measured=measured))) is ran


def test_a_device_without_bf16_computes_in_fp16_and_unfused() -> None:
    plan = run(hardware__gpu="V100-32GB", parallel__dtype=None, parallel__flash_attention=None).plan
    assert (plan.training.precision.compute, plan.training.attention_implementation) == ("fp16", "unfused")


@pytest.mark.parametrize(("changes", "reason"), [
    ({"model__moe": {"n_experts": 8}}, "mixture of experts"),
    ({"parallel__cp": 2}, "tp 2 x pp 2 x cp 2 x dp 4 is not 16 devices"),
    ({"parallel__extra": {"task": "LoRA"}}, "LoRA"),
    ({"parallel__offload": "optimizer_cpu"}, "offload 'optimizer_cpu'"),
    ({"parallel__dtype": "fp8"}, "A100-SXM-80GB does not support precision fp8; use bf16"),
    ({"parallel__dtype": "NVFP4"}, "dtype 'NVFP4'; known: bf16, .*fp8-mx"),
    ({"parallel__schedule": "ZB-1p"}, "schedule 'ZB-1p'"),
    ({"parallel__schedule": "interleaved 1F1B"}, "without the number of chunks"),
    ({"parallel__optimizer": "bnb 8-bit Adam"}, "optimizer 'bnb 8-bit Adam'"),
    ({"parallel__recompute": "selective (op)"}, "recompute 'selective .op.'"),
    ({"parallel__zero_stage": None, "parallel__fsdp": "Megatron-FSDP group 8"}, "Megatron-FSDP"),
    ({"model__hidden": None}, "the row lacks model.hidden"),
    ({"hardware__n_gpus": None}, "the row lacks hardware.n_gpus"),
    ({"parallel__global_batch": None}, "the row lacks parallel.global_batch"),
    ({"parallel__global_batch": None, "parallel__grad_accum": 1e12}, "no global batch between"),
    ({"parallel__fsdp": "degree 3"}, "a shard group of 3 does not divide dp 4"),
    ({"parallel__global_batch": 30}, "does not divide the global batch 30"),
    ({"parallel__dp": 8}, "tp 2 x pp 2 x dp 8 is not 16 devices"),
    ({"parallel__pp": 64, "parallel__dp": None}, "tp 2 x pp 64 does not divide 16"),
    ({"model__n_heads": 31}, "not a multiple"),
])  # fmt: skip
def test_what_is_not_modelled_says_so(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedRunError, match=reason):
        run(**changes)


def test_an_unknown_accelerator_is_told_apart() -> None:
    with pytest.raises(UnknownAcceleratorError, match="unknown accelerator 'TPU v4'"):
        run(hardware__gpu="TPU v4", model__moe={"n_experts": 8})


def test_step_times_come_from_throughput_where_they_are_not_stated() -> None:
    row = RunRow.model_validate(vary(measured={"tokens_per_s_per_gpu": 2048.0}))
    assert step_time_seconds(row) == pytest.approx(64 * 4096 / (2048 * 16))  # tokens / (rate x devices) = 8 s
    stated = RunRow.model_validate(vary(measured={"step_time_s": 8.0}))
    assert tokens_per_second_per_device(stated) == pytest.approx(2048.0)
    derived = RunRow.model_validate(vary(measured={"extra": {"step_time_s_derived": 3.5}}))
    assert step_time_seconds(derived) == 3.5


def test_the_tables_name_known_frameworks() -> None:
    assert {*BY_WORD.values(), *BY_SOURCE.values(), *BY_DATASET.values()} <= set(FRAMEWORKS)
    row = RunRow.model_validate(vary(runtime=None, dataset="oneflow_dlperf", parallel__extra={"framework": "oneflow"}))
    assert framework_of(row) == "oneflow"
    assert framework_of(RunRow.model_validate(vary(runtime=None, dataset="mosaic"))) == "composer-fsdp"
    assert framework_of(RunRow.model_validate(vary(runtime=None))) == "unknown"

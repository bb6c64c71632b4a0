"""DeepSpeed, accelerate and transformers, both ways; tests/frameworks asks their own parsers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from generated_plans import drawn_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_plans import neutral, plan_for

from costmodel.specs import InputError, Plan, Rejection
from meshwright import make_plan
from meshwright.exporters import EXPORTERS, losses_of, reject, render
from meshwright.importing import import_plan

MODELS = ("llama-3-8b", "qwen2.5-7b", "opt-13b", "gpt2-xl", "gemma-2-9b", "phi-4")
DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
}


def read(target: str, content: dict[str, Any] | str, name: str = "config") -> Any:
    text = content if isinstance(content, str) else json.dumps(content)
    reader = EXPORTERS[target].read
    assert reader is not None
    return reader({f"{name}.json": text})


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("deepspeed", ("launch.sh", "ds_config.json")),
        ("accelerate", ("launch.sh", "accelerate.yaml")),
        ("transformers", ("launch.sh", "training_args.json")),
    ],
)
def test_the_files(target: str, names: tuple[str, ...], golden: Callable[[str, str], None]) -> None:
    files = render(plan_for(target), target)
    assert isinstance(files, dict), files
    assert list(files) == [*names, "plan.manifest.json"]
    for name in names:
        golden(f"{target}_{name}", files[name])


@pytest.mark.parametrize("target", ["accelerate", "transformers"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_plans_for_deepspeed_come_back_through_both(target: str, seed: int) -> None:
    exporter = EXPORTERS[target]
    plan = drawn_plan(seed, "deepspeed", MODELS, lambda plan: reject(exporter, plan) is None)
    files = render(plan, target)
    assert isinstance(files, dict)
    assert exporter.read is not None
    again, losses = import_plan(exporter.read(files), plan.model, plan.cluster), losses_of(exporter, plan)
    assert neutral(again, losses) == neutral(plan, losses)
    assert again.runtime.name == "deepspeed"


def of_deepspeed(**sizes: Any) -> Plan:
    return make_plan(
        "llama-3-8b", "2x8xH100-SXM", global_batch_size=16, sequence_length=4096, sizes=sizes, runtime="deepspeed"
    )


@pytest.mark.parametrize(
    ("target", "sizes", "rule"),
    [
        ("deepspeed", {"zero_stage": 3, "data_parallel_replicate_size": 2}, "export_deepspeed_hybrid_shard"),
        (
            "deepspeed",
            {"zero_stage": 1, "tensor_parallel_size": 2, "sequence_parallel": True},
            "export_deepspeed_sequence_parallel",
        ),
        (
            "deepspeed",
            {
                "zero_stage": 1,
                "tensor_parallel_size": 2,
                "context_parallel_size": 2,
                "context_parallel_method": "all_to_all",
            },
            "export_deepspeed_tensor_and_context",
        ),
        (
            "accelerate",
            {"zero_stage": 1, "tensor_parallel_size": 2},
            "export_accelerate_deepspeed_tensor_parallel_size",
        ),
        (
            "accelerate",
            {"zero_stage": 3, "hierarchical_partition_size": 8},
            "export_accelerate_hierarchical_partition_size",
        ),
        ("transformers", {"zero_stage": 1, "tensor_parallel_size": 2}, "export_transformers_tensor_parallel_size"),
    ],
)
def test_what_they_cannot_express(target: str, sizes: dict[str, Any], rule: str) -> None:
    rejection = render(of_deepspeed(**sizes), target)
    assert isinstance(rejection, Rejection)
    assert rejection.rule == rule
    assert rejection.fix


def test_the_batch_follows_from_the_devices() -> None:
    """2 samples x 4 accumulated x 16 devices."""
    plan = import_plan(read("deepspeed", DEEPSPEED), "llama-3-8b", "2x8xH100-SXM", sequence_length=4096)
    assert plan.training.global_batch_size == 128
    assert plan.parallel.data_parallel_shard_size == 16


def test_auto_is_left_to_the_training_arguments() -> None:
    automatic = {
        key: "auto" for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    }
    given = {
        "output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True,
        "deepspeed": {**automatic, "zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}},
    }  # fmt: skip
    found = read("transformers", given)
    assert (found.sizes["micro_batch_size"], found.sizes["num_micro_batches"]) == (2, 4)
    assert (found.training["precision"], found.runtime) == ("bf16", "deepspeed")


def test_mics_of_older_releases_is_read() -> None:
    found = read("deepspeed", DEEPSPEED | {"zero_optimization": {"stage": 3, "mics_shard_size": 8}})
    plan = import_plan(found, "llama-3-8b", "2x8xH100-SXM", sequence_length=4096)
    assert (plan.parallel.data_parallel_replicate_size, plan.parallel.data_parallel_shard_size) == (2, 8)


FSDP1 = {"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}


@pytest.mark.parametrize(
    ("fsdp", "sizes"),
    [
        ({"fsdp_version": 2}, (1, 16, 3)),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": False}, (1, 16, 2)),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, (1, 16, 2)),
        ({"fsdp_sharding_strategy": 1}, (1, 16, 3)),
        (FSDP1, (2, 8, 3)),
    ],
)
def test_fsdp_as_people_write_it(fsdp: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    config = {
        "distributed_type": "FSDP",
        "num_processes": 16,
        "num_machines": 2,
        "mixed_precision": "bf16",
        "fsdp_config": fsdp,
    }
    found = read("accelerate", yaml.safe_dump(config), name="c")
    plan = import_plan(found, "llama-3-8b", "2x8xH100-SXM", sequence_length=4096, global_batch_size=16)
    parallel = plan.parallel
    assert (parallel.data_parallel_replicate_size, parallel.data_parallel_shard_size, parallel.zero_stage) == sizes
    assert any("FSDP 1" in warning for warning in found.warnings) == ("fsdp_version" not in fsdp)


@pytest.mark.parametrize(
    ("target", "content", "message"),
    [
        ("deepspeed", '{"zero_optimization": {"stage": 3}, "train_batch', "config.json is not valid JSON.*truncated"),
        ("deepspeed", '{"zero_optimization": {"stage": 3}, "bf16": {}, "bf16": {}}', "'bf16' stands twice"),
        ("deepspeed", DEEPSPEED | {"zero_optimization": {"stage": "three"}}, "zero_optimization.stage is .*three"),
        ("deepspeed", DEEPSPEED | {"optimizer": {"type": "OneBitAdam"}}, "optimizer.type is .*OneBitAdam"),
        ("deepspeed", DEEPSPEED | {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "device is cpu"),
        ("deepspeed", DEEPSPEED | {"pipeline": {"stages": 4}}, "pipeline.stages is 4"),
        ("deepspeed", {"zero_optimization": {"stage": 3}}, "neither train_batch_size nor train_micro_batch_size_per_gpu"),
        ("accelerate", "distributed_type: FSDP\nfsdp_config: {", "the config: not valid YAML at line 3"),
        ("accelerate", "distributed_type: TPU\n", "distributed_type is .*TPU"),
        ("accelerate", "distributed_type: FSDP\nmixed_precision: fp8\n", "mixed_precision is fp8"),
        ("accelerate", "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}\n", "offload_params is true"),
        ("accelerate", "distributed_type: MULTI_GPU\nparallelism_config: {parallelism_config_dp_shard_size: 8}\n", "needed FSDP"),
        ("transformers", {"per_device_train_batch_size": "two"}, "per_device_train_batch_size is .*two"),
        ("transformers", {"per_device_train_batch_size": 1, "fsdp": "full_shrd"}, "fsdp is .*full_shrd"),
        (
            "transformers",
            {"per_device_train_batch_size": 1, "deepspeed": DEEPSPEED},
            "deepspeed.train_micro_batch_size_per_gpu is 2, but the training arguments say 1",
        ),
    ],
)  # fmt: skip
def test_configs_that_cannot_be(target: str, content: dict[str, Any] | str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(target, content)

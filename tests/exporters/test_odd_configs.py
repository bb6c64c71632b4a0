"""Configs that no framework wrote: each is one error that names the key, and none is read as something that it does not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.specs import InputError
from meshwright.exporters.imported import Imported
from meshwright.importing import import_plan, read_config

ZERO = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3}}
ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "bf16": True,
    "fsdp": True,
    "fsdp_config": {"version": 2},
}
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
MEGATRON = "--num-layers 32 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --bf16"
TITAN = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b --training.seq_len 4096"
DIGITS = "9" * 5000


def read(folder: Path, content: str | dict[str, Any], *, target: str | None = None) -> Imported:
    file = folder / ("config.json" if isinstance(content, dict) or content.startswith("{") else "config.yaml")
    file.write_text(json.dumps(content) if isinstance(content, dict) else content)
    return read_config(file, target=target)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"zero_optimization": {"stage": 2}, "train_ba',
            "config.json is not valid JSON: line 1, column 37: .*truncated",
        ),
        ('{"zero_optimization": {"stage": 2}, "bf16": {}, "bf16": {}}', "'bf16' stands twice"),
        ('{"zero_optimization": {"stage": 2}, "gradient_clipping": NaN}', "found NaN"),
        ('{"zero_optimization":' * 10_000, "nested too deeply"),
        (FSDP + "mixed_precision: fp16\n", "line 4.*the key mixed_precision stands twice"),
        (FSDP + "fsdp_config: {fsdp_version: 2, fsdp_version: 1}\n", "the key fsdp_version stands twice"),
        ("distributed_type: " + "[" * 20_000, "nested too deeply|not valid YAML"),
        (
            "distributed_type: FSDP\nfsdp_config: &a\n  fsdp_version: *a\n",
            r"an alias \(\*name\) stands inside what it names",
        ),
        ("distributed_type: FSDP\nnum_processes: 2024-13-40\n", "a number or date that cannot be read"),
    ],
)
def test_what_is_no_config_at_all_says_why_without_naming_a_format(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


def test_aliases_that_multiply_are_not_written_out(tmp_path: Path) -> None:
    """Nine keys of nine aliases each: 400 million words, which a message would take minutes to shorten."""
    keys = ("debug", "commands", "tpu_env", "tpu_vm", "tpu_name", "tpu_zone", "gpu_ids", "command_file", "machine_rank")
    lines = [f"{key}: &a{at} [{', '.join(['x' if not at else f'*a{at - 1}'] * 9)}]" for at, key in enumerate(keys)]
    with pytest.raises(InputError, match=r"aliases .* multiply to millions"):
        read(tmp_path, "\n".join([*lines, "distributed_type: FSDP", "mixed_precision: *a8", ""]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ZERO | {"zero_optimization": {"stage": "auto"}}, "zero_optimization.stage is 'auto', which nobody fills in"),
        (ZERO | {"tensor_parallel": {"autotp_size": "auto"}}, "tensor_parallel.autotp_size is 'auto'"),
        (ZERO | {"bf16": {"enable": True}}, "unknown DeepSpeed key in bf16 'enable'; did you mean enabled"),
        (ZERO | {"tensor_parallel": {"autotp": 2}}, "unknown DeepSpeed key in tensor_parallel 'autotp'"),
        (ZERO | {"activation_checkpointing": {"num_checkpoints": 2}}, "in activation_checkpointing 'num_checkpoints'"),
        (ZERO | {"optimizer": ADAMW | {"params": {"beta": 1}}}, "in optimizer.params 'beta'; did you mean betas"),
        (ZERO | {"optimizer": ADAMW | {"params": {"amsgrad": True}}}, "optimizer.params.amsgrad is true"),
        (ZERO | {"optimizer": ADAMW | {"params": {"betas": [0.9, 2.0]}}}, "optimizer.params.betas: found 2.0; needed .*below 1"),
        (ZERO | {"optimizer": ADAMW | {"params": {"betas": [True, 0.9]}}}, "optimizer.params.betas is .*needed two numbers"),
        (ZERO | {"optimizer": ADAMW | {"params": {"eps": 0}}}, "optimizer.params.eps: found 0.0; needed a number above 0"),
        (ZERO | {"pipeline": {"stages": "4"}}, "pipeline.stages is '4'; needed a whole number"),
        (ARGUMENTS | {"adam_beta2": 1}, "adam_beta2: found 1.0; needed a number below 1"),
        (ARGUMENTS | {"adam_epsilon": 0}, "adam_epsilon: found 0.0"),
        (ARGUMENTS | {"per_device_train_batch_size": "auto"}, "per_device_train_batch_size is 'auto'; needed a whole number"),
        (ARGUMENTS | {"fsdp_config": {"version": 2, "fsdp_version": 1}}, "fsdp_config has both version and fsdp_version"),
        (ARGUMENTS | {"fsdp_config": {"version": DIGITS}}, "fsdp_config.version is '9{59}"),
        (ARGUMENTS | {"deepspeed": ZERO}, "fsdp and deepspeed are both set"),
        (FSDP.replace("8", DIGITS), "number or date that cannot be read"),
        (FSDP.replace("8", f'"{DIGITS}"'), "num_processes is '9{59}"),
        (FSDP.replace("8", '"²"'), "num_processes is '²'; needed a whole number"),
        (FSDP + 'fsdp_config: {fsdp_sharding_strategy: "²"}\n', "fsdp_sharding_strategy is '²'|sharding_strategy is '²'"),
        (f"{MEGATRON} --adam-beta1 2", "--adam-beta1: found 2.0; needed a number below 1"),
        (f"{MEGATRON} --tensor-model-parallel-size {DIGITS}", "--tensor-model-parallel-size is '9{59}"),
        (f"torchrun --nproc-per-node {DIGITS} pretrain_gpt.py {MEGATRON}", "--nproc-per-node is '9{59}"),
        (f"{TITAN} --training.max_norm=-1", "--training.max_norm: found -1.0; needed a number above 0"),
        (f"{TITAN} --optimizer.param-groups.0.optimizer-kwargs.lr=-1", "kwargs.lr: found -1.0; needed a number above 0"),
    ],
)  # fmt: skip
def test_values_that_a_key_cannot_have(tmp_path: Path, content: str | dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path, content)
    assert len(str(error.value)) < 1500


def test_two_different_trainings_in_a_script_are_told(tmp_path: Path) -> None:
    """Only one can be read; the same one twice is no question."""
    launch = f"torchrun --nproc-per-node 8 pretrain_gpt.py {MEGATRON}"
    found = read(tmp_path, f"{launch}\n{launch} --tensor-model-parallel-size 2\n")
    assert found.sizes["tensor_parallel_size"] == 2
    assert any("2 different commands" in warning for warning in found.warnings)
    assert not any("different commands" in warning for warning in read(tmp_path, f"{launch}\n{launch}\n").warnings)


def test_digits_of_other_scripts_are_no_sizes(tmp_path: Path) -> None:
    """A script beside the config sets variables that may hold anything."""
    (tmp_path / "launch.sh").write_text("#!/bin/bash\nNUM_DEVICES=²\nA=" + DIGITS + "\ndeepspeed train.py\n")
    (tmp_path / "ds_config.json").write_text(json.dumps(ZERO))
    assert read_config(tmp_path).num_devices is None


def test_what_is_stated_beside_the_file_agrees_or_is_named(tmp_path: Path) -> None:
    found = read(tmp_path, ZERO | {"bf16": {"enabled": True}, "optimizer": ADAMW})
    stated = {"model": "llama-3-8b", "cluster": "8xH100-SXM", "sequence_length": 4096}
    assert import_plan(found, optimizer="adamw", precision="bf16", **stated).training.optimizer.learning_rate == 1e-3
    with pytest.raises(InputError, match="the file says optimizer adamw, but optimizer sgd is stated"):
        import_plan(found, optimizer="sgd", **stated)
    with pytest.raises(InputError, match="the file says precision bf16, but precision fp16 is stated"):
        import_plan(found, precision="fp16", **stated)


def test_the_shard_group_is_named_as_the_file_does(tmp_path: Path) -> None:
    found = read(tmp_path, ZERO | {"zero_optimization": {"stage": 3, "mics_shard_size": 3}})
    with pytest.raises(InputError, match=r"data_parallel_shard_size is zero_optimization.mics_shard_size"):
        import_plan(found, "llama-3-8b", "8xH100-SXM", sequence_length=4096)

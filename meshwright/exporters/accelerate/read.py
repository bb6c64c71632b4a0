"""accelerate's YAML -> what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.specs import InputError, OptimizerSpec
from hardware_profiles.errors import show_value
from hardware_profiles.files import parse_yaml_mapping
from meshwright.exporters.base import Files
from meshwright.exporters.deepspeed.read import find_json, read_config
from meshwright.exporters.fsdp2 import ACCELERATE_KEYS, read_fsdp
from meshwright.exporters.imported import Imported, whole_numbers
from meshwright.exporters.shell import read_script
from meshwright.exporters.tree import Tree, read_json_object

# The fields of ClusterConfig, accelerate 1.15.0, commands/config/config_args.py; it refuses others itself.
TOP_KEYS = (
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes", "machine_rank",
    "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config", "parallelism_config", "megatron_lm_config",
    "mpirun_config", "downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands",
    "tpu_vm", "tpu_env", "dynamo_config", "dynamo_backend", "fp16",
)  # fmt: skip
# What commands/launch.py reads of the sections; it takes any other key in silence.
PARALLELISM_KEYS = (
    "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "cp_comm_strategy", "sp_size", "sp_backend",
    "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation",
)  # fmt: skip
PREFIX = "parallelism_config_"
DEEPSPEED_KEYS = (
    "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_init_flag", "zero3_save_16bit_model", "zero_stage",
    "deepspeed_config_file", "deepspeed_hostfile", "deepspeed_multinode_launcher", "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names",
)  # fmt: skip
_KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_KEYS = {
    "tensor_parallel_size": "parallelism_config.parallelism_config_tp_size",
    "context_parallel_size": "parallelism_config.parallelism_config_cp_size",
    "data_parallel_replicate_size": "parallelism_config.parallelism_config_dp_replicate_size",
    "data_parallel_shard_size": "parallelism_config.parallelism_config_dp_shard_size",
    "num_micro_batches": "gradient_accumulation_steps",
    "num_devices": "num_processes",
}


def _find(files: Files) -> str | None:
    return next((text for text in files.values() if "distributed_type" in text and not text.startswith("#!")), None)


def recognises(files: Files) -> bool:
    """Whether one of the files is accelerate's."""
    return _find(files) is not None


def read(files: Files) -> Imported:
    """What an accelerate config says, and the script beside it.

    Raises:
        InputError: for a key that accelerate does not read, a value that it cannot have, and for what is not predicted here.
    """
    text = _find(files)
    if text is None:
        raise InputError("no accelerate config found; needed a YAML file with distributed_type")
    top = Tree(parse_yaml_mapping(text, "the config"), words=True)
    top.check_keys(TOP_KEYS, of="accelerate key")
    script = _script(files)
    kind = top.choice("distributed_type", _KINDS) or "NO"
    for section in ("megatron_lm_config", "mpirun_config"):
        if top.content.get(section):
            raise InputError(f"{section} is set; needed a config of FSDP, MULTI_GPU or DEEPSPEED")
    devices = script.get("NUM_DEVICES") or top.whole("num_processes")
    if kind == "DEEPSPEED":
        return _of_deepspeed(top, files, script, devices)
    sizes, recompute, warnings = _layout(top, kind, devices)
    return Imported(
        target="accelerate",
        runtime="accelerate",
        sizes=sizes | _batch(script),
        training={"sequence_length": script.get("SEQUENCE_LENGTH"), "precision": _precision(top)},
        recompute=recompute,
        num_devices=devices,
        warnings=warnings,
        ignored=top.ignored(),
        keys=_KEYS,
    )


def _script(files: Files) -> dict[str, int]:
    """Whole numbers that the script beside the config sets."""
    for text in files.values():
        if text.startswith("#!") and "accelerate" in text:
            return whole_numbers(read_script(text)[1])
    return {}


def _batch(script: dict[str, int]) -> dict[str, int]:
    names = {"micro_batch_size": "MICRO_BATCH_SIZE", "num_micro_batches": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"}
    return {name: script[variable] for name, variable in names.items() if variable in script}


def _precision(top: Tree) -> str:
    word = top.get("mixed_precision")
    word = "no" if word in (None, False) else word  # YAML reads a bare no as false
    if word == "fp8":
        raise InputError("mixed_precision is fp8, which is not predicted for accelerate; needed bf16, fp16 or no")
    if word not in ("bf16", "fp16", "no"):
        raise InputError(f"mixed_precision is {show_value(word)}; needed bf16, fp16 or no")
    return "fp32" if word == "no" else str(word)


def _layout(top: Tree, kind: str, devices: int | None) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    sizes = _parallelism(top)
    if kind != "FSDP":
        if sizes.get("data_parallel_shard_size", 1) > 1 or sizes.get("context_parallel_size", 1) > 1:
            raise InputError(f"parallelism_config shards, but distributed_type is {kind}; needed FSDP")
        return sizes | {"zero_stage": 0, "data_parallel_shard_size": 1}, "none", ()
    fsdp = read_fsdp(top.sub("fsdp_config"), known=ACCELERATE_KEYS, default_version=1, default_wrap="NO_WRAP")
    if not sizes:
        sizes = {"data_parallel_replicate_size": 1}
        nodes = top.whole("num_machines") or 1
        if fsdp.in_nodes and devices is not None:
            sizes = {"data_parallel_replicate_size": nodes, "data_parallel_shard_size": devices // nodes}
    elif fsdp.in_nodes:
        raise InputError(
            "fsdp_config.fsdp_sharding_strategy and parallelism_config both say how states are sharded; leave one"
        )
    if fsdp.zero_stage == 0:
        sizes = {"data_parallel_shard_size": 1}
    return sizes | {"zero_stage": fsdp.zero_stage}, fsdp.recompute or "none", fsdp.warnings


def _parallelism(top: Tree) -> dict[str, Any]:
    given = top.sub("parallelism_config")
    if not given.content:
        return {}
    given.check_keys([f"{PREFIX}{name}" for name in PARALLELISM_KEYS], of="accelerate key")

    def size(name: str) -> int:
        return given.whole(f"{PREFIX}{name}_size") or 1

    if size("sp") > 1:
        raise InputError(
            f"{given.name(f'{PREFIX}sp_size')} is {size('sp')}; it needs DeepSpeed, and its JSON is what is read here"
        )
    context = size("cp")
    if (
        context > 1
        and (given.choice(f"{PREFIX}cp_comm_strategy", ("allgather", "alltoall")) or "allgather") != "allgather"
    ):
        raise InputError(f"{given.name(f'{PREFIX}cp_comm_strategy')} is alltoall; predicted is allgather")
    return {
        "data_parallel_replicate_size": size("dp_replicate"),
        "data_parallel_shard_size": size("dp_shard"),
        "tensor_parallel_size": size("tp"),
        "context_parallel_size": context,
        "context_parallel_method": "all_gather" if context > 1 else None,
    }


def _of_deepspeed(top: Tree, files: Files, script: dict[str, int], devices: int | None) -> Imported:
    given = top.sub("deepspeed_config")
    given.check_keys(DEEPSPEED_KEYS, of="accelerate key")
    length = script.get("SEQUENCE_LENGTH")
    if "deepspeed_config_file" in given:
        found = find_json(files)
        if found is None:
            raise InputError(
                f"{given.name('deepspeed_config_file')} is {given.get('deepspeed_config_file')}; read the folder with both"
            )
        return read_config(
            read_json_object(found[1], found[0]), num_devices=devices, sequence_length=length, target="accelerate"
        )
    stage = given.whole("zero_stage", lowest=0)
    zero: dict[str, Any] = {"stage": 2 if stage is None else stage}
    for name in ("offload_optimizer", "offload_param"):
        device, path = given.get(f"{name}_device"), given.get(f"{name}_nvme_path")
        if device is not None:
            zero[name] = {"device": device} | ({"nvme_path": path} if path else {})
    batch = _batch(script)
    content = {
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": batch.get("micro_batch_size", 1),
        "gradient_accumulation_steps": given.whole("gradient_accumulation_steps") or batch.get("num_micro_batches", 1),
        "gradient_clipping": given.number("gradient_clipping") if "gradient_clipping" in given else 1.0,
    }
    word = _precision(top)
    if word != "fp32":
        content[word] = {"enabled": True}
    read = read_config(content, num_devices=devices, sequence_length=length, target="accelerate")
    norm = read.training["optimizer"].max_grad_norm
    spelled = {"zero_stage": "zero_stage", "num_micro_batches": "gradient_accumulation_steps"}
    return replace(
        read,
        training=read.training | {"optimizer": OptimizerSpec(max_grad_norm=norm)},
        recompute="none",
        ignored=top.ignored() + given.ignored(),
        keys=_KEYS | {name: f"deepspeed_config.{key}" for name, key in spelled.items()},
    )

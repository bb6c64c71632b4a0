"""DeepSpeed's JSON -> what it says, with the errors that DeepSpeed itself leaves out (`keys`)."""

from __future__ import annotations

from typing import Any

from costmodel.specs import InputError, OptimizerSpec
from hardware_profiles.errors import show_value
from meshwright.exporters.base import Files
from meshwright.exporters.deepspeed.keys import OFFLOAD, OPTIMIZERS, REMOVED_TOP, REMOVED_ZERO, TOP, ZERO
from meshwright.exporters.imported import Imported
from meshwright.exporters.shell import read_script
from meshwright.exporters.tree import Tree, read_json_object, try_json_object

_MARKS = frozenset(
    {
        "zero_optimization",
        "train_micro_batch_size_per_gpu",
        "train_batch_size",
        "gradient_accumulation_steps",
        "bf16",
        "fp16",
    }
)
_KEYS = {
    "zero_stage": "zero_optimization.stage",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "num_micro_batches": "gradient_accumulation_steps",
    "global_batch_size": "train_batch_size",
    "hierarchical_partition_size": "zero_optimization.zero_hpz_partition_size",
    "tensor_parallel_size": "tensor_parallel.autotp_size",
    "context_parallel_size": "sequence_parallel_size",
    "precision": "bf16, fp16",
    "num_devices": "NUM_DEVICES",
}


def find_json(files: Files) -> tuple[str, str] | None:
    """The file that is a DeepSpeed config, with its text; None where there is none."""
    for name, text in files.items():
        content = try_json_object(text)
        marks = _MARKS & set(content)
        if "zero_optimization" in marks or (
            len(marks) > 1 and not {"per_device_train_batch_size", "fsdp"} & set(content)
        ):
            return name, text
    return None


def recognises(files: Files) -> bool:
    """Whether one of the files is a DeepSpeed config, and none the config of what starts DeepSpeed with it."""
    others = ("distributed_type:", "per_device_train_batch_size")
    return find_json(files) is not None and not any(mark in text for mark in others for text in files.values())


def read(files: Files) -> Imported:
    """What a DeepSpeed config says, and the script beside it.

    Raises:
        InputError: for a key that DeepSpeed does not read, a value that it does not take or cannot mean, and for what is not
            predicted here.
    """
    found = find_json(files) or next(
        ((name, text) for name, text in files.items() if text.lstrip().startswith("{")), None
    )
    if found is None:
        raise InputError("no DeepSpeed config found; needed a JSON file with zero_optimization and the batch")
    variables = {}
    for text in files.values():
        if text.startswith("#!") and "deepspeed" in text:
            variables = read_script(text)[1]
    return read_config(
        read_json_object(found[1], found[0]),
        num_devices=_number(variables.get("NUM_DEVICES")),
        sequence_length=_number(variables.get("SEQUENCE_LENGTH")),
    )


def _number(word: str | None) -> int | None:
    return int(word) if word and word.isdigit() else None


def read_config(
    content: dict[str, Any],
    *,
    num_devices: int | None = None,
    sequence_length: int | None = None,
    target: str = "deepspeed",
) -> Imported:
    """What the JSON says; see `read`.

    Args:
        content: of the file.
        num_devices: processes, where they are known.
        sequence_length: where it is known; the JSON does not hold it.
        target: whose files it is part of.
    """
    top = Tree(content)
    top.check_keys(TOP | REMOVED_TOP, of="DeepSpeed key")
    zero = top.sub("zero_optimization")
    warnings = [f"{key} is not predicted, and DeepSpeed 0.19.8 refuses it" for key in content if key in REMOVED_TOP]
    stage = zero.whole("stage", lowest=0) or 0
    if stage > 3:
        raise InputError(f"zero_optimization.stage is {stage}; needed 0 to 3")
    _check_zero(zero, stage, warnings)
    _refuse(top)
    sizes = _sizes(top, zero, stage, num_devices)
    return Imported(
        target=target,
        runtime="deepspeed",
        sizes=sizes,
        training={
            "global_batch_size": top.whole("train_batch_size") if sizes["tensor_parallel_size"] == 1 else None,
            "sequence_length": sequence_length,
            "precision": _precision(top),
            "optimizer": _optimizer(top, warnings),
        },
        recompute=_recompute(top, warnings),
        num_devices=num_devices,
        warnings=tuple(warnings),
        ignored=top.ignored() + zero.ignored(),
        keys=_KEYS,
    )


def _check_zero(zero: Tree, stage: int, warnings: list[str]) -> None:
    zero.check_keys(ZERO | REMOVED_ZERO, of="DeepSpeed key")
    for name in ("offload_param", "offload_optimizer"):
        offload = zero.sub(name)
        offload.check_keys(OFFLOAD, of="DeepSpeed key")
        device = offload.choice("device", ("none", "cpu", "nvme"))
        if device in (None, "none"):
            continue
        if name == "offload_param" and stage != 3:
            raise InputError(
                f"zero_optimization.offload_param is set with zero_optimization.stage {stage}; parameters are offloaded by "
                "stage 3 alone (DeepSpeed says nothing)"
            )
        if device == "nvme" and offload.get("nvme_path") is None:
            raise InputError(
                f"{offload.name('device')} is nvme without {offload.name('nvme_path')} (DeepSpeed says nothing)"
            )
        raise InputError(f"{offload.name('device')} is {device}; offload is not predicted yet, needed none")
    for name in ("cpu_offload", "cpu_offload_param"):
        if zero.switch(name):
            raise InputError(f"{zero.name(name)} is true; offload is not predicted yet, needed false")
    for name in ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"):
        if zero.switch(name):
            warnings.append(f"{zero.name(name)} is true; messages are predicted as sent in 16 bits")
    if zero.switch("legacy_stage1"):
        warnings.append("zero_optimization.legacy_stage1 is true; predicted as today's stage 1")


def _refuse(top: Tree) -> None:
    if top.sub("torch_autocast").switch("enabled"):
        raise InputError(
            "torch_autocast.enabled is true; it keeps 32-bit weights, which is not predicted for DeepSpeed"
        )
    if "expert_parallel" in top:
        raise InputError("expert_parallel is set; models with experts are not predicted yet, leave it out")
    stages = top.sub("pipeline").content.get("stages")
    if isinstance(stages, int) and stages > 1:
        raise InputError(f"pipeline.stages is {stages}; DeepSpeed's pipelines are Megatron-DeepSpeed's here, needed 1")


def _sizes(top: Tree, zero: Tree, stage: int, num_devices: int | None) -> dict[str, Any]:
    tensor = top.sub("tensor_parallel")
    context = top.whole("sequence_parallel_size") or 1
    tensor_size = tensor.whole("autotp_size", lowest=0) or 1
    data, rest = divmod(num_devices, context * tensor_size) if num_devices is not None else (None, 0)
    if rest:
        raise InputError(
            f"{num_devices} processes are not divisible by tensor_parallel.autotp_size {tensor_size} x "
            f"sequence_parallel_size {context}"
        )
    sizes: dict[str, Any] = {
        "zero_stage": stage,
        "micro_batch_size": top.whole("train_micro_batch_size_per_gpu"),
        "num_micro_batches": top.whole("gradient_accumulation_steps"),
        "tensor_parallel_size": tensor_size,
        "loss_parallel": bool(tensor.switch("vocab_parallel_lm_head")) and tensor_size > 1,
        "context_parallel_size": context,
        "context_parallel_method": "all_to_all" if context > 1 else None,
        "hierarchical_partition_size": _hpz(zero, stage, num_devices),
    }
    _check_batch(top, sizes, data)
    mics = zero.whole("mics_shard_size", lowest=-1)
    if mics is not None and mics > 0:
        if stage != 3:
            raise InputError(
                f"zero_optimization.mics_shard_size is {mics} with zero_optimization.stage {stage}; needed stage 3"
            )
        return sizes | {"data_parallel_shard_size": mics}
    if stage > 0:
        return sizes | {"data_parallel_replicate_size": 1}
    return sizes | {"data_parallel_shard_size": 1}


def _hpz(zero: Tree, stage: int, num_devices: int | None) -> int | None:
    key = "zero_hpz_partition_size"
    size = zero.whole(key, lowest=0) or 1
    if size == 1:
        return None
    if stage != 3:
        raise InputError(
            f"{zero.name(key)} is {size} with zero_optimization.stage {stage}; needed stage 3 (DeepSpeed says nothing)"
        )
    if num_devices is not None and num_devices % size:
        raise InputError(
            f"{zero.name(key)} {size} does not divide the {num_devices} processes (DeepSpeed says nothing)"
        )
    return size


def _check_batch(top: Tree, sizes: dict[str, Any], data: int | None) -> None:
    """train_batch_size = micro batch x accumulation x data-parallel ranks, as far as they are stated."""
    total, size, count = top.whole("train_batch_size"), sizes["micro_batch_size"], sizes["num_micro_batches"]
    if total is None and size is None:
        raise InputError(
            "neither train_batch_size nor train_micro_batch_size_per_gpu says how many samples a step takes"
        )
    if total is None and count is None:
        sizes["num_micro_batches"] = 1  # DeepSpeed's default
    elif total is not None and size is None and count is None:
        sizes["num_micro_batches"] = 1
    if total is None or size is None or sizes["tensor_parallel_size"] > 1:
        return
    if count is None:  # DeepSpeed divides
        sizes["num_micro_batches"] = count = max(total // (size * data), 1) if data else None
    if count is None:
        return
    if total % (size * count) or (data is not None and size * count * data != total):
        ranks = f" x {data} data-parallel ranks" if data is not None else ""
        raise InputError(
            f"train_batch_size {total} is not train_micro_batch_size_per_gpu {size} x gradient_accumulation_steps {count}{ranks}"
        )


def _precision(top: Tree) -> str | None:
    both = [top.sub(name) for name in ("bf16", "bfloat16", "fp16")]
    on = [tree.path for tree in both if tree.switch("enabled")]
    if "fp16" in on and len(on) > 1:
        raise InputError(f"{' and '.join(on)} are both enabled; needed one of them")
    if any(tree.content.get("enabled") == "auto" for tree in both) and not on:
        return None
    return "fp16" if "fp16" in on else "bf16" if on else "fp32"


def _optimizer(top: Tree, warnings: list[str]) -> OptimizerSpec | None:
    clipping = top.number("gradient_clipping")
    norm = (
        None
        if clipping == 0 or (clipping is None and top.content.get("gradient_clipping") is None)
        else clipping or 1.0
    )
    if "optimizer" not in top:
        warnings.append("the optimizer is the training script's; predicted as AdamW with two 32-bit moments")
        return OptimizerSpec(max_grad_norm=norm)
    given = top.sub("optimizer")
    word, params = given.get("type"), given.sub("params")
    if not isinstance(word, str) or word.lower() not in OPTIMIZERS:
        raise InputError(f"optimizer.type is {show_value(word)}; predicted are Adam, AdamW and SGD")
    name = OPTIMIZERS[word.lower()]
    betas = params.get("betas")
    if betas is not None and not (
        isinstance(betas, list) and len(betas) == 2 and all(isinstance(b, float | int) for b in betas)
    ):
        raise InputError(f"optimizer.params.betas is {show_value(betas)}; needed two numbers")
    stated = {
        "learning_rate": params.number("lr"),
        "weight_decay": params.number("weight_decay"),
        "betas": tuple(betas) if betas else None,
        "epsilon": params.number("eps"),
        "momentum": params.number("momentum") if name == "sgd" else None,
    }
    return OptimizerSpec.model_validate(
        {"name": name, "max_grad_norm": norm, **{key: value for key, value in stated.items() if value is not None}}
    )


def _recompute(top: Tree, warnings: list[str]) -> str:
    """Full where the config counts checkpoints; DeepSpeed recomputes what the model's code gives it."""
    section = top.sub("activation_checkpointing")
    if section.whole("number_checkpoints", lowest=0):
        return "full"
    for name in ("partition_activations", "cpu_checkpointing"):
        if section.switch(name):
            warnings.append(f"{section.name(name)} is true; activations are predicted as whole ones on the device")
    warnings.append(
        "recomputation is the model's own code; predicted without (activation_checkpointing.number_checkpoints says full)"
    )
    return "none"

"""DeepSpeed's JSON -> what it says, with the errors that DeepSpeed itself leaves out (`keys`)."""

from __future__ import annotations

from typing import Any

from costmodel.specs import InputError
from meshwright.exporters.base import Files
from meshwright.exporters.deepspeed.keys import OFFLOAD, REMOVED_TOP, REMOVED_ZERO, TOP, ZERO
from meshwright.exporters.deepspeed.training import check_sections, read_optimizer, read_precision, read_recompute
from meshwright.exporters.imported import Imported, whole_numbers
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
_MICS = "mics_shard_size"
_KEYS = {
    "zero_stage": "zero_optimization.stage",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "num_micro_batches": "gradient_accumulation_steps",
    "global_batch_size": "train_batch_size",
    "hierarchical_partition_size": "zero_optimization.zero_hpz_partition_size",
    "tensor_parallel_size": "tensor_parallel.autotp_size",
    "context_parallel_size": "sequence_parallel_size",
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
    variables: dict[str, int] = {}
    for text in files.values():
        if text.startswith("#!") and "deepspeed" in text:
            variables = whole_numbers(read_script(text)[1])
    return read_config(
        read_json_object(found[1], found[0]),
        num_devices=variables.get("NUM_DEVICES"),
        sequence_length=variables.get("SEQUENCE_LENGTH"),
    )


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
    check_sections(top)
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
            "precision": read_precision(top),
            "optimizer": read_optimizer(top, warnings),
        },
        recompute=read_recompute(top, warnings),
        num_devices=num_devices,
        warnings=tuple(warnings),
        ignored=top.ignored() + zero.ignored(),
        keys=_KEYS | ({"data_parallel_shard_size": f"zero_optimization.{_MICS}"} if _MICS in zero else {}),
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
    stages = top.sub("pipeline").whole("stages") or 1
    if stages > 1:
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
    mics = zero.whole(_MICS, lowest=-1)
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

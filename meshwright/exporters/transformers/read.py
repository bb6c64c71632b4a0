"""TrainingArguments in JSON -> what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.specs import InputError, OptimizerSpec
from hardware_profiles.errors import show_value
from meshwright.exporters.base import Files
from meshwright.exporters.deepspeed.read import find_json, read_config
from meshwright.exporters.fsdp2 import TRANSFORMERS_KEYS, Sharding, read_fsdp
from meshwright.exporters.imported import Imported, make_optimizer, whole_numbers
from meshwright.exporters.shell import read_script
from meshwright.exporters.tree import Tree, read_json_object, try_json_object

_MARKS = frozenset(
    {"per_device_train_batch_size", "gradient_checkpointing", "fsdp", "fsdp_config", "output_dir", "deepspeed"}
)
_LENGTHS = ("max_seq_length", "max_length", "model_max_length", "block_size", "cutoff_len", "max_source_length")
_LEGACY = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
# Names of the Trainer whose states are two 32-bit moments.
_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")
_OPTIMIZER_KEYS = {
    "epsilon": "adam_epsilon",
    "betas.0": "adam_beta1",
    "betas.1": "adam_beta2",
}
_KEYS = {
    "micro_batch_size": "per_device_train_batch_size",
    "num_micro_batches": "gradient_accumulation_steps",
    "sequence_length": "max_length",
    "num_devices": "NUM_DEVICES",
}


def _find(files: Files) -> tuple[str, dict[str, Any]] | None:
    for name, text in files.items():
        content = try_json_object(text)
        if len(_MARKS & set(content)) > 1 or "per_device_train_batch_size" in content:
            return name, content
    return None


def recognises(files: Files) -> bool:
    """Whether one of the files holds TrainingArguments."""
    return _find(files) is not None


def read(files: Files) -> Imported:
    """What a JSON file of TrainingArguments says, and the script beside it.

    Raises:
        InputError: for a key of fsdp_config that transformers does not read, a value that a key cannot have, contradictions
            with DeepSpeed's configuration, and for what is not predicted here.
    """
    found = _find(files)
    if found is None:
        text = next(iter(files.items()))
        found = text[0], read_json_object(text[1], text[0])
    top = Tree(found[1], auto=False)
    variables = _variables(files)
    length = next((value for key in _LENGTHS if (value := top.whole(key)) is not None), None)
    length = variables.get("SEQUENCE_LENGTH", length)
    devices = variables.get("NUM_DEVICES")
    if top.content.get("deepspeed"):
        return _of_deepspeed(top, files, devices, length)
    sharding = _sharding(top)
    sizes: dict[str, Any] = {"zero_stage": sharding.zero_stage if sharding else 0}
    sizes["data_parallel_replicate_size" if sizes["zero_stage"] else "data_parallel_shard_size"] = 1
    return Imported(
        target="transformers",
        runtime="transformers",
        sizes=sizes | _batch(top),
        training={"sequence_length": length, "precision": _precision(top), "optimizer": _optimizer(top)},
        recompute=_recompute(top, sharding),
        num_devices=devices,
        warnings=sharding.warnings if sharding else (),
        ignored=top.ignored(),
        keys=_KEYS,
    )


def _variables(files: Files) -> dict[str, int]:
    for text in files.values():
        if text.startswith("#!"):
            return whole_numbers(read_script(text)[1])
    return {}


def _batch(top: Tree) -> dict[str, int]:
    """TrainingArguments' own defaults are 8 and 1."""
    return {
        "micro_batch_size": top.whole("per_device_train_batch_size") or 8,
        "num_micro_batches": top.whole("gradient_accumulation_steps") or 1,
    }


def _precision(top: Tree) -> str:
    words = [word for word in ("bf16", "fp16") if top.switch(word)]
    if len(words) == 2:
        raise InputError("bf16 and fp16 are both true; needed one of them")
    return words[0] if words else "fp32"


def _optimizer(top: Tree) -> OptimizerSpec:
    word = top.get("optim") or "adamw_torch_fused"
    if word not in _ADAMW:
        raise InputError(f"optim is {show_value(word)}; predicted are {', '.join(_ADAMW)}")
    norm = top.number("max_grad_norm")
    betas = top.number("adam_beta1"), top.number("adam_beta2")
    stated = {
        "learning_rate": top.number("learning_rate") or 5e-5,
        "weight_decay": top.number("weight_decay") or 0.0,
        "epsilon": top.number("adam_epsilon"),
        "betas": (0.9 if betas[0] is None else betas[0], 0.999 if betas[1] is None else betas[1]),
        "max_grad_norm": 1.0 if norm is None else norm or None,
    }
    kept = {key: value for key, value in stated.items() if value is not None or key == "max_grad_norm"}
    return make_optimizer(_OPTIMIZER_KEYS, **kept)


def _sharding(top: Tree) -> Sharding | None:
    """FSDP as ``fsdp`` and ``fsdp_config`` say, None without; the old words of ``fsdp`` too."""
    given = top.get("fsdp")
    if not given:
        if "fsdp_config" in top and top.get("fsdp_config"):
            raise InputError("fsdp_config is set, but fsdp is not, so transformers does not read it; set fsdp to true")
        return None
    section = top.sub("fsdp_config")
    words = given if isinstance(given, list) else [] if given is True else str(given).split()
    for word in words:
        if word not in _LEGACY:
            raise InputError(f"fsdp is {show_value(given)}; needed true, or words of {', '.join(_LEGACY)}")
    if "offload" in words:
        raise InputError("fsdp says offload, which is not predicted yet; leave it out")
    read = read_fsdp(section, known=TRANSFORMERS_KEYS, default_version=2, default_wrap="TRANSFORMER_BASED_WRAP")
    if read.in_nodes or "hybrid_shard" in words or "hybrid_shard_zero2" in words:
        raise InputError("fsdp says hybrid_shard, which needs a mesh; write it as accelerate's parallelism_config")
    if "no_shard" in words:
        return None
    return replace(read, zero_stage=2) if "shard_grad_op" in words else read


def _recompute(top: Tree, sharding: Sharding | None) -> str:
    own = sharding.recompute if sharding else None
    return "full" if own == "full" or top.switch("gradient_checkpointing") else "none"


def _of_deepspeed(top: Tree, files: Files, devices: int | None, length: int | None) -> Imported:
    given = top.get("deepspeed")
    if top.get("fsdp"):
        raise InputError("fsdp and deepspeed are both set, which the Trainer refuses; leave one of them out")
    if isinstance(given, str):
        found = find_json({name: text for name, text in files.items() if try_json_object(text) != top.content})
        if found is None:
            raise InputError(f"deepspeed is {show_value(given)}; read the folder that holds both files")
        given = read_json_object(found[1], found[0])
    elif not isinstance(given, dict):
        raise InputError(f"deepspeed is {show_value(given)}; needed an object or the name of a file")
    own = _batch(top) | {"gradient_clipping": top.number("max_grad_norm")}
    filled = dict(given)
    pairs = {
        "train_micro_batch_size_per_gpu": own["micro_batch_size"],
        "gradient_accumulation_steps": own["num_micro_batches"],
        "gradient_clipping": 1.0 if own["gradient_clipping"] is None else own["gradient_clipping"],
    }
    for key, value in pairs.items():
        if filled.get(key, "auto") == "auto":
            filled[key] = value
        elif filled[key] != value:
            raise InputError(
                f"deepspeed.{key} is {filled[key]}, but the training arguments say {value}; needed the same, or auto"
            )
    read = read_config(filled, num_devices=devices, sequence_length=length, target="transformers")
    precision = _precision(top) if read.training["precision"] is None else read.training["precision"]
    if precision != _precision(top):
        raise InputError(f"deepspeed says {precision}, but the training arguments say {_precision(top)} (bf16, fp16)")
    return replace(
        read,
        training=read.training | {"precision": precision, "optimizer": _optimizer(top)},
        recompute="full" if top.switch("gradient_checkpointing") or read.recompute == "full" else "none",
        warnings=tuple(
            text for text in read.warnings if "model's own code" not in text and "training script's" not in text
        ),
        ignored=top.ignored(),
    )

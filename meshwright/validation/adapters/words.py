"""Words that mean different things in different places, resolved once. docs/replay.md prints these tables."""

from __future__ import annotations

import re

from costmodel.runtimes.grid import RecomputeKind
from costmodel.specs import ContextParallelMethod, Fp8Recipe, PrecisionSpec, RuntimeProfile
from hardware_profiles.types import DeviceSpec
from meshwright.validation.adapters.errors import UnsupportedRunError
from meshwright.validation.adapters.frameworks import FRAMEWORKS, UNKNOWN
from meshwright.validation.run_rows import ParallelFields

# "Selective" is core attention in the Megatron family; elsewhere it names single operations or every n-th layer.
_CORE_ATTENTION = ("selective", "selective (core_attn)", "core_attention")
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "fp16/bf16 (mixed)": "fp16"}
# The recipe, None where it is the framework's own; MaxText's and Megatron's plain "fp8" is delayed scaling.
_FP8_RECIPES: dict[str, Fp8Recipe | None] = {
    "fp8": None,
    "fp8-ds": "delayed",
    "fp8-cs": "current",
    "fp8 tensorwise": "current",
    "fp8 rowwise": "rowwise",
    "fp8-sc": "blockwise",
    "fp8-mx": "mxfp8",
    "mxfp8": "mxfp8",
    "fp8-alt-granularity": "mxfp8",
}
_FP8_OF_FRAMEWORK: dict[str, Fp8Recipe] = {"torchtitan": "current", "fsdp": "current"}
_REDUCES_LOW = ("-reduce", "-gradients")
# NeMo's launcher examples and dgxc-benchmarking up to 24.11 set optim.grad_sync_dtype bf16; the recipes of NeMo 2 in
# performance mode, its scripts/performance and Megatron-Bridge's set grad_reduce_in_fp32 False; Megatron-LM's
# examples/llama passes --grad-reduce-in-bf16. Of a profile that has no such formats those without are taken.
_LOW_REDUCING = ("fsdp", "nemo")
_CONTEXT_METHODS: dict[str, ContextParallelMethod] = {
    "torchtitan": "all_gather",
    "deepspeed": "all_to_all",
    "megatron-deepspeed": "all_to_all",
}
_SCHEDULES = {
    "1F1B": False,
    "1F1B (DeepSpeed pipeline)": False,
    "1F1B (Megatron-DeepSpeed)": False,
    "1F1B (interleaving setting not stated here)": False,
    "PipeDream-Flush 1F1B": False,
    "interleaved 1F1B": True,
    "interleaved 1F1B (max chunks: each layer a chunk)": True,
    "modified interleaved 1F1B": True,
}
_OP_POLICY = ("selective (op)", "selective (config default)")
_MEGATRON_LIKE = ("megatron", "megatron-deepspeed", "nemo", "aleph", "internevo", "oneflow")
_FOREIGN_OPTIMIZERS = ("8-bit", "cpuadam", "adafactor", "bf16 moments")
_GROUP_SIZE = re.compile(r"(?:over|degree|group) ([1-9]\d*)")
_MESH_SIZE = re.compile(r"(?:dcn|ici)_FSDP=([1-9]\d*)")


def recompute_kind(word: str | None, framework: str) -> RecomputeKind:
    """What is recomputed; a run that does not say recomputes nothing.

    Raises:
        UnsupportedRunError: for single operations and for part of the layers.
    """
    if word is None or word == "none":
        return "none"
    if word == "full" or word.startswith("full ("):
        return "full"
    if word in _CORE_ATTENTION and framework in _MEGATRON_LIKE:
        return "core_attention"
    if word in _OP_POLICY and framework in ("torchtitan", UNKNOWN):
        return "op_policy"
    raise UnsupportedRunError(f"recompute {word!r} of {framework}; known: none, full, selective (core attention)")


def precision(
    word: str | None, framework: str, runtime: RuntimeProfile, device: DeviceSpec, *, reduces_low: bool = False
) -> PrecisionSpec:
    """The number formats; unsaid, bf16 where the device has it, else fp16. In fp8 the others are those of bf16.

    Raises:
        UnsupportedRunError: for 4-bit formats, and for words not known.
    """
    if word is None:
        return runtime.precisions["bf16" if "bf16" in device.peak_flops_per_second else "fp16"]
    if word.casefold() in _FP8_RECIPES:
        recipe = _FP8_RECIPES[word.casefold()] or _FP8_OF_FRAMEWORK.get(framework, "delayed")
        return _formats(runtime, "bf16", reduces_low).model_copy(update={"fp8_recipe": recipe})
    found = _PRECISIONS.get(word.casefold())
    if found is None:
        raise UnsupportedRunError(f"dtype {word!r}; known: {', '.join((*_PRECISIONS, *_FP8_RECIPES))}")
    return _formats(runtime, found, reduces_low)


def _formats(runtime: RuntimeProfile, name: str, reduces_low: bool) -> PrecisionSpec:
    """The formats of that name; where the profile has them, those whose gradients are reduced in the compute format."""
    lower = [f"{name}{ending}" for ending in _REDUCES_LOW if reduces_low and f"{name}{ending}" in runtime.precisions]
    return runtime.precisions[lower[0] if lower else name]


def reduces_in_compute_format(parallel: ParallelFields, framework: str) -> bool:
    """Whether gradients are sent in the compute format: plain FSDP's usual mixed precision, Composer's PURE mode, and what
    NVIDIA's published benchmarks set.
    """
    return framework in _LOW_REDUCING or (parallel.extra or {}).get("composer_fsdp_mp_mode") == "PURE"


def context_parallel_method(framework: str, size: int) -> ContextParallelMethod | None:
    """How the framework cuts sequences unless told otherwise."""
    return None if size == 1 else _CONTEXT_METHODS.get(framework, "ring")


def attention_implementation(word: bool | str | None, device: DeviceSpec) -> str:
    """``fused`` or ``unfused``; unsaid, fused where the device has bf16 (flash attention needs Ampere or later)."""
    if word is None:
        return "fused" if "bf16" in device.peak_flops_per_second else "unfused"
    if isinstance(word, str):
        return "unfused" if word.casefold().startswith("none") else "fused"
    return "fused" if word else "unfused"


def pipeline_schedule(parallel: ParallelFields) -> tuple[str, int]:
    """Schedule and chunks per rank.

    Raises:
        UnsupportedRunError: for zero-bubble and other schedules, and for interleaving without a number of chunks.
    """
    if (parallel.pp or 1) == 1:
        return "none", 1
    chunks = parallel.vpp or 1
    word = parallel.schedule
    if word is not None and word not in _SCHEDULES:
        raise UnsupportedRunError(f"schedule {word!r}; known: 1F1B, interleaved 1F1B")
    if word is not None and _SCHEDULES[word] and parallel.vpp is None:
        raise UnsupportedRunError("interleaved 1F1B without the number of chunks (vpp)")
    return ("interleaved_1f1b" if chunks > 1 else "1f1b"), chunks


def zero_stage(parallel: ParallelFields, framework: str, replicas: int) -> int:
    """The ZeRO stage; one of ``replicas`` (data- and context-parallel ranks) has nothing to shard.

    Raises:
        UnsupportedRunError: for Megatron-FSDP, whose stage the sources do not say.
    """
    if replicas == 1:
        return 0
    if parallel.zero_stage is not None:
        return parallel.zero_stage
    if (parallel.fsdp or "").startswith("Megatron-FSDP"):
        raise UnsupportedRunError("Megatron-FSDP")
    return FRAMEWORKS[framework].zero_stage


def shard_size(parallel: ParallelFields, data_parallel: int, devices_per_node: int) -> int:
    """Ranks that ZeRO shards over: all, unless the row names a group, a hybrid or a mesh."""
    word = parallel.fsdp or ""
    if word == "HYBRID_SHARD":
        return min(devices_per_node, data_parallel)
    if group := _GROUP_SIZE.search(word):
        return min(int(group.group(1)), data_parallel)
    size = 1
    for part in _MESH_SIZE.findall(word):
        size *= int(part)
    return min(size, data_parallel) if size > 1 else data_parallel


def check_optimizer(word: str | None) -> None:
    """Refuse what keeps other state than two fp32 moments.

    Raises:
        UnsupportedRunError: for 8-bit, 16-bit, CPU and factored optimizers.
    """
    if word is not None and any(foreign in word.casefold() for foreign in _FOREIGN_OPTIMIZERS):
        raise UnsupportedRunError(f"optimizer {word!r}; known: Adam and AdamW with fp32 moments on the device")


def unmodelled_memory(parallel: ParallelFields) -> str | None:
    """What a run does that holds less memory than predicted and takes about as long; None where there is no such thing.

    Activation checkpoints that DeepSpeed cuts over the tensor-parallel ranks, keeps in host memory, or makes of several
    layers each (``--partition-activations``, ``--checkpoint-in-cpu``, ``--checkpoint-num-layers``).
    """
    extra, tensor = parallel.extra or {}, parallel.tp or 1
    layers = extra.get("layers_per_checkpoint")
    found = [
        "in host memory" if extra.get("checkpoints_in_cpu") is True else "",
        "cut over tensor-parallel ranks" if extra.get("partitioned_checkpoints") is True and tensor > 1 else "",
        f"of {layers} layers each" if isinstance(layers, int) and layers > 1 else "",
    ]
    named = ", ".join(filter(None, found))
    return f"activation checkpoints {named}" if named else None

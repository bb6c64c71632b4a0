"""Which framework a run used, and which runtime profile predicts it. docs/replay.md prints these tables.

Nothing here depends on a single row: a framework is named by the row itself (``runtime``), by the words of its dataset
(``parallel.extra.framework``), by its source, or by its dataset, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwright.validation.run_rows import RunRow

MemoryKind = Literal["allocated", "reserved", "device"]
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How a framework's runs become plans.

    Attributes:
        profile: the runtime profile that stands in for it.
        megatron_layers: whether its published runs trained Megatron-LM's layers, with their fused kernels.
        sequence_parallel: whether it is on under tensor parallelism when a run does not say.
        zero_stage: the stage under data parallelism when a run does not say.
        eager_loss: whether its loss is made of torch's operations, whatever the profile's is.
        memory: words of the profile's ``memory`` that differ.
    """

    profile: str
    megatron_layers: bool = False
    sequence_parallel: bool = False
    zero_stage: int = 0
    eager_loss: bool = False
    memory: Mapping[str, Any] = field(default_factory=dict)


FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework(profile="torch"),
    "torchtitan": Framework(profile="torchtitan", sequence_parallel=True, zero_stage=3),
    "composer-fsdp": Framework(profile="composer-fsdp", zero_stage=3),
    "fsdp": Framework(profile="composer-fsdp", zero_stage=3, eager_loss=True),
    "maxtext": Framework(profile="unknown", zero_stage=3),
    "bmtrain": Framework(profile="unknown", zero_stage=3),
    "nanotron": Framework(profile="nanotron", sequence_parallel=True, zero_stage=1),
    "megatron": Framework(profile="megatron"),
    "nemo": Framework(profile="nemo", sequence_parallel=True, zero_stage=1),
    "megatron-deepspeed": Framework(profile="megatron-deepspeed"),
    "deepspeed": Framework(profile="deepspeed", megatron_layers=True),
    # The Trainer's "auto" for reduce_bucket_size is hidden x hidden (transformers, integrations/deepspeed.py).
    "hf-deepspeed": Framework(profile="deepspeed", memory={"hidden_squared_bucket": True}),
    "aleph": Framework(profile="aleph", zero_stage=1),
    "internevo": Framework(profile="internevo", zero_stage=1),
    "oneflow": Framework(profile="oneflow"),
    UNKNOWN: Framework(profile="unknown"),
}

# The value of `parallel.extra.framework`.
BY_WORD = {
    "megatron": "megatron",
    "ds3d": "megatron-deepspeed",
    "ds3d-old": "megatron-deepspeed",
    "ds-zero3": "deepspeed",
    "hf-ds-zero3": "hf-deepspeed",
    "oneflow": "oneflow",
    "BMTrain": "bmtrain",
    "DeepSpeed+Megatron": "megatron-deepspeed",
}

# The beginning of `source`, for files that gather several sources.
BY_SOURCE = {
    "NVIDIA/dgxc-benchmarking maxtext": "maxtext",
    "NVIDIA/dgxc-benchmarking paxml": "maxtext",
    "foundation-model-stack/fms-fsdp": "fsdp",
    "jzhang38/TinyLlama": "fsdp",
    "NVIDIA-NeMo/Automodel": "fsdp",
    "NVIDIA-NeMo/Megatron-Bridge": "nemo",
    "NVIDIA/Megatron-LM examples": "nemo",  # of 2025: the same core, Transformer Engine and overlaps as NeMo's recipes
    "Qi et al. 2401.10241": "megatron",
    "Llama Team 2407.21783": "fsdp",
    "PyTorch blog": "torchtitan",
    "Rajbhandari et al. 1910.02054": "megatron-deepspeed",
    "OpenBMB/BMTrain": "bmtrain",
    "bigscience": "megatron-deepspeed",
    "Black et al. 2204.06745": "megatron-deepspeed",
    "Zhang et al. 2205.01068": "fsdp",
    "Zeng et al. 2210.02414": "megatron-deepspeed",
}

BY_DATASET = {
    "aleph": "aleph",
    "amp": "megatron-deepspeed",
    "bloom_prequel": "megatron-deepspeed",
    "dgxc": "nemo",
    "internevo": "internevo",
    "megatron": "megatron",
    "megatron_bridge": "nemo",
    "mosaic": "composer-fsdp",
    "nanotron_bench": "nanotron",
    "nemo": "nemo",
    "simumax_b200": "megatron",
    "torchtitan": "torchtitan",
}

# What `measured.peak_memory_gb` counts, by dataset; where it is not listed, tensors allocated.
PRINTED_MEMORY: dict[str, MemoryKind] = {
    "bigscience_gpt2_v100": "device",
    "bloom_prequel": "device",
    "oneflow_dlperf": "device",
    "torchtitan": "reserved",
}


_NOT_MEGATRON_S = 2
"""ZeRO stages from here on are DeepSpeed's where a Megatron-LM source compares itself with them (arXiv 2104.04473)."""


def framework_of(row: RunRow) -> str:
    """The name of the framework in `FRAMEWORKS`, ``unknown`` when nothing names one."""
    if row.runtime is not None:
        return row.runtime if row.runtime in FRAMEWORKS else UNKNOWN
    word = (row.parallel.extra or {}).get("framework")
    if isinstance(word, str) and word in BY_WORD:
        return BY_WORD[word]
    for beginning, name in BY_SOURCE.items():
        if row.source.startswith(beginning):
            return name
    name = BY_DATASET.get(row.dataset, UNKNOWN)
    return "deepspeed" if name == "megatron" and (row.parallel.zero_stage or 0) >= _NOT_MEGATRON_S else name

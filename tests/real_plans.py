"""Layouts of real size, for whatever runtime takes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import InputError, Plan
from hardware_profiles.loader import load_cluster
from meshwright import load_model, make_plan

# Model, nodes of 8 H100, global batch, sequence, sizes: 8 to 16,384 devices.
REAL = (
    ("llama-3-8b", 1, 64, 8192, {"zero_stage": 1}),
    ("llama-3-8b", 2, 128, 8192, {"tensor_parallel_size": 2, "zero_stage": 1, "micro_batch_size": 2}),
    ("llama-3-8b", 16, 1024, 8192, {"pipeline_parallel_size": 2, "zero_stage": 1}),
    ("qwen2.5-7b", 4, 256, 4096, {"tensor_parallel_size": 4}),
    ("mistral-7b", 8, 512, 8192, {"tensor_parallel_size": 2, "pipeline_parallel_size": 4, "zero_stage": 1}),
    ("gpt2-xl", 1, 512, 1024, {"micro_batch_size": 4}),
    ("llama-3-70b", 8, 512, 8192, {"tensor_parallel_size": 8, "pipeline_parallel_size": 4, "zero_stage": 1}),
    ("llama-3-70b", 32, 1024, 8192, {"tensor_parallel_size": 4, "pipeline_parallel_size": 8, "num_model_chunks": 5}),
    ("llama-3-70b", 40, 2048, 8192, {"tensor_parallel_size": 8, "pipeline_parallel_size": 10, "zero_stage": 1}),
    ("llama-3-70b", 128, 1024, 8192, {"tensor_parallel_size": 8, "pipeline_parallel_size": 4, "zero_stage": 1}),
    ("llama-3.1-405b", 1024, 2048, 8192, {"tensor_parallel_size": 8, "pipeline_parallel_size": 16, "zero_stage": 1}),
    ("llama-3.1-405b", 2048, 2048, 8192, {"tensor_parallel_size": 8, "pipeline_parallel_size": 16, "zero_stage": 1}),
    ("llama-3-8b", 4, 256, 8192, {"zero_stage": 3}),
    ("qwen2.5-7b", 16, 512, 4096, {"zero_stage": 3, "micro_batch_size": 2}),
)


def real_plans(runtime: str) -> list[Plan]:
    """The layouts of `REAL` that the runtime takes; sizes that it does not know are left out."""
    found = [
        _try(model, f"{nodes}x8xH100-SXM", batch, length, runtime, **sizes)
        for model, nodes, batch, length, sizes in REAL
    ]
    return [plan for plan in found if plan is not None]


def _try(model: str, cluster: str, batch: int, length: int, runtime: str, **options: Any) -> Plan | None:
    if options.get("zero_stage", 0) not in load_runtime(runtime).zero_stages:  # FSDP keeps what it gathered, or not
        options["zero_stage"] = 3 if options.get("pipeline_parallel_size", 1) == 1 else 2
    words = {
        name: options.pop(name)
        for name in ("recompute", "layers_per_stage", "precision", "attention")
        if name in options
    }
    try:
        return make_plan(
            _model(model), load_cluster(cluster), global_batch_size=batch, sequence_length=length, sizes=options,
            runtime=runtime, **words,
        )  # fmt: skip
    except InputError:
        return None


@lru_cache(maxsize=16)
def _model(name: str) -> Any:
    return load_model(name)

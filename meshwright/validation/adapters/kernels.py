"""Kernels that a run names, where they differ from those that its runtime uses by default. docs/replay.md prints the words."""

from __future__ import annotations

from typing import Any

from costmodel.specs import KernelFusion, RuntimeProfile
from meshwright.validation.adapters.frameworks import Framework
from meshwright.validation.run_rows import RunRow

_DATA = ("reduce_overlap", "pipeline_reduce_overlap", "gather_overlap")
_COMPILED = ("torchtitan",)
"""Runtimes whose kernels are fused by torch.compile alone; the others bring their own."""

_TENSOR = ("tensor_parallel_forward_overlap", "tensor_parallel_backward_overlap")
_ASYNC_TENSOR_PARALLEL = 0.7
"""torchtitan's async_tp cuts collectives and products into as many pieces as there are ranks and runs them side by side."""

_COMPILED_LOSS_SINCE = 2025
"""torchtitan compiles its loss since 2025; before, "compiling loss function causes CUDA errors" (train.py of 2024)."""

_DATA_OVERLAP_SINCE = 2023
"""Megatron-LM reduces gradients behind the backward (--overlap-grad-reduce) since its releases of 2023."""

_TENSOR_OVERLAP_SINCE = 2022
"""It gathers and reduces behind weight-gradient products since 2022 (arXiv 2205.05198, section 4.2.2)."""


def with_kernels(runtime: RuntimeProfile, row: RunRow, framework: Framework) -> RuntimeProfile:
    """The profile with the kernels and the overlap that the run states."""
    word = row.parallel.flash_attention
    kernel = word.casefold() if isinstance(word, str) else ""
    update: dict[str, Any] = {"kernel_fusion": "full", "unfused_softmax": "fused"} if framework.megatron_layers else {}
    if (fusion := _fusion(row, runtime, kernel)) is not None:
        update["kernel_fusion"] = fusion
    if "flash" in kernel or "fa" in kernel:
        update["flash_attention_version"] = _flash_version(kernel)
    words = dict(framework.memory)
    if framework.eager_loss or (runtime.name in _COMPILED and row.year is not None and row.year < _COMPILED_LOSS_SINCE):
        words["loss_bytes"] = None
    if words:
        update["memory"] = runtime.memory.model_copy(update=words)
    if "torch" in kernel:
        update["unfused_softmax"] = "eager"
    if without := _synchronous(row, runtime):
        constants = dict(runtime.constants)
        constants |= {name: constants[name].model_copy(update={"value": 0.0}) for name in without}
        update["constants"] = constants
    if (row.parallel.extra or {}).get("async_tp") is True:
        constants = dict(update.get("constants", runtime.constants))
        constants |= {name: constants[name].model_copy(update={"value": _ASYNC_TENSOR_PARALLEL}) for name in _TENSOR}
        update["constants"] = constants
    return runtime.model_copy(update=update) if update else runtime


def _fusion(row: RunRow, runtime: RuntimeProfile, kernel: str) -> KernelFusion | None:
    """``norms`` where a kernel for them is named; torch.compile fuses all, and without it nothing is."""
    if "rms kernel" in kernel:
        return "norms"
    if row.parallel.compile is None or (not row.parallel.compile and runtime.name not in _COMPILED):
        return None
    return "full" if row.parallel.compile else "none"


def _flash_version(kernel: str) -> int:
    """1 and 2 as named; everything later counts as 3."""
    if "v1" in kernel:
        return 1
    return 3 if "fa3" in kernel or "fa4" in kernel or "attention3" in kernel else 2


def _synchronous(row: RunRow, runtime: RuntimeProfile) -> tuple[str, ...]:
    """The overlaps that a run lacks: all where it says so, those that are younger than its Megatron-LM otherwise."""
    if (row.parallel.extra or {}).get("overlap") is False:
        return (*_DATA, *_TENSOR)
    if runtime.name != "megatron" or row.year is None or row.year >= _DATA_OVERLAP_SINCE:
        return ()
    return _DATA if row.year >= _TENSOR_OVERLAP_SINCE else (*_DATA, *_TENSOR)

"""Plan, explain, export and run the training of large transformers.

    import meshwright

    answer = meshwright.plan("llama-3-70b", "8x8xH100-SXM", global_batch_size=1024, sequence_length=8192)
    print(answer.best.parallel, answer.best.estimate.step_time_seconds)

Names are loaded on first use, so that importing the package costs nothing and planning never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshwright.version import __version__

if TYPE_CHECKING:
    from costmodel.models.loader import list_models as list_models
    from costmodel.runtimes.loader import list_runtimes as list_runtimes
    from costmodel.specs import (
        ClusterSpec as ClusterSpec,
        Comparison as Comparison,
        DeviceSpec as DeviceSpec,
        Estimate as Estimate,
        Infeasible as Infeasible,
        InputError as InputError,
        ModelSpec as ModelSpec,
        Observation as Observation,
        OptimizerSpec as OptimizerSpec,
        ParallelConfig as ParallelConfig,
        Plan as Plan,
        PrecisionSpec as PrecisionSpec,
        Recommendation as Recommendation,
        Rejection as Rejection,
        RuntimeProfile as RuntimeProfile,
        TrainingSpec as TrainingSpec,
    )
    from hardware_profiles.loader import list_devices as list_devices
    from meshwright.api import (
        compare as compare,
        estimate as estimate,
        explain as explain,
        export as export,
        load_cluster as load_cluster,
        load_model as load_model,
        load_runtime as load_runtime,
        make_plan as make_plan,
        measure as measure,
        plan as plan,
        run as run,
    )
    from meshwright.plan_files import load_plan as load_plan, save_plan as save_plan

_SPECS = (
    "ClusterSpec", "Comparison", "DeviceSpec", "Estimate", "Infeasible", "InputError", "ModelSpec", "Observation",
    "OptimizerSpec", "ParallelConfig", "Plan", "PrecisionSpec", "Recommendation", "Rejection", "RuntimeProfile",
    "TrainingSpec",
)  # fmt: skip
_VERBS = (
    "compare", "estimate", "explain", "export", "load_cluster", "load_model", "load_runtime", "make_plan", "measure",
    "plan", "run",
)  # fmt: skip

# Public name -> the module that holds it.
_HOMES = {
    **dict.fromkeys(_SPECS, "costmodel.specs"),
    **dict.fromkeys(_VERBS, "meshwright.api"),
    "list_devices": "hardware_profiles.loader",
    "list_models": "costmodel.models.loader",
    "list_runtimes": "costmodel.runtimes.loader",
    "load_plan": "meshwright.plan_files",
    "save_plan": "meshwright.plan_files",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 - the names stand in _HOMES


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

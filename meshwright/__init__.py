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
    from costmodel.models.loader import list_models
    from costmodel.runtimes.loader import list_runtimes
    from costmodel.specs import (
        ClusterSpec,
        Comparison,
        DeviceSpec,
        Estimate,
        Infeasible,
        InputError,
        ModelSpec,
        Observation,
        OptimizerSpec,
        ParallelConfig,
        Plan,
        PrecisionSpec,
        Recommendation,
        Rejection,
        RuntimeProfile,
        Scaling,
        SiteProfile,
        TrainingSpec,
    )
    from hardware_profiles.loader import list_devices
    from meshwright.detecting import detect
    from meshwright.estimating import estimate, training_duration
    from meshwright.explaining import explain
    from meshwright.exporting import export
    from meshwright.importing import import_plan
    from meshwright.improving import improve
    from meshwright.inputs import load_cluster, load_model, load_runtime
    from meshwright.plan_files import load_plan, save_plan
    from meshwright.planning import make_plan, plan
    from meshwright.running import compare, measure, run, run_reference
    from meshwright.scaling import maximize, scale
    from meshwright.sites import load_site, save_site
    from meshwright.validation.calibrate import calibrate
    from meshwright.validation.replay import replay
    from meshwright.verifying import verify

__all__ = [
    "ClusterSpec", "Comparison", "DeviceSpec", "Estimate", "Infeasible", "InputError", "ModelSpec", "Observation",
    "OptimizerSpec", "ParallelConfig", "Plan", "PrecisionSpec", "Recommendation", "Rejection", "RuntimeProfile",
    "Scaling", "SiteProfile", "TrainingSpec", "__version__", "calibrate", "compare", "detect", "estimate", "explain", "export",
    "import_plan", "improve",
    "list_devices", "list_models", "list_runtimes", "load_cluster", "load_model", "load_plan", "load_runtime",
    "load_site", "make_plan", "maximize", "measure", "plan", "replay", "run", "run_reference", "save_plan", "save_site",
    "scale", "training_duration", "verify",
]  # fmt: skip

# Public name -> the module that holds it; the specs are all in costmodel.specs.
_HOMES = {
    **{name: "costmodel.specs" for name in __all__ if name[0].isupper()},
    "calibrate": "meshwright.validation.calibrate",
    "compare": "meshwright.running",
    "detect": "meshwright.detecting",
    "estimate": "meshwright.estimating",
    "explain": "meshwright.explaining",
    "export": "meshwright.exporting",
    "import_plan": "meshwright.importing",
    "improve": "meshwright.improving",
    "list_devices": "hardware_profiles.loader",
    "list_models": "costmodel.models.loader",
    "list_runtimes": "costmodel.runtimes.loader",
    "load_cluster": "meshwright.inputs",
    "load_model": "meshwright.inputs",
    "load_plan": "meshwright.plan_files",
    "load_runtime": "meshwright.inputs",
    "load_site": "meshwright.sites",
    "make_plan": "meshwright.planning",
    "maximize": "meshwright.scaling",
    "measure": "meshwright.running",
    "plan": "meshwright.planning",
    "replay": "meshwright.validation.replay",
    "run": "meshwright.running",
    "run_reference": "meshwright.running",
    "save_plan": "meshwright.plan_files",
    "scale": "meshwright.scaling",
    "save_site": "meshwright.sites",
    "training_duration": "meshwright.estimating",
    "verify": "meshwright.verifying",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

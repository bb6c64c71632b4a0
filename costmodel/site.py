"""A runtime profile as a site's own runs correct it.

    (1) rate of kernels           = modelled rate x efficiency
    (2) host_operations           = modelled x launch
    (3) data_parallel_overlap     = modelled + overlap, between 0 and 1
    (4) allocated peak            = modelled x memory_margin
    (5) error band                = what is left of the scatter, and what the corrections themselves leave open

Constants stay data: a site changes their values and nothing else.
"""

from __future__ import annotations

import hashlib
import json

from costmodel.specs import Constant, InputError, Plan, RuntimeProfile, SiteProfile

_LAUNCH, _OVERLAP = "host_operations", "data_parallel_overlap"
_VERSION_LENGTH = 12


def apply_site(runtime: RuntimeProfile, site: SiteProfile) -> RuntimeProfile:
    """The profile with the corrections of a site, equations (1) to (5).

    Raises:
        InputError: when the site was made with another runtime.
    """
    if site.runtime != runtime.name:
        raise InputError(
            f"the site file is of runtime {site.runtime} on {site.device}; found runtime {runtime.name}; use --runtime "
            f"{site.runtime}, or calibrate with runs of {runtime.name}"
        )
    source = f"site: {site.title}"
    corrected = correct_speed(
        runtime,
        efficiency=site.efficiency.value,
        launch=site.launch.value,
        overlap=site.overlap.value,
        source=source,
    )
    margin = runtime.memory_margin * site.memory_margin.value
    update = {
        "memory_margin": margin,
        "error_band": site.error_band,
        "error_band_elsewhere": None,
        "band_evidence": source,
    }
    return corrected.model_copy(update=update)


def correct_speed(
    runtime: RuntimeProfile, *, efficiency: float, launch: float, overlap: float, source: str = "site"
) -> RuntimeProfile:
    """Equations (1) to (3) alone."""
    constants = dict(runtime.constants)
    host, hidden = constants[_LAUNCH], constants[_OVERLAP]
    constants[_LAUNCH] = _corrected(host, host.value * launch, source)
    constants[_OVERLAP] = _corrected(hidden, min(1.0, max(0.0, hidden.value + overlap)), source)
    return runtime.model_copy(update={"constants": constants, "site_rate": runtime.site_rate * efficiency})


def check_device(site: SiteProfile, plan_device: str) -> None:
    """Refuse a site of another device.

    Raises:
        InputError: when the devices differ.
    """
    if site.device != plan_device:
        raise InputError(
            f"the site file is of {site.device} (runtime {site.runtime}); found a cluster of {plan_device}; use a cluster of "
            f"{site.device}, or calibrate with runs on {plan_device}"
        )


def plan_profile(plan: Plan, runtime: RuntimeProfile) -> RuntimeProfile:
    """The profile that predicts a plan: its runtime's, with the corrections of the site that the plan carries.

    Raises:
        InputError: when the plan's site is of another runtime or device.
    """
    if plan.site is None:
        return runtime
    check_device(plan.site, plan.cluster.device.name)
    return apply_site(runtime, plan.site)


def constants_version(runtime: RuntimeProfile) -> str:
    """A short name for the values of a runtime's constants: equal exactly when all are equal."""
    values = {name: constant.value for name, constant in runtime.constants.items()}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:_VERSION_LENGTH]


def _corrected(constant: Constant, value: float, source: str) -> Constant:
    """A constant of the site: measured there, so neither free nor of the profile's own source."""
    return Constant(value=value, evidence="fitted", source=source) if value != constant.value else constant

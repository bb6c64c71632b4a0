"""Site files: what a user's own runs corrected, read, written, and applied to plans."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from costmodel.site import apply_site, check_device, constants_version, plan_profile
from costmodel.specs import ClusterSpec, InputError, Plan, RuntimeProfile, SiteProfile
from hardware_profiles.errors import explain_validation_error
from meshwright.files import YAML_SUFFIXES, check_output, dump_document, read_document, write_text
from meshwright.inputs import resolve_runtime

_FAR = 8
"""Times as many devices as the largest calibrated run from which on the corrections are an extrapolation worth saying."""


def load_site(source: SiteProfile | str | Path) -> SiteProfile:
    """The site itself, or the one of a site file.

    Raises:
        InputError: when the file is missing, no site file, or holds corrections outside their physical bounds.
    """
    if isinstance(source, SiteProfile):
        return source
    content = read_document(source, what="site file")
    if "efficiency" not in content or "scatter" not in content:
        raise InputError(
            f"{source} is not a site file: needed the corrections that `meshwright calibrate RUNS -o site.yaml` writes"
        )
    try:
        return SiteProfile.model_validate(content)
    except ValidationError as error:
        raise InputError(explain_validation_error(error, f"site file {source}", SiteProfile)) from None


def save_site(site: SiteProfile, path: str | Path, *, force: bool = False) -> Path:
    """Write a site file (YAML).

    Raises:
        InputError: when the suffix is another, or the file exists and ``force`` is not given.
    """
    path = check_output(path, force=force, suffixes=YAML_SUFFIXES)
    return write_text(path, dump_document(site.model_dump(mode="json"), suffix=path.suffix), force=force)


def corrected_runtime(
    runtime: RuntimeProfile, cluster: ClusterSpec, site: SiteProfile | str | Path | None
) -> tuple[RuntimeProfile, SiteProfile | None]:
    """The runtime with the corrections of a site, and the site; both as they are without one.

    Raises:
        InputError: when the site is of another runtime or device.
    """
    if site is None:
        return runtime, None
    found = load_site(site)
    check_device(found, cluster.device.name)
    return apply_site(runtime, found), found


def runtime_of(plan: Plan) -> RuntimeProfile:
    """The profile that predicts a plan, its site included.

    Raises:
        InputError: when there is no such runtime, or the plan's site is of another runtime or device.
    """
    return plan_profile(plan, resolve_runtime(plan.runtime.name))


def with_site(plan: Plan, site: SiteProfile | str | Path | None) -> Plan:
    """The plan carrying a site and no estimate; as it is without one.

    Raises:
        InputError: when the site is of another runtime or device.
    """
    if site is None:
        return plan
    carrying = plan.model_copy(update={"site": load_site(site), "estimate": None})
    runtime_of(carrying)
    return carrying


def site_warnings(plan: Plan) -> tuple[str, ...]:
    """What stands against using the plan's site for this plan, one sentence each."""
    site = plan.site
    if site is None:
        return ()
    found = []
    if site.constants_version != constants_version(resolve_runtime(plan.runtime.name)):
        found.append(
            f"the site file ({site.title}) corrects other constants than this version has; calibrate again with the same runs"
        )
    if plan.num_devices_used > _FAR * site.num_devices:
        found.append(
            f"the site was calibrated on at most {site.num_devices} devices; this plan uses {plan.num_devices_used}, so its "
            "interval is too narrow by what growth adds"
        )
    return tuple(found)

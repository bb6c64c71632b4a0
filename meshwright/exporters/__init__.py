"""Plan -> text of what launches it, one module per target."""

from __future__ import annotations

from costmodel.specs import InputError, Plan, Rejection
from hardware_profiles.errors import unknown_name
from meshwright.exporters.base import Exporter, reject
from meshwright.exporters.plan_json import JSON
from meshwright.exporters.plan_yaml import YAML
from meshwright.exporters.torchrun import TORCHRUN

EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in (JSON, YAML, TORCHRUN)}

__all__ = ["EXPORTERS", "Exporter", "find_exporter", "render"]


def find_exporter(name: str) -> Exporter:
    """The exporter of that name.

    Raises:
        InputError: when there is none; the message lists the targets.
    """
    if not isinstance(name, str) or name not in EXPORTERS:
        raise InputError(unknown_name("export target", name, EXPORTERS))
    return EXPORTERS[name]


def render(plan: Plan, target: str, *, name: str | None = None) -> dict[str, str] | Rejection:
    """The files of one target as file name -> text, or why the target cannot express the plan.

    Args:
        plan: the plan.
        target: a name of `EXPORTERS`.
        name: the main file's name; None takes ``plan`` with the target's suffix.

    Raises:
        InputError: for an unknown target.
    """
    exporter = find_exporter(target)
    return reject(exporter, plan) or exporter.render(plan, name or f"plan{exporter.suffix}")

"""What an exporter is: a plan as text files for something that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.specs import ParallelConfig, Plan, Rejection

ALL_FIELDS = frozenset(ParallelConfig.model_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One target.

    ``fields``: the fields of `ParallelConfig` that the target can express; a plan that sets another one
    away from its default is rejected. ``runtimes``: the runtimes whose plans it can express, None for all.
    ``suffix``: of the file it writes. ``render(plan, name)`` gives the files as name -> text; the first is the
    main one and is called ``name``. ``reject``: further reasons of the target's own.
    """

    name: str
    target: str
    tested_versions: tuple[str, ...]
    fields: frozenset[str]
    runtimes: tuple[str, ...] | None
    suffix: str
    render: Callable[[Plan, str], dict[str, str]]
    reject: Callable[[Plan], Rejection | None] | None = None
    executable: bool = False


def reject(exporter: Exporter, plan: Plan) -> Rejection | None:
    """Why the target cannot express the plan, or None."""
    if exporter.runtimes is not None and plan.runtime.name not in exporter.runtimes:
        needed = ", ".join(exporter.runtimes)
        return Rejection(
            rule=f"export_{exporter.name}_runtime",
            message=f"--to {exporter.name} cannot express a plan for runtime {plan.runtime.name}; needed {needed}",
            numbers={"runtime": plan.runtime.name},
            fix=f"plan with --runtime {exporter.runtimes[0]}, or export to another target",
        )
    defaults = ParallelConfig()
    for name in sorted(ALL_FIELDS - exporter.fields):
        value = getattr(plan.parallel, name)
        if value != getattr(defaults, name):
            return Rejection(
                rule=f"export_{exporter.name}_{name}",
                message=f"--to {exporter.name} cannot express {name} {value}",
                numbers={name: str(value)},
                fix=f"plan with --fix {name}={getattr(defaults, name)}, or export to another target",
            )
    return exporter.reject(plan) if exporter.reject else None

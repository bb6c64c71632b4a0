"""Write a plan as files of another launcher."""

from __future__ import annotations

from pathlib import Path

from costmodel.specs import Plan, Recommendation, Rejection
from meshwright.estimating import check_rules
from meshwright.plan_files import load_plan


def export(
    plan: Plan | Recommendation | str | Path, to: str, output: str | Path, *, force: bool = False
) -> tuple[Path, ...] | Rejection:
    """Write the plan as files of another launcher.

    Args:
        plan: a plan, a recommendation (its best plan), or a file of either.
        to: the target: json, yaml or torchrun.
        output: the main file; further files are written beside it.
        force: replace existing files.

    Returns:
        The files written, the main one first; or why the target cannot express the plan.

    Raises:
        InputError: for an unknown target, a plan that breaks a rule, or an output that cannot be written.
    """
    from meshwright.exporters import find_exporter, render
    from meshwright.files import check_output, write_text

    exporter, output = find_exporter(to), Path(output)
    plan = load_plan(plan)
    files = render(plan, to, name=output.name)
    if isinstance(files, Rejection):
        return files
    check_rules(plan)
    for name in files:  # all or nothing: refuse before the first one is written
        check_output(output.with_name(name), force=force)
    return tuple(
        write_text(output.with_name(name), text, force=force, executable=exporter.executable and name == output.name)
        for name, text in files.items()
    )

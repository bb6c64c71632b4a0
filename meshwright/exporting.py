"""Write a plan as files of another launcher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.specs import InputError, Plan, Recommendation, Rejection
from meshwright.estimating import check_rules
from meshwright.plan_files import load_plan

if TYPE_CHECKING:
    from meshwright.exporters import Exporter


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
        InputError: for an unknown target, a plan that breaks a rule, an output that cannot be written, or one
            whose suffix says that it holds something else.
    """
    from meshwright.exporters import find_exporter, render
    from meshwright.files import check_output, refuse_inputs, to_path, write_text

    exporter = find_exporter(to)
    _check_suffix(exporter, to_path(output, what="output"))
    output = check_output(output, force=force)
    source, plan = plan, load_plan(plan)
    files = render(plan, to, name=output.name)
    if isinstance(files, Rejection):
        return files
    check_rules(plan)
    for name in files:  # all or nothing: refuse before the first one is written
        refuse_inputs(check_output(output.with_name(name), force=force), (source,))
    return tuple(
        write_text(output.with_name(name), text, force=force, executable=exporter.executable and name == output.name)
        for name, text in files.items()
    )


def _check_suffix(exporter: Exporter, output: Path) -> None:
    """Whoever reads the file goes by its suffix, so a .json file holds JSON and a .yaml file YAML."""
    from meshwright.files import DOCUMENT_SUFFIXES, YAML_SUFFIXES

    says = "yaml" if output.suffix in YAML_SUFFIXES else "json"
    if output.suffix in DOCUMENT_SUFFIXES and says != exporter.name:
        raise InputError(
            f"output {output} has the suffix {output.suffix}, but --to {exporter.name} writes a {exporter.suffix} file; "
            f"change the suffix, or use --to {says}"
        )

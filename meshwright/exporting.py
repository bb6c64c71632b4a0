"""Write a plan as files of another launcher."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.specs import InputError, Plan, Recommendation, Rejection
from meshwright.estimating import check_rules
from meshwright.plan_files import load_plan

if TYPE_CHECKING:
    from meshwright.exporters import Exporter


def export(
    plan: Plan | Recommendation | str | Path,
    to: str,
    output: str | Path,
    *,
    force: bool = False,
    launcher: str | None = None,
    version: str | None = None,
    command: str = "",
) -> tuple[Path, ...] | Rejection:
    """Write the plan as files of another launcher: all of them or none.

    Args:
        plan: a plan, a recommendation (its best plan), or a file of either.
        to: the target, one of `meshwright.exporters.TARGETS`.
        output: the folder to write into, made where it is missing; for ``json`` and ``yaml`` the file.
        force: replace existing files.
        launcher: for ``slurm``, the target that the job starts; None: that of the plan's runtime.
        version: of the target; None: the first that is tested.
        command: recorded in the files' header.

    Returns:
        The files written, the main one first; or why the target cannot express the plan (`meshwright.nearest.nearest_plan`
        finds the nearest one that it can).

    Raises:
        InputError: for an unknown target, a plan that breaks a rule, an output that cannot be written, or one
            whose suffix says that it holds something else.
    """
    from meshwright.exporters import find_exporter

    if to != "slurm":  # a wrong name is told before the plan is read
        find_exporter(to, launcher=launcher)
    source, plan = plan, load_plan(plan)
    exporter = find_exporter(to, launcher=launcher, runtime=plan.runtime.name)
    return export_plan(plan, exporter, output, force=force, version=version, command=command, inputs=(source,))


def export_plan(
    plan: Plan,
    exporter: Exporter,
    output: str | Path,
    *,
    force: bool = False,
    version: str | None = None,
    command: str = "",
    inputs: Iterable[object] = (),
) -> tuple[Path, ...] | Rejection:
    """`export` of a plan and with an exporter that were found already; ``inputs`` are files that are never replaced."""
    from meshwright.exporters import render_for
    from meshwright.files import check_output, refuse_inputs, to_path, write_text
    from meshwright.folders import write_folder

    output = to_path(output, what="output")
    if exporter.suffix is not None:
        _check_suffix(exporter, output)
        refuse_inputs(check_output(output, force=force), inputs)
    name = None if exporter.suffix is None else output.name
    files = render_for(exporter, plan, name=name, version=version, command=command)
    if isinstance(files, Rejection):
        return files
    check_rules(plan)
    if exporter.suffix is None:
        return write_folder(output, files, force=force, inputs=inputs)
    return (write_text(output, files[output.name], force=force),)


def _check_suffix(exporter: Exporter, output: Path) -> None:
    """Whoever reads the file goes by its suffix, so a .json file holds JSON and a .yaml file YAML."""
    from meshwright.files import DOCUMENT_SUFFIXES, YAML_SUFFIXES

    says = "yaml" if output.suffix in YAML_SUFFIXES else "json"
    if output.suffix in DOCUMENT_SUFFIXES and says != exporter.name:
        raise InputError(
            f"output {output} has the suffix {output.suffix}, but --to {exporter.name} writes a {exporter.suffix} file; "
            f"change the suffix, or use --to {says}"
        )

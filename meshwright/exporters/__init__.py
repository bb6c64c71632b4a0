"""Plan -> files of what launches it, and back; one module or package per target."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from costmodel.specs import InputError, Plan, Rejection
from hardware_profiles.errors import unknown_name
from meshwright.exporters import slurm
from meshwright.exporters.accelerate import ACCELERATE
from meshwright.exporters.base import Exporter, Files, Job, Loss, losses_of, reject
from meshwright.exporters.deepspeed import DEEPSPEED
from meshwright.exporters.megatron import MEGATRON
from meshwright.exporters.plan_json import JSON
from meshwright.exporters.plan_yaml import YAML
from meshwright.exporters.torchrun import TORCHRUN
from meshwright.exporters.torchtitan import TORCHTITAN
from meshwright.exporters.transformers import TRANSFORMERS

_ALL = (JSON, YAML, TORCHRUN, MEGATRON, TORCHTITAN, DEEPSPEED, ACCELERATE, TRANSFORMERS)
EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in _ALL}
LAUNCHERS = tuple(name for name, exporter in EXPORTERS.items() if exporter.is_launcher)
READERS = tuple(name for name, exporter in EXPORTERS.items() if exporter.read)
TARGETS = (*EXPORTERS, slurm.NAME)

__all__ = [
    "EXPORTERS", "LAUNCHERS", "READERS", "TARGETS", "Exporter", "Files", "Job", "Loss", "find_exporter", "losses_of", "reject",
    "render",
]  # fmt: skip


def find_exporter(name: str, *, launcher: str | None = None, runtime: str = "torch") -> Exporter:
    """The exporter of that name.

    Args:
        name: one of `TARGETS`.
        launcher: for ``slurm``, the target that it starts; None: the runtime's own.
        runtime: of the plan.

    Raises:
        InputError: when there is none, or the launcher is none; the message lists the names.
    """
    if name == slurm.NAME:
        return slurm.wrap(_find_launcher(launcher, runtime))
    if launcher is not None:
        raise InputError(f"--launcher is for --to {slurm.NAME}; leave it out for --to {name}")
    if not isinstance(name, str) or name not in EXPORTERS:
        raise InputError(unknown_name("export target", name, TARGETS))
    return EXPORTERS[name]


def _find_launcher(name: str | None, runtime: str) -> Exporter:
    if name is not None:
        if name not in LAUNCHERS:
            raise InputError(unknown_name("launcher", name, LAUNCHERS))
        return EXPORTERS[name]
    own = (EXPORTERS[one] for one in LAUNCHERS if runtime in (EXPORTERS[one].runtimes or ()))
    found = next(own, None)
    if found is None:
        raise InputError(f"runtime {runtime} has no launcher here; name one with --launcher: {', '.join(LAUNCHERS)}")
    return found


def render(
    plan: Plan,
    target: str,
    *,
    name: str | None = None,
    launcher: str | None = None,
    version: str | None = None,
    command: str = "",
) -> dict[str, str] | Rejection:
    """The files of one target as file name -> text, or why the target cannot express the plan.

    Args:
        plan: the plan.
        target: one of `TARGETS`.
        name: the main file's name; None takes the target's own.
        launcher: see `find_exporter`.
        version: of the target; None takes the first that is tested.
        command: that writes the files, for their header.

    Raises:
        InputError: for an unknown target or launcher, and a version that is not tested.
    """
    exporter = find_exporter(target, launcher=launcher, runtime=plan.runtime.name)
    return render_for(exporter, plan, name=name, version=version, command=command)


def render_for(
    exporter: Exporter, plan: Plan, *, name: str | None = None, version: str | None = None, command: str = ""
) -> dict[str, str] | Rejection:
    """`render` for an exporter that was found already."""
    chosen = _check_version(exporter, version)
    if (rejection := reject(exporter, plan)) is not None:
        return rejection
    job = Job(
        plan=plan,
        name=name or main_name(exporter),
        version=chosen,
        command=command,
        losses=losses_of(exporter, plan),
    )
    return exporter.render(job)


def start_command(exporter: Exporter, main: Path) -> str:
    """The command that starts what a folder holds; ``main`` is its main file."""
    if not main.is_absolute() and str(main).startswith("-"):
        main = Path.cwd() / main  # a name that bash would take for an option
    if exporter.name == slurm.NAME:
        return f"cd {quote(str(main.parent))} && sbatch {quote(main.name)}"
    return f"bash {quote(str(main))}"


def main_name(exporter: Exporter) -> str:
    """The main file's name, where nobody names it."""
    return exporter.main if exporter.suffix is None else f"plan{exporter.suffix}"


def _check_version(exporter: Exporter, version: str | None) -> str:
    if version is None:
        return exporter.tested_versions[0]
    if version not in exporter.tested_versions:
        raise InputError(
            f"--to {exporter.name} was not tested with version {version}; tested: {', '.join(exporter.tested_versions)}"
        )
    return version

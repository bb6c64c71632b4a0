"""The plans worth measuring, ready to launch: a folder of each, and how the measured steps come back.

What the target cannot express is left out and named. The model's own error cannot tell these plans from the best, so a short run
of each decides, and `meshwright calibrate` learns from all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from costmodel.specs import InputError, Plan, Rejection
from meshwright import units
from meshwright.exporters import Exporter, find_exporter, losses_of, render_for, start_command
from meshwright.files import dump_document
from meshwright.folders import write_folder
from meshwright.measuring import STEPS, Measurement, calibrate_command

_PLAN_FILE, _README = "plan.json", "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """What was written. ``measurements``: how each plan is measured; ``skipped``: the plans left out, each with the reason."""

    files: tuple[Path, ...]
    measurements: tuple[Measurement, ...]
    skipped: tuple[tuple[Plan, Rejection], ...]
    warnings: tuple[str, ...]


def write_shortlist(
    plans: Sequence[Plan],
    to: str,
    output: str | Path,
    *,
    stated: Mapping[str, Any],
    force: bool = False,
    launcher: str | None = None,
    command: str = "",
    inputs: Sequence[object] = (),
) -> Shortlist | Rejection:
    """Write every plan that the target can express into a folder of its own, all of them or none.

    Args:
        plans: the plans, the best one first.
        to: the target, one of `meshwright.exporters.TARGETS`.
        output: the folder, made where it is missing.
        stated: the options of `meshwright plan` that led to the plans.
        force: replace existing files.
        launcher: for ``slurm``, the target that the job starts.
        command: recorded in the files' headers.
        inputs: files that are read, which are never replaced.

    Returns:
        What was written, or why the target can express none of them: the reason of the best.

    Raises:
        InputError: for an unknown target, a folder that cannot be written, and one with more plans of an earlier shortlist.
    """
    exporter = find_exporter(to, launcher=launcher, runtime=plans[0].runtime.name)
    folder, files, kept, skipped = Path(output), dict[str, str](), list[Plan](), list[tuple[Plan, Rejection]]()
    for plan in plans:
        rendered = render_for(exporter, plan, command=command)
        if isinstance(rendered, Rejection):
            skipped.append((plan, rendered))
            continue
        kept.append(plan)
        rendered = {_PLAN_FILE: dump_document(plan.model_dump(mode="json"), suffix=".json"), **rendered}
        files |= {f"{len(kept)}/{name}": text for name, text in rendered.items()}
    if not kept:
        return skipped[0][1]
    _check_leftovers(folder, len(kept))
    found = tuple(_measurement(plan, number, folder, exporter) for number, plan in enumerate(kept, start=1))
    files[_README] = _readme(found, skipped, exporter, calibrate_command(found, stated))
    warnings = dict.fromkeys(f"{loss.field}: {loss.message}" for plan in kept for loss in losses_of(exporter, plan))
    written = write_folder(folder, files, force=force, inputs=inputs)
    return Shortlist(files=written, measurements=found, skipped=tuple(skipped), warnings=tuple(warnings))


def _check_leftovers(folder: Path, count: int) -> None:
    """Refuse to keep an earlier shortlist's further plans beside the new ones; they may hold runs, so nothing is removed."""
    try:
        numbers = [int(path.parent.name) for path in folder.glob(f"*/{_PLAN_FILE}") if path.parent.name.isdecimal()]
    except OSError:  # what cannot be read cannot be written either, which is told then
        return
    left = sorted(number for number in numbers if number > count)
    if left:
        names = ", ".join(str(folder / str(number)) for number in left)
        raise InputError(
            f"output {folder} would keep {names} of an earlier shortlist beside {count} new plan{'s' * (count > 1)}; "
            "move or remove them, or choose another folder"
        )


def _measurement(plan: Plan, number: int, folder: Path, exporter: Exporter) -> Measurement:
    place = folder / str(number)
    plan_file, main = str(place / _PLAN_FILE), place / exporter.main
    if exporter.name == "torchrun":  # our own executor measures itself
        output = place / "run"
        run = f"STEPS={STEPS} OUTPUT={quote(str(output))} {start_command(exporter, main)}"
        return Measurement(plan=plan, commands=(run,), plan_file=plan_file, run_file=str(output / "observation.json"))
    run_file = str(place / "run.json")
    observed = json.dumps({"source": plan.runtime.name, "plan_hash": plan.plan_hash, "step_time_seconds": "SECONDS"})
    note = f"echo {quote(observed.replace(chr(34) + 'SECONDS' + chr(34), 'SECONDS'))} > {quote(run_file)}"
    start = (start_command(exporter, main),) if exporter.suffix is None else ()
    return Measurement(plan=plan, commands=(*start, note), plan_file=plan_file, run_file=run_file)


def _readme(
    found: Sequence[Measurement], skipped: Sequence[tuple[Plan, Rejection]], exporter: Exporter, calibrate: str
) -> str:
    """The table of the plans, and the commands."""
    from planner.evaluation import estimate_of
    from planner.summary import summarize

    lines = [
        "# Plans worth measuring",
        "",
        f"{found[0].plan.model.name} on {found[0].plan.cluster.name}, for {exporter.target}. The model's own error cannot tell",
        "these plans from the best: run a few steps of each and keep the fastest.",
        "",
        "| folder | step time | 80% interval | memory | plan | hash |",
        "| --- | ---: | --- | ---: | --- | --- |",
    ]
    for number, each in enumerate(found, start=1):
        made = estimate_of(each.plan)
        seconds, memory = made.step_time_seconds, units.memory(made.peak_memory_bytes.device)
        interval = f"{units.seconds(seconds.low)} to {units.seconds(seconds.high)}"
        cells = (
            str(number),
            units.seconds(seconds.value),
            interval,
            memory,
            summarize(each.plan),
            each.plan.plan_hash[:12],
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\nLeft out: {summarize(plan)}: {rejection.message}." for plan, rejection in skipped]
    lines += ["", "Write the seconds of a step, without the first ones, where SECONDS stands.", "", "```"]
    for number, each in enumerate(found, start=1):
        lines += [f"# {number}", *each.commands]
    lines += [
        "# the site's own corrections, with the errors before and after; plan, estimate and replay take them with --site"
    ]
    lines += [calibrate, "```", ""]
    lines += ["Runs that you keep as rows are replayed too: `meshwright replay RUNS.jsonl --site site.yaml`."]
    return "\n".join(lines) + "\n"

"""Write a replay's report: the document, its plot beside it, and the table of a README."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from costmodel.specs import InputError
from hardware_profiles.files import write_text_atomically
from meshwright.files import check_output, read_text, refuse_inputs, to_path, write_text
from meshwright.validation.calibration_record import CalibrationRecord, load_calibration_record
from meshwright.validation.report import BEGIN, END, ReportContext, accuracy_report, readme_block, replace_block
from meshwright.validation.report_plot import scatter_plot
from meshwright.validation.results import Replay
from meshwright.visible_text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Where a report goes and what goes into it, everything read and checked.

    ``command`` is how to make it again.
    """

    report: Path
    plot: Path
    readme: Path | None
    record: CalibrationRecord | None
    notes: str
    command: str
    force: bool

    def write(self, answer: Replay) -> tuple[Path, ...]:
        """Write the files and say which; each as a whole or not at all.

        Raises:
            InputError: a file cannot be written, or the README has lost its markers.
        """
        link = quote(self.plot.name).strip("'").replace(" ", "%20")
        context = ReportContext(command=self.command, plot=link, record=self.record, notes=self.notes)
        changed = None if self.readme is None else self._readme_text(answer, self.readme)
        write_text(self.report, accuracy_report(answer, context), force=self.force)
        write_text(self.plot, scatter_plot(answer.rows), force=self.force)
        if self.readme is None or changed is None:
            return self.report, self.plot
        write_text_atomically(self.readme.resolve(), changed, force=True)  # a link stays one
        return self.report, self.plot, self.readme

    def _readme_text(self, answer: Replay, readme: Path) -> str:
        link = os.path.relpath(self.report, readme.parent)
        return _with_block(readme, readme_block(answer, report=Path(link).as_posix()))


def prepare_report(
    runs: Sequence[str | Path],
    report: str | Path,
    *,
    readme: str | Path | None = None,
    calibration: str | Path | None = None,
    notes: str | Path | None = None,
    site: str | Path | None = None,
    force: bool = False,
) -> ReportFiles:
    """Read and check all that a report needs, before anything is computed.

    Args:
        runs: the runs files, for the command that the report prints.
        report: Markdown file to write; the plot goes beside it with the suffix ``.svg``.
        readme: file whose table between two markers is replaced.
        calibration: record of a calibration (`calibration_record`).
        notes: Markdown that becomes the end of the report.
        site: site file that the runs are predicted with, for the command.
        force: replace an existing report and plot.

    Raises:
        InputError: a file cannot be read or written or would be both, or the README lacks its markers.
    """
    path = check_output(report, force=force, suffixes=(".md",))
    plot = check_output(path.with_suffix(".svg"), force=force)
    if readme is not None:
        if Path(readme).resolve() in (path.resolve(), plot.resolve()):
            raise InputError(f"--readme {readme} is the report itself; needed another file")
        _with_block(to_path(readme, what="README"), "")
    for output in (path, plot) if readme is None else (path, plot, Path(readme)):
        refuse_inputs(output, (*runs, calibration, notes, site))
    text = None if notes is None else read_text(to_path(notes, what="notes file"), what="notes file", needed="Markdown")
    given = {"--report": path, "--readme": readme, "--calibration": calibration, "--notes": notes, "--site": site}
    options = [f"{name} {quote(str(value))}" for name, value in given.items() if value is not None]
    return ReportFiles(
        report=path,
        plot=plot,
        readme=None if readme is None else Path(readme),
        record=None if calibration is None else load_calibration_record(calibration),
        notes=text or "",
        command=visible(" ".join(["meshwright replay", *name_runs(runs), *options, "--force"])),
        force=force,
    )


def name_runs(runs: Sequence[str | Path]) -> list[str]:
    """The files as words of a shell; all files of one kind in a folder are named by a pattern."""
    paths = [Path(run) for run in runs]
    words: dict[str, None] = {}
    for path in paths:
        same = set(path.parent.glob(f"*{path.suffix}")) if path.suffix else set()
        whole = len(same) > 1 and same <= set(paths)
        words[f"{quote(str(path.parent))}/*{path.suffix}" if whole else quote(str(path))] = None
    return list(words)


def _with_block(readme: Path, block: str) -> str:
    text = replace_block(read_text(readme, what="README", needed="Markdown"), block)
    if text is None:
        raise InputError(f"{readme} has no place for the table; needed the lines {BEGIN!r} and {END!r}, once each")
    return text

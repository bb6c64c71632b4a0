"""`meshwright calibrate`: a site file from the user's own runs."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import answer_console, print_json, print_notice, print_warnings

_MAX_LEFT_OUT = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate")(calibrate)


def calibrate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            readable=False,
            help="3 to 10 short runs: files of measured runs (docs/replay.md), or plan files and what "
            "`meshwright run -o` wrote for them.",
        ),
    ],
    runtime: Annotated[
        str | None, options.text("--runtime", "The runtime of the site. Default: the one of most runs.")
    ] = None,
    cluster: Annotated[
        str | None,
        options.text("--cluster", "Where the runs were made. Default: the hardware that each run states.", metavar="C"),
    ] = None,
    as_json: options.Json = False,
    output: options.Output = None,
    force: options.Force = False,
) -> None:
    """Correct efficiency, overlap, launch floor and memory by your own runs, as far as they are evidence."""
    from meshwright.files import YAML_SUFFIXES, check_output, refuse_inputs
    from meshwright.sites import save_site
    from meshwright.validation.calibrate import calibrate as correct

    if output is not None:
        check_output(output, force=force, suffixes=YAML_SUFFIXES)
        refuse_inputs(output, (*runs, cluster))
    answer = correct(runs, runtime=runtime, cluster=cluster)
    if output is not None:
        save_site(answer.site, output, force=force)
    left, more = answer.left_out[:_MAX_LEFT_OUT], len(answer.left_out) - _MAX_LEFT_OUT
    print_warnings(f"{line.where}: left out: {line.reason}" for line in left)
    print_warnings([f"{more} more lines left out (see --json)"] if more > 0 else [])
    print_warnings(answer.warnings)
    if as_json:
        print_json(answer)
        return
    from meshwright.cli.render.calibration import render_calibration

    render_calibration(answer_console(), answer)
    if output is not None:
        place = quote(cluster) if cluster else "..."
        use = f"meshwright plan --cluster {place} --runtime {answer.site.runtime} --site {quote(str(output))} ..."
        print_notice(f"wrote {output}; plan with it: {use}")

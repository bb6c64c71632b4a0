"""`meshwright hardware measure`: this machine, or all machines that torchrun starts, as a cluster file."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import answer_console, notice_console, print_notice


def measure_hardware(
    output: Annotated[Path, typer.Option("--output", "-o", readable=False, help="Cluster file (YAML) to write.")],
    processes: Annotated[
        int | None,
        options.number("--processes", "Processes that train side by side. Needed on a CPU; not under torchrun."),
    ] = None,
    device: Annotated[
        str | None, options.text("--device", "cpu or cuda. Default: the CUDA devices where there are any.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick/--thorough", help="About 20 seconds, or two minutes.")] = True,
    timeout: options.Timeout = None,
    force: options.Force = False,
) -> None:
    """Measure this machine and write it as a cluster to plan for.

    For several nodes start it with torchrun on each: torchrun --no-python --nnodes 2 --nproc-per-node 8 ... meshwright
    hardware measure -o cluster.yaml. Rank 0 writes the file.
    """
    from hardware_profiles.loader import save_cluster
    from meshwright.cli.render.findings import render_findings
    from meshwright.cli.render.hardware import render_cluster
    from meshwright.files import YAML_SUFFIXES, check_output
    from meshwright.running import check_processes, measure_with_findings

    writes = os.environ.get("RANK", "0") == "0"
    if writes:
        check_output(output, force=force, suffixes=YAML_SUFFIXES)
    if processes is not None and device != "cuda":
        check_processes(processes)
    with _Progress(shown=writes) as progress:
        found = measure_with_findings(
            processes=processes, quick=quick, device=device, progress=progress, timeout=timeout
        )
    if not writes:
        return
    save_cluster(found.cluster, output, force=force)
    console = answer_console()
    render_findings(console, found.findings)
    render_cluster(console, found.cluster)
    print_notice(f"wrote {output}; plan for it with: meshwright plan --cluster {quote(str(output))} ...")


class _Progress:
    """What is measured next: a line that changes on a terminal, a line a round elsewhere; on stderr."""

    def __init__(self, *, shown: bool) -> None:
        self._console = notice_console()
        self._shown = shown
        self._status = self._console.status("starting the processes ...")
        self._round = ""

    def __enter__(self) -> _Progress:
        if self._shown and self._console.is_terminal:
            self._status.start()
        elif self._shown:
            print_notice("measuring ...")
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def __call__(self, text: str) -> None:
        """Show what comes next."""
        this_round = text.partition(":")[0]
        if self._console.is_terminal:
            self._status.update(text)
        elif self._shown and this_round != self._round:
            print_notice(this_round)
        self._round = this_round

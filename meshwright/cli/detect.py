"""`meshwright hardware detect`: a cluster file from nvidia-smi and nccl-tests."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from meshwright.cli import options
from meshwright.cli.output import answer_console, print_notice, print_warnings

_REPORTS = "Without any of these three the programs are run here."


def detect_hardware(
    output: Annotated[Path, typer.Option("--output", "-o", readable=False, help="Cluster file (YAML) to write.")],
    nvidia_smi: Annotated[
        Path | None,
        typer.Option("--nvidia-smi", metavar="FILE", readable=False, help=f"Output of: nvidia-smi -q. {_REPORTS}"),
    ] = None,
    topology: Annotated[
        Path | None,
        typer.Option("--topology", metavar="FILE", readable=False, help="Output of: nvidia-smi topo -m."),
    ] = None,
    nccl_tests: Annotated[
        list[Path] | None,
        typer.Option(
            "--nccl-tests",
            metavar="FILE",
            readable=False,
            help="Output of all_gather_perf, reduce_scatter_perf, all_reduce_perf, alltoall_perf or sendrecv_perf on one "
            "node or several; repeat it.",
        ),
    ] = None,
    nodes: Annotated[
        int | None, options.number("--nodes", "Nodes of the cluster. Default: as many as nccl-tests ran on, else 1.")
    ] = None,
    device: Annotated[
        str | None, options.text("--device", "Catalogue name, where the reports name no device of the catalogue.")
    ] = None,
    network: Annotated[
        str | None, options.text("--network", "Catalogue name of one network port. Default: that of the node.")
    ] = None,
    force: options.Force = False,
) -> None:
    """Write a cluster to plan for from what nvidia-smi and nccl-tests report."""
    from hardware_profiles.loader import save_cluster
    from meshwright.cli.render.hardware import render_cluster
    from meshwright.detecting import detect
    from meshwright.files import YAML_SUFFIXES, check_output, refuse_inputs

    check_output(output, force=force, suffixes=YAML_SUFFIXES)
    refuse_inputs(output, (nvidia_smi, topology, *(nccl_tests or ())))
    found = detect(
        nvidia_smi=nvidia_smi,
        topology=topology,
        nccl_tests=nccl_tests or (),
        nodes=nodes,
        device=device,
        network=network,
    )
    print_warnings(str(note) for note in found.notes)
    save_cluster(found.cluster, output, force=force)
    render_cluster(answer_console(), found.cluster)
    print_notice(f"wrote {output}; plan for it with: meshwright plan --cluster {quote(str(output))} ...")

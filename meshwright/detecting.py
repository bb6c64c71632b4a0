"""A cluster from what its own programs report: their outputs as files, or run on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from costmodel.specs import InputError
from hardware_profiles.detect.cluster import Detected, detect_cluster
from hardware_profiles.detect.report import Report
from hardware_profiles.detect.smi_query import parse_smi_query
from hardware_profiles.files import read_at_most
from meshwright.files import to_path
from meshwright.inputs import whole_number

_MAX_REPORT_BYTES = 64 * 2**20
_SHORT_SECONDS = 60
_NCCL_SECONDS = 300
_NCCL_PROGRAMS = ("all_gather_perf", "reduce_scatter_perf", "all_reduce_perf")
_NCCL_SIZES = ("-b", "8M", "-e", "1G", "-f", "2")


def detect(
    *,
    nvidia_smi: str | Path | None = None,
    topology: str | Path | None = None,
    nccl_tests: Sequence[str | Path] = (),
    nodes: int | None = None,
    device: str | None = None,
    network: str | None = None,
) -> Detected:
    """A cluster from the outputs of nvidia-smi and nccl-tests.

    Without any file the programs are run on this machine, as far as they exist; with one or more only those are read, as
    they may be another machine's.

    Args:
        nvidia_smi: file with the output of ``nvidia-smi -q``.
        topology: file with the output of ``nvidia-smi topo -m``.
        nccl_tests: files with the output of all_gather_perf, reduce_scatter_perf, all_reduce_perf, alltoall_perf or
            sendrecv_perf.
        nodes: nodes of the cluster; None takes the largest number that nccl-tests ran on, else 1.
        device: catalogue name of the device, where the reports name none of the catalogue.
        network: catalogue name of one network port (``hardware list``); None takes that of the catalogue's node.

    Returns:
        The cluster, and notes about everything that was left out, assumed or contradictory.

    Raises:
        InputError: a file cannot be read, nothing in them is usable, or the device is not in the catalogue.
    """
    wanted = None if nodes is None else whole_number("nodes", nodes, 1, 1_000_000)
    smi: Report | None
    if nvidia_smi is None and topology is None and not nccl_tests:
        smi, matrix, tests = _run_programs()
    else:
        smi = None if nvidia_smi is None else read_report(nvidia_smi)
        matrix = None if topology is None else read_report(topology)
        tests = [read_report(path) for path in nccl_tests]
    return detect_cluster(
        nvidia_smi=smi, topology=matrix, nccl_tests=tests, num_nodes=wanted, device=device, network=network
    )


def read_report(path: str | Path) -> Report:
    """The text of a program's output.

    Raises:
        InputError: the file cannot be read or is far too large.
    """
    file = to_path(path, what="report")
    try:
        content = read_at_most(file, _MAX_REPORT_BYTES)
    except OSError as error:
        raise InputError(f"report {file} cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_REPORT_BYTES:
        raise InputError(f"report {file} is larger than {_MAX_REPORT_BYTES} bytes; needed the output of one program")
    # PowerShell redirects in UTF-16.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return Report(str(file), content.decode(encoding, errors="replace"))


def _run_programs() -> tuple[Report, Report | None, list[Report]]:
    if shutil.which("nvidia-smi") is None:
        raise InputError(
            "there is no nvidia-smi on this machine; run nvidia-smi -q > smi.txt where the devices are and give it with "
            "--nvidia-smi smi.txt (or measure this machine: meshwright hardware measure)"
        )
    smi = _run(["nvidia-smi", "-q"], _SHORT_SECONDS)
    matrix = _run(["nvidia-smi", "topo", "-m"], _SHORT_SECONDS)
    query = parse_smi_query(smi)
    count = len(query.devices) + query.num_undescribed
    programs = [program for program in _NCCL_PROGRAMS if shutil.which(program)] if count > 1 else []
    return smi, matrix, [_run([program, *_NCCL_SIZES, "-g", str(count)], _NCCL_SECONDS) for program in programs]


def _run(command: list[str], limit_seconds: float) -> Report:
    """What a program prints; that it failed is for the reader of its output to say."""
    name = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_seconds,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Report(name, (error.stdout or b"").decode(errors="replace"))
    except OSError as error:
        return Report(name, f"{error.strerror or error}")
    return Report(name, (done.stdout + done.stderr).decode(errors="replace"))

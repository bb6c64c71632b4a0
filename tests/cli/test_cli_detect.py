"""`meshwright hardware detect`: files in, a cluster file and one warning a note out."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles.loader import load_cluster

REPORTS = Path(__file__).parents[2] / "benchmarks" / "data" / "hardware_reports"
SMI = REPORTS / "nvidia_smi" / "h100-sxm-8_driver-565.txt"
TOPOLOGY = REPORTS / "topology" / "h100-sxm-8_nic-1.txt"
NCCL = REPORTS / "nccl_tests" / "all_reduce_2x8_h100-sxm_prefixed.txt"
Cli = Callable[..., Any]


def test_reports_become_a_cluster_that_plan_uses(cli: Cli) -> None:
    reports = ["--nvidia-smi", SMI, "--topology", TOPOLOGY, "--nccl-tests", NCCL]
    made = cli("hardware", "detect", *reports, "-o", "cluster.yaml")
    assert made.code == 0
    assert "2x8xH100-SXM" in made.out
    assert f"{NCCL}:1: all_reduce over two nodes" in made.err
    cluster = load_cluster("cluster.yaml")
    assert (cluster.num_nodes, cluster.levels[1].ports) == (2, 1)
    job = ["--model", "llama-3-8b", "--global-batch-size", 64, "--sequence-length", 4096]
    planned = cli("plan", "--cluster", "cluster.yaml", *job, "--json")
    assert planned.code == 0
    assert json.loads(planned.out)["best"]["cluster"]["levels"][1]["link"][
        "measured_bytes_per_second"
    ] == pytest.approx(84.2e9, rel=0.01)


def test_nothing_usable_is_exit_code_2_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    Path("smi.txt").write_text("Nom du produit : NVIDIA H100\n")
    result = cli("hardware", "detect", "--nvidia-smi", "smi.txt", "-o", "cluster.yaml")
    assert result.code == 2
    assert "error: no report is usable; smi.txt: this is not nvidia-smi's report in English" in result.err
    assert not (tmp_path / "cluster.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nvidia-smi", "missing.txt"], "report missing.txt cannot be read: No such file or directory"),
        (["--nvidia-smi", "."], "cannot be read: Is a directory"),
        (["--nvidia-smi", SMI, "--nodes", "0"], "needed a whole number of at least 1"),
        (["--nvidia-smi", SMI, "--nodes", "2", "--network", "x"], "unknown network"),
        (["--nvidia-smi", SMI, "--network", ""], "the argument after --network is empty; needed a value"),
        (["--nvidia-smi", SMI, "--device", "cpu"], "device: found 'cpu'; needed one of A10, "),
    ],
)
def test_bad_arguments(cli: Cli, arguments: list[Any], said: str) -> None:
    result = cli("hardware", "detect", *arguments, "-o", "cluster.yaml")
    assert result.code == 2
    assert said in result.err


def test_reports_of_powershell_are_read(cli: Cli) -> None:
    Path("smi.txt").write_bytes(SMI.read_text().encode("utf-16"))
    assert cli("hardware", "detect", "--nvidia-smi", "smi.txt", "-o", "cluster.yaml").code == 0


def install(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_without_files_the_programs_are_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    install(folder, "nvidia-smi", f'if [ "$1" = -q ]; then cat {SMI}; else cat {TOPOLOGY}; fi')
    single = REPORTS / "nccl_tests" / "all_reduce_1x8_h100-sxm.txt"
    install(folder, "all_reduce_perf", f'[ "$*" = "-b 8M -e 1G -f 2 -g 8" ] && cat {single}')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    result = cli("hardware", "detect", "-o", "cluster.yaml")
    assert result.code == 0
    assert load_cluster("cluster.yaml").name == "8xH100-SXM"
    assert "all_reduce_perf -b 8M -e 1G -f 2 -g 8:1: all_reduce at 473.3 GB/s" in result.err


def test_without_files_and_programs_the_error_says_what_to_do(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = cli("hardware", "detect", "-o", "cluster.yaml")
    assert result.code == 2
    assert "there is no nvidia-smi on this machine" in result.err


def test_a_program_that_fails_is_told(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    failure = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    install(folder, "nvidia-smi", f'echo "{failure}"; exit 9')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    result = cli("hardware", "detect", "-o", "cluster.yaml")
    assert result.code == 2
    assert "nvidia-smi -q: nvidia-smi could not reach its driver" in result.err

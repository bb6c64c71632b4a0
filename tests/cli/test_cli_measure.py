"""`meshwright hardware measure`: what it prints and writes, and what torchrun's other processes do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.measured_draft import Finding, Measured
from hardware_profiles.loader import load_cluster
from meshwright import running

ROOT = Path(__file__).parents[2]
Cli = Callable[..., Any]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A measurement that takes no time; the arguments of every call."""
    calls: list[dict[str, Any]] = []

    def measure(**arguments: Any) -> Measured:
        calls.append(arguments)
        arguments["progress"]("round 1 of 2: matrix products")
        arguments["progress"]("round 1 of 2: memory")
        arguments["progress"]("round 2 of 2: matrix products")
        findings = (
            Finding(name="matrix products, fp32", value=5e10, unit="FLOP/s", num_points=6, residual=0.031),
            Finding(name="launch of one operation", value=8e-6, unit="s", remark="an eager one"),
        )
        return Measured(cluster=load_cluster("2xcpu"), findings=findings)

    monkeypatch.setattr(running, "measure_with_findings", measure)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_findings_are_shown_and_the_file_is_written(cli: Cli, measured: list[dict[str, Any]]) -> None:
    result = cli("hardware", "measure", "--processes", 2, "-o", "cpu.yaml")
    assert result.code == 0
    assert load_cluster("cpu.yaml") == load_cluster("2xcpu")
    for words in (["matrix", "products,", "fp32", "50", "GFLOP/s", "6", "3.1%"], ["8", "us", "1", "-"]):
        assert any(all(word in line.split() for word in words) for line in result.out.splitlines()), words
    assert "launch of one operation: an eager one" in result.out
    assert result.err.splitlines()[:3] == ["measuring ...", "round 1 of 2", "round 2 of 2"]
    assert (measured[0]["processes"], measured[0]["quick"], measured[0]["device"]) == (2, True, None)


def test_options_are_passed_on(cli: Cli, measured: list[dict[str, Any]]) -> None:
    assert cli("hardware", "measure", "--device", "cuda", "--thorough", "-o", "gpu.yaml").code == 0
    assert (measured[0]["processes"], measured[0]["quick"], measured[0]["device"]) == (None, False, "cuda")


def test_only_rank_0_prints_and_writes(
    cli: Cli, measured: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    result = cli("hardware", "measure", "-o", "cluster.yaml")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert len(measured) == 1
    assert not Path("cluster.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "cpu.yaml", "--device", "cpu"], "num_processes is missing; on a CPU state how many"),
        (["-o", "cpu.yaml", "--device", "tpu"], "device is 'tpu'; needed cpu or cuda"),
    ],
)
def test_bad_arguments_start_nothing(cli: Cli, arguments: list[str], said: str) -> None:
    result = cli("hardware", "measure", *arguments)
    assert result.code == 2
    assert said in result.err
    assert not Path("cpu.yaml").exists()


@pytest.mark.distributed
def test_torchrun_starts_it(tmp_path: Path) -> None:
    """Bad input ends every process at once, with one message; a whole measurement is tests/executor_run's."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command += ["-m", "meshwright.cli.app", "hardware", "measure", "--device", "cpu", "--processes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "cpu.yaml")],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "num_processes is 2; torchrun started 1 on this node" in done.stderr

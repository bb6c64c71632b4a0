"""The Slurm job, started with stand-ins for Slurm's own programs: what every node is told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_documents import sample_plan
from sample_plans import plan_for

from costmodel.specs import Rejection
from meshwright import export, make_plan
from meshwright.exporters import render

# srun starts its command once a node, and scontrol lists the nodes.
_SRUN = '#!/bin/sh\nshift\nfor node in 0 1 2 3 4 5 6 7; do SLURM_NODEID=$node "$@"; done\n'
_SCONTROL = '#!/bin/sh\n[ "$*" = "show hostnames gpu[3-10]" ] || exit 1\nprintf "gpu%d\\n" 3 4 5 6 7 8 9 10\n'
_TORCHRUN = '#!/bin/sh\nprintf "%s " "$@"\nprintf "\\n"\n'


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """submit(folder, **environment): runs the job of a folder as sbatch would, from a copy elsewhere."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL), ("torchrun", _TORCHRUN)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)

    def run(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        copy = tmp_path / "slurm_script"
        copy.write_text((folder / "job.sbatch").read_text())
        job = {
            "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "45001", "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_NODELIST": "gpu[3-10]",
        }  # fmt: skip
        return subprocess.run(
            ["bash", str(copy), *options],
            env={**job, **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def written(folder: Path, target: str = "torchrun") -> Path:
    files = export(plan_for(target), "slurm", folder, launcher=target)
    assert isinstance(files, tuple)
    return folder


def test_every_node_starts_its_part(submit: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    done = submit(written(tmp_path / "my job"), "--checkpoint", "a b")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    for node, line in enumerate(lines):
        assert f"--nproc-per-node 8 --nnodes 8 --node-rank {node} " in line
        assert "--rdzv-endpoint gpu3:25001 " in line  # 20000 and the job's number modulo 20000
        assert line.rstrip().endswith("--checkpoint a b")


def test_settings_reach_the_script(submit: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    done = submit(written(tmp_path / "job"), STEPS="7", OUTPUT="elsewhere")
    assert all("--steps 7 --output elsewhere" in line for line in done.stdout.splitlines())


WRONG = {
    "outside Slurm": ({"SLURM_JOB_ID": ""}, 1, "start this file with sbatch"),
    "too few nodes": ({"SLURM_JOB_NUM_NODES": "7"}, 2, "the job has 7 nodes; the plan needs 8"),
    "from elsewhere": ({"SLURM_SUBMIT_DIR": "/"}, 2, "//launch.sh does not exist; call sbatch in the folder"),
}


@pytest.mark.parametrize(("environment", "code", "message"), WRONG.values(), ids=WRONG)
def test_what_the_job_refuses(
    environment: dict[str, str], code: int, message: str,
    submit: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path,
) -> None:  # fmt: skip
    done = submit(written(tmp_path / "job"), **environment)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_a_job_on_processors_asks_for_no_gpus(golden: Callable[[str, str], None]) -> None:
    files = render(sample_plan(), "slurm")
    assert isinstance(files, dict)
    golden("slurm.sbatch", files["job.sbatch"])
    plan = make_plan("llama-tiny-demo", "2x2xcpu", global_batch_size=4, sequence_length=16)
    files = render(plan, "slurm")
    assert isinstance(files, dict)
    assert "#SBATCH --nodes=2\n" in files["job.sbatch"]
    assert "gpus" not in files["job.sbatch"]


def test_what_the_launcher_refuses_the_job_refuses() -> None:
    assert isinstance(render(plan_for("megatron"), "slurm", launcher="torchrun"), Rejection)

"""plan --top N --export-to TARGET: the plans worth measuring, ready to launch, and the way back of what was measured."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright import load_plan
from meshwright.exporters import EXPORTERS, render
from meshwright.exporters.script import num_nodes
from meshwright.importing import import_plan

Cli = Callable[..., Any]
PLAN = (
    "plan", "--model", "llama-3-8b", "--cluster", "2x8xH100-SXM", "--global-batch-size", "64", "--sequence-length", "4096",
    "--runtime", "megatron",
)  # fmt: skip


@pytest.fixture
def written(cli: Cli, tmp_path: Path) -> tuple[Any, Path]:
    answer = cli(*PLAN, "--top", "3", "--export-to", "megatron", "-o", "short list")
    assert answer.code == 0
    return answer, Path("short list")


def test_each_plan_is_ready_to_launch(written: tuple[Any, Path]) -> None:
    answer, folder = written
    plans = [load_plan(folder / str(number) / "plan.json") for number in (1, 2, 3)]
    steps = [plan.estimate.step_time_seconds for plan in plans if plan.estimate]
    assert [step.value for step in steps] == sorted(step.value for step in steps)
    assert steps[-1].value <= steps[0].high
    assert len({plan.plan_hash for plan in plans}) == 3
    for number, plan in enumerate(plans, start=1):
        script = folder / str(number) / "launch.sh"
        read = import_plan(script, plan.model, plan.cluster)
        assert read.plan_hash == plan.plan_hash
        assert "# written by: meshwright plan " in script.read_text()
        assert num_nodes(plan) == 2
    readme = (folder / "README.md").read_text()
    assert all(plan.plan_hash[:12] in readme for plan in plans)
    assert "bash 'short list/1/launch.sh'" in answer.out
    assert "wrote 3 plans to short list" in answer.err


def test_the_measured_steps_come_back(written: tuple[Any, Path], cli: Cli) -> None:
    """The README's own commands, with times that are a tenth longer than predicted."""
    _, folder = written
    readme = (folder / "README.md").read_text()
    for number in (1, 2, 3):
        plan = load_plan(folder / str(number) / "plan.json")
        assert plan.estimate is not None
        (note,) = re.findall(rf"^echo '(.*)' > 'short list/{number}/run.json'$", readme, re.MULTILINE)
        seconds = 1.1 * plan.estimate.step_time_seconds.value
        (folder / str(number) / "run.json").write_text(note.replace("SECONDS", repr(seconds)))
    (calibrate,) = re.findall(r"^meshwright (calibrate .*)$", readme, re.MULTILINE)
    done = cli(*shlex.split(calibrate))
    assert done.code == 0, done.err
    assert Path("site.yaml").exists()
    again = cli(*PLAN, "--site", "site.yaml", "--json")
    assert again.code == 0


def test_our_own_executor_measures_itself(cli: Cli) -> None:
    answer = cli(
        "plan", "--model", "llama-tiny-demo", "--cluster", "2xcpu", "--global-batch-size", "4", "--sequence-length", "32",
        "--top", "2", "--export-to", "torchrun", "-o", "out",
    )  # fmt: skip
    assert answer.code == 0
    readme = Path("out/README.md").read_text()
    assert "STEPS=5 OUTPUT=out/1/run bash out/1/launch.sh" in readme
    assert "out/1/plan.json out/1/run/observation.json" in readme


def test_a_slurm_job_of_each(cli: Cli) -> None:
    answer = cli(*PLAN, "--top", "2", "--export-to", "slurm", "-o", "out")
    assert answer.code == 0
    assert Path("out/1/job.sbatch").exists()
    assert "cd out/1 && sbatch job.sbatch" in Path("out/README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--export-to", "megatron"), "--export-to needs the folder to write into: -o DIR"),
        (("--export-to", "megatorn", "-o", "out"), "unknown export target 'megatorn'"),
        (("--launcher", "megatron"), "--launcher is for --export-to slurm"),
        (("--export-to", "torchrun", "-o", "out"), "cannot express a plan for runtime megatron"),
        (("--export-to", "megatron", "-o", "taken"), "README.md exists already"),
        (("--export-to", "megatron", "-o", "a file"), "a file is a file; needed the name of a folder"),
    ],
)
def test_what_is_refused(options: tuple[str, ...], message: str, cli: Cli) -> None:
    Path("taken").mkdir()
    Path("taken/README.md").write_text("mine")
    Path("a file").write_text("mine")
    answer = cli(*PLAN, *options)
    assert answer.code == 2
    assert message in answer.err
    assert not Path("out").exists()
    assert Path("taken/README.md").read_text() == "mine"


def test_the_next_command_names_the_launcher_of_the_runtime(cli: Cli) -> None:
    answer = cli(*PLAN, "-o", "plan.json")
    (command,) = (line.strip() for line in answer.out.splitlines() if " export " in line)
    assert command == "meshwright export plan.json --to megatron -o megatron-launch"
    assert render(load_plan("plan.json"), "megatron")
    assert "megatron" in EXPORTERS


def test_plans_of_an_earlier_shortlist_are_neither_mixed_in_nor_removed(written: tuple[Any, Path], cli: Cli) -> None:
    """A shorter list into the same folder would leave 3/ as if it belonged; it may hold a measured run."""
    _, folder = written
    (folder / "3/run.json").write_text("measured")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = (*PLAN, "--top", "2", "--export-to", "megatron", "-o", str(folder), "--force")
    answer = cli(*again)
    assert answer.code == 2
    assert "would keep short list/3 of an earlier shortlist beside 2 new plans" in answer.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "3").rename(folder / "kept")
    assert cli(*again).code == 0
    assert (folder / "kept/run.json").read_text() == "measured"

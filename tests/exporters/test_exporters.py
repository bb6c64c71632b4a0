"""Every exporter keeps the same promises; a new one is tested the day it is registered."""

import itertools
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sample_documents import sample_plan
from sample_plans import plan_for

from costmodel.specs import AXIS_ORDERS, InputError, Observation, Plan, Rejection, with_hash
from meshwright import export, load_plan, make_plan
from meshwright.exporters import EXPORTERS, find_exporter, reject, render, start_command


def test_json_and_yaml_are_plan_files(tmp_path: Path) -> None:
    plan = sample_plan()
    for target in ("json", "yaml"):
        written = export(plan, target, tmp_path / f"plan.{target}")
        assert isinstance(written, tuple)
        assert load_plan(written[0]) == plan


def test_a_field_that_a_target_cannot_express_is_a_rejection() -> None:
    narrow = EXPORTERS["json"]
    less = type(narrow)(
        name="narrow",
        target="a test",
        tested_versions=("1",),
        fields=narrow.fields - {"zero_stage"},
        runtimes=None,
        suffix=".json",
        render=narrow.render,
    )
    rejection = reject(less, sample_plan())
    assert isinstance(rejection, Rejection)
    assert rejection.message == "--to narrow cannot express zero_stage 1"
    assert "--fix zero_stage=0" in rejection.fix
    assert reject(less, sample_plan(zero_stage=0)) is None


def test_an_order_that_a_target_cannot_express_is_a_rejection() -> None:
    for target, can in (("json", True), ("yaml", True), ("torchrun", True), ("megatron", True), ("torchtitan", False)):
        plan = plan_for(target).model_copy(update={"axis_order": AXIS_ORDERS["data_outermost"]})
        rejection = reject(EXPORTERS[target], plan)
        assert (rejection is None) == can
        if rejection is not None:
            assert (
                rejection.message
                == "--to torchtitan cannot express axis_order data_outermost; valid: pipeline_outermost"
            )
            assert "--fix axis_order=pipeline_outermost" in rejection.fix


def test_a_megatron_plan_is_not_for_torchrun(tmp_path: Path) -> None:
    rejection = export(sample_plan(runtime="megatron"), "torchrun", tmp_path / "run")
    assert isinstance(rejection, Rejection)
    assert "--runtime torch" in rejection.fix
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_the_executor_would_refuse_is_not_for_torchrun() -> None:
    plan = sample_plan()
    training = plan.training.model_copy(
        update={"precision": plan.training.precision.model_copy(update={"compute": "fp16"})}
    )
    rejection = render(plan.model_copy(update={"training": training}), "torchrun")
    assert isinstance(rejection, Rejection)
    assert "fp16 training needs dynamic loss scaling" in rejection.message
    assert rejection.fix == "use bf16 or fp32"


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="torchrun"):
        find_exporter("slrum")


def test_devices_that_nodes_cannot_share_are_a_rejection() -> None:
    """13 devices on up to 8 nodes of 8: neither 13 on one node nor 1 on each of 13."""
    plan = sample_plan(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_shard_size=13)
    rejection = render(plan, "torchrun")
    assert isinstance(rejection, Rejection)
    assert rejection.numbers == {"num_devices_used": 13, "devices_per_node": 8, "num_nodes": 8}


def script_of(plan: Plan) -> str:
    files = render(plan, "torchrun")
    assert isinstance(files, dict)
    return files["launch.sh"]


def test_the_script_opens_with_what_it_is(golden: object) -> None:
    script = script_of(sample_plan())
    golden("torchrun.sh", script)  # type: ignore[operator]
    first = script.splitlines()[:6]
    assert first[0] == "#!/usr/bin/env bash"
    assert "torch 2.13.0" in first[1]
    assert sample_plan().plan_hash in first[2]
    assert "step time 8 s" in first[3]
    assert first[5] == "set -euo pipefail"


@pytest.mark.parametrize("name", ["run", "it's mine", "a $(touch pwned) b", 'quote"', "-n"])
def test_bash_accepts_the_script_whatever_the_folder_is_called(name: str, tmp_path: Path) -> None:
    written = export(sample_plan(), "torchrun", tmp_path / name)
    assert isinstance(written, tuple)
    script, plan_file = written
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.stat().st_mode & stat.S_IXUSR
    launched = dry_run(script, tmp_path, NNODES="1")
    assert launched[launched.index("--plan") + 1] == str(plan_file)
    assert load_plan(plan_file) == sample_plan()
    assert not (tmp_path / "pwned").exists()


def dry_run(script: Path, folder: Path, **environment: str) -> list[str]:
    """The arguments with which the script would call torchrun."""
    fake = folder / "bin" / "torchrun"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(script)],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_script_passes_what_the_user_changes(tmp_path: Path) -> None:
    written = export(sample_plan(), "torchrun", tmp_path / "run")
    assert isinstance(written, tuple)
    (tmp_path / "my text.txt").write_text("text")
    (tmp_path / "some where").mkdir()
    plan_file = written[1].rename(tmp_path / "some where" / "plan.json")
    words = dry_run(
        written[0],
        tmp_path,
        NNODES="4",
        NODE_RANK="2",
        RDZV_ENDPOINT="node0:29500",
        DATA="my text.txt",
        STEPS="7",
        OUTPUT="out put",
        PLAN=str(plan_file),
    )
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--nproc-per-node"], pairs["--nnodes"], pairs["--node-rank"]) == ("16", "4", "2")
    assert pairs["--rdzv-endpoint"] == "node0:29500"
    assert pairs["-m"] == "executor.worker"
    assert (pairs["--plan"], pairs["--data"]) == (str(plan_file), "my text.txt")
    assert (pairs["--steps"], pairs["--output"]) == ("7", "out put")
    assert (tmp_path / "out put").is_dir()


WRONG_SETTINGS = {
    "no endpoint": ({}, "RDZV_ENDPOINT is not set; needed host:port"),
    "three nodes": ({"NNODES": "3"}, "64 devices cannot be shared by NNODES=3 nodes equally"),
    "no nodes": ({"NNODES": "0"}, "NNODES is '0'; needed a whole number of at least 1"),
    "some nodes": ({"NNODES": "some"}, "NNODES is 'some'; needed a whole number"),
    "octal nodes": ({"NNODES": "08"}, "NNODES is '08'"),
    "a command for nodes": ({"NNODES": "a[$(touch pwned)]"}, "NNODES is 'a[$(touch pwned)]'"),
    "node beyond": ({"NODE_RANK": "8"}, "NODE_RANK is 8; needed at most 7 for NNODES=8"),
    "negative node": ({"NODE_RANK": "-1"}, "NODE_RANK is '-1'"),
    "no steps": ({"STEPS": "0"}, "STEPS is '0'; needed a whole number of at least 1"),
    "endless steps": ({"STEPS": "9" * 30}, "STEPS is '999"),
    "no plan": ({"PLAN": "nowhere.json"}, "the plan file nowhere.json does not exist"),
    "no text": ({"DATA": "nowhere.txt"}, "the text nowhere.txt does not exist"),
    "output taken": ({"OUTPUT": "taken"}, "taken/observation.json exists already"),
    "output is a file": ({"OUTPUT": "launch.sh"}, "OUTPUT=launch.sh is a file; needed the name of a folder"),
    "no torchrun": ({"PATH": "/usr/bin:/bin"}, "torchrun is not on the PATH"),
}


@pytest.mark.parametrize(("settings", "message"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_wrong_settings_are_one_error_and_start_nothing(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    written = export(sample_plan(), "torchrun", tmp_path / "run")
    assert isinstance(written, tuple)
    taken = tmp_path / "run" / "taken"
    taken.mkdir()
    (taken / "observation.json").write_text("mine")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **settings}
    done = subprocess.run(
        ["bash", str(written[0])], cwd=tmp_path / "run", env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run" / "pwned").exists()
    assert not (tmp_path / "run" / "meshwright-output").exists()


def test_a_command_with_line_breaks_stays_a_comment() -> None:
    plan = sample_plan()
    assert plan.provenance is not None
    provenance = plan.provenance.model_copy(update={"command": "meshwright plan --model 'a\nrm -rf /\n'"})
    script = script_of(plan.model_copy(update={"provenance": provenance}))
    assert not re.search(r"^rm", script, re.MULTILINE)


def test_cpu_plans_share_the_cores() -> None:
    plan = make_plan("llama-tiny-demo", "2xcpu", global_batch_size=2, sequence_length=32)
    assert "OMP_NUM_THREADS" in script_of(plan)
    assert "OMP_NUM_THREADS" not in script_of(sample_plan())


def test_plan_files_keep_small_and_large_floats() -> None:
    plan = sample_plan()
    optimizer = plan.training.optimizer.model_copy(update={"learning_rate": 1e-05, "epsilon": 1e-16})
    training = plan.training.model_copy(update={"optimizer": optimizer})
    plan = with_hash(plan.model_copy(update={"training": training}))
    for target, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        files = render(plan, target)
        assert isinstance(files, dict)
        assert Plan.model_validate(load(next(iter(files.values())))) == plan


@pytest.mark.distributed
def test_the_script_trains(tmp_path: Path) -> None:
    """The script alone, started by hand, trains a tiny plan on four processes: two pipeline stages, each sharded over two."""
    sizes = {"zero_stage": 2, "pipeline_parallel_size": 2, "num_micro_batches": 2}
    plan = make_plan("llama-tiny-demo", "4xcpu", global_batch_size=4, sequence_length=16, sizes=sizes)
    written = export(plan, "torchrun", tmp_path / "run")
    assert isinstance(written, tuple)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "STEPS": "2", "OUTPUT": str(tmp_path / "out")}
    done = subprocess.run(
        ["bash", str(written[0])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    observation = Observation.model_validate_json((tmp_path / "out" / "observation.json").read_text())
    assert observation.plan_hash == plan.plan_hash
    assert observation.world_size == 4
    assert len(observation.losses) == 2


def test_folders_that_look_like_options_are_started_by_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bash -n/launch.sh`` would read options."""
    monkeypatch.chdir(tmp_path)
    assert start_command(find_exporter("torchrun"), Path("-n/launch.sh")) == f"bash {tmp_path}/-n/launch.sh"
    assert start_command(find_exporter("slurm"), Path("-n/job.sbatch")) == f"cd {tmp_path}/-n && sbatch job.sbatch"
    assert start_command(find_exporter("torchrun"), Path("n/launch.sh")) == "bash n/launch.sh"

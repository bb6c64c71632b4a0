"""Runs that are saved, resumed and exported, by the real command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import meshwright, surroundings, write_plan
from tiny_plans import tiny_model

from costmodel.specs import Observation
from executor.reference import run_reference

pytestmark = pytest.mark.distributed
REPLICATED = {"data_parallel_replicate_size": 2}
PIPED = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b"}
TENSOR = {"tensor_parallel_size": 2, "sequence_parallel": True}


def losses_of(done: Any) -> tuple[float, ...]:
    assert done.returncode == 0, done.stderr
    return Observation.model_validate_json(done.stdout).losses


def test_a_run_goes_on_under_another_plan_and_is_exported(tmp_path: Path) -> None:
    """2 steps with tensor parallelism and 2 more as a pipeline are one process's 4, and the folder has the loss of its 5th."""
    plan = write_plan(tmp_path / "tensor.json", **TENSOR)
    write_plan(tmp_path / "piped.json", **PIPED)
    expected = run_reference(plan, steps=5, progress=False).losses
    saved = ["--checkpoint", tmp_path / "checkpoints"]
    first = losses_of(meshwright("run", tmp_path / "tensor.json", "--steps", 2, *saved, "--json"))
    model = tmp_path / "model"
    arguments = ["--steps", 4, *saved, "--checkpoint-every", 1, "--resume", "--save-hf", model, "--json"]
    second = meshwright("run", tmp_path / "piped.json", *arguments)
    assert (*first, *losses_of(second)) == pytest.approx(expected[:4], abs=1e-12)
    assert f"going on after step 2, from {tmp_path}/checkpoints/step-000002" in second.stderr
    assert "different from here on" not in second.stderr
    steps = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert steps == [".lock", "step-000002", "step-000003", "step-000004"]
    check_model_folder(model, expected[4])


def check_model_folder(folder: Path, next_loss: float) -> None:
    """It loads, and its weights give the loss of the batch that comes next."""
    from transformers import AutoModelForCausalLM

    from executor.checks import make_batches
    from executor.hf_models import keep_norms_in_double
    from executor.reference import accumulate_gradients
    from executor.tokenize import load_tokens

    loaded = AutoModelForCausalLM.from_pretrained(folder)
    keep_norms_in_double(loaded)
    plan = write_plan(folder.parent / "one.json")
    batches = make_batches(plan, load_tokens(plan.model), plan.training.seed)
    assert accumulate_gradients(plan, loaded, batches.batch(4)) == pytest.approx(next_loss, abs=1e-10)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert (folder / "model.safetensors").stat().st_mode & 0o077 == (folder / "config.json").stat().st_mode & 0o077


def test_a_finished_run_is_exported_without_training(tmp_path: Path) -> None:
    """A folder in use is asked about; with --force its model is replaced and nothing else."""
    write_plan(tmp_path / "plan.json")
    saved = ["--checkpoint", tmp_path / "checkpoints", "--resume"]
    started = meshwright("run", tmp_path / "plan.json", "--steps", 1, *saved, "--json")
    assert len(losses_of(started)) == 1
    assert f"no complete checkpoint in {tmp_path}/checkpoints yet: training from the start" in started.stderr
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    export = ["run", tmp_path / "plan.json", "--steps", 1, *saved, "--save-hf", tmp_path / "model", "--json"]
    refused = meshwright(*export)
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr
    done = meshwright(*export[:-1], "--force", "--save-hf-dtype", "fp32")
    assert done.returncode == 0, done.stderr
    assert "run of 1 processes on cpu" in done.stdout
    assert "loss" not in done.stdout  # no step was taken
    assert "Predicted and measured" not in done.stdout
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
        "notes.txt",
    ]
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "float32"


KILL_ONCE = """
import os
if os.environ.get("RANK") == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
    import executor.data

    batch = executor.data.GlobalBatches.batch

    def fail(self, number, **place):
        if number == 2:
            os.kill(os.getpid(), 9)
        return batch(self, number, **place)

    executor.data.GlobalBatches.batch = fail
"""


def test_processes_that_torchrun_restarts_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILL_ONCE)
    plan = write_plan(tmp_path / "plan.json", **REPLICATED)
    launch = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node", "2"]
    worker = ["-m", "executor.worker", "--plan", tmp_path / "plan.json", "--steps", 4, "--output", tmp_path]
    saving = ["--checkpoint", tmp_path / "checkpoints", "--checkpoint-every", 1]
    command = [sys.executable, *launch, *worker, *saving]
    done = subprocess.run(
        [str(word) for word in command],
        env=surroundings(str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "going on after step 2" in done.stderr
    observation = Observation.model_validate_json((tmp_path / "observation.json").read_text())
    expected = run_reference(plan, steps=4, progress=False).losses
    assert observation.losses == pytest.approx(expected[2:], abs=1e-12)


def test_a_checkpoint_of_another_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json")
    write_plan(tmp_path / "other.json", model=tiny_model(vocab_size=512))
    saved = ["--checkpoint", tmp_path / "checkpoints"]
    losses_of(meshwright("run", tmp_path / "plan.json", "--steps", 1, *saved, "--json"))
    done = meshwright("run", tmp_path / "other.json", "--steps", 2, *saved, "--resume")
    assert done.returncode == 2
    assert "step-000001 is of another model: vocab_size 256 there, 512 in the plan" in done.stderr

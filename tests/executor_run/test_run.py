"""Whole runs on processes of this machine, started the way a user starts them."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_plans import num_tiny_parameters, tiny_gpt2, tiny_plan

from costmodel.specs import ExecutionError, Observation, Plan
from executor.launch import run
from executor.reference import run_reference

pytestmark = pytest.mark.distributed
STEPS = 5

FAULT = """
import os, time
if os.environ.get("RANK") == "1":
    import executor.data

    batch = executor.data.GlobalBatches.batch

    def fail(self, number, **place):
        if number == 2:
            {action}
        return batch(self, number, **place)

    executor.data.GlobalBatches.batch = fail
"""


@pytest.fixture(scope="module")
def reference() -> tuple[float, ...]:
    losses = run_reference(tiny_plan(), steps=STEPS, progress=False).losses
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    return losses


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Observation, Path]:
    plan = tiny_plan(data_parallel_replicate_size=2)
    path = tmp_path_factory.mktemp("run") / "observation.json"
    return plan, run(plan, steps=STEPS, output=path, progress=False), path


def test_two_replicas_learn_what_one_process_learns(
    replicated: tuple[Plan, Observation, Path], reference: tuple[float, ...]
) -> None:
    assert replicated[1].losses == pytest.approx(reference, abs=1e-12)


def test_the_observation_says_what_was_measured(replicated: tuple[Plan, Observation, Path]) -> None:
    plan, observation, path = replicated
    assert observation == Observation.model_validate_json(path.read_text())
    assert observation.plan_hash == plan.plan_hash
    assert observation.world_size == 2
    # The first step warms up, the second is watched.
    times = observation.step_times_seconds
    assert len(times) == STEPS - 2
    assert observation.step_time_seconds == sorted(times)[1]
    assert observation.tokens_per_second == pytest.approx(8 * 16 / sorted(times)[1])


def test_state_bytes_of_two_replicas(replicated: tuple[Plan, Observation, Path]) -> None:
    """float64: 8 bytes for parameter and gradient, 16 for AdamW's moments, and 4 per tensor for its step (21 tensors)."""
    parameters = 8 * num_tiny_parameters()
    state = 2 * parameters + 4 * (2 * 9 + 3)
    found = {(m.rank, m.instant): (m.parameters, m.gradients, m.optimizer_state) for m in replicated[1].memory}
    assert found == {
        (rank, instant): held
        for rank in (0, 1)
        for instant, held in {
            "after_init": (parameters, 0, 0),
            "before_reduction": (parameters, parameters, state),
            "after_step": (parameters, parameters, state),
        }.items()
    }
    for peak in replicated[1].peaks:
        assert peak.tensor_bytes > 2 * parameters + state
        assert peak.resident_bytes is not None
        assert peak.resident_bytes > peak.tensor_bytes


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"data_parallel_shard_size": 2, "zero_stage": 3}, id="zero3", marks=pytest.mark.slow),
        pytest.param(
            {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True},
            id="tensor",
            marks=pytest.mark.slow,
        ),
        pytest.param({"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b"}, id="pipeline"),
    ],
)
def test_every_kind_of_parallelism_learns_the_same(sizes: dict[str, Any], reference: tuple[float, ...]) -> None:
    observation = run(tiny_plan(**sizes), steps=STEPS, progress=False)
    assert observation.losses == pytest.approx(reference, abs=1e-12)
    assert {peak.rank for peak in observation.peaks} == {0, 1}
    assert len(observation.memory) == 6


@pytest.mark.slow
def test_gpt2_learns_the_same() -> None:
    """Learned positions, biases and a tied head."""
    plan = tiny_plan(model=tiny_gpt2(), data_parallel_shard_size=2, zero_stage=2)
    expected = run_reference(plan, steps=3, progress=False).losses
    assert run(plan, steps=3, progress=False).losses == pytest.approx(expected, abs=1e-12)


def test_one_step_is_watched_but_not_timed(reference: tuple[float, ...], capfd: pytest.CaptureFixture[str]) -> None:
    observation = run(tiny_plan(), steps=1)
    assert observation.losses == pytest.approx(reference[:1], abs=1e-12)
    assert observation.step_time_seconds is None
    assert [memory.instant for memory in observation.memory] == ["after_init", "before_reduction", "after_step"]
    out, progress = capfd.readouterr()
    assert out == ""
    assert progress.startswith(f"step 1/1  loss {reference[0]:.4f}  ")


SHARDED = {"data_parallel_shard_size": 2, "zero_stage": 3}
PIPED = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b"}


@pytest.mark.parametrize(
    ("action", "sizes", "message"),
    [
        ("raise RuntimeError('the disk is full')", SHARDED, r"rank 1: RuntimeError: the disk is full\Z"),
        ("os.kill(os.getpid(), 9)", SHARDED, r"rank 1: the process was killed by SIGKILL"),
        pytest.param(
            "os.kill(os.getpid(), 9)", PIPED, r"rank 1: the process was killed by SIGKILL", marks=pytest.mark.slow
        ),
        ("time.sleep(1000)", SHARDED, r"rank 0: another process was lost or kept it waiting too long .*Timed out"),
    ],
    ids=["raises", "killed", "killed in a pipeline", "hangs"],
)
def test_a_failing_process_ends_the_run_and_is_named(
    action: str,
    sizes: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT.format(action=action))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    output = tmp_path / "observation.json"
    start = time.monotonic()
    with pytest.raises(ExecutionError) as failed:
        run(
            tiny_plan(**sizes),
            steps=STEPS,
            output=output,
            progress=False,
            timeout_seconds=5,
        )
    assert re.match(message, str(failed.value))
    assert time.monotonic() - start < 60 + 60  # at most a minute after a start that itself takes seconds
    assert capfd.readouterr() == ("", "")  # the cause is told once, by the exception
    assert not output.exists()
    assert _workers() == []


def test_an_interrupted_run_leaves_no_process_behind() -> None:
    def interrupt() -> None:
        while not _workers():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run(tiny_plan(data_parallel_replicate_size=2), steps=100_000, progress=False)
    assert _workers() == []


def test_killing_the_launcher_ends_its_processes() -> None:
    program = "from tiny_plans import tiny_plan; from executor.launch import run; run(tiny_plan(), steps=100_000)"
    launcher = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    while not _workers():
        assert launcher.poll() is None
        time.sleep(0.1)
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 40
    while _workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _workers() == []


def _workers() -> list[int]:
    """Worker processes (torchrun gives them their rank) started by this test process's runs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            environment = (folder / "environ").read_text()
        except OSError:
            continue
        marks = (f"MESHWRIGHT_TEST_OWNER={os.getpid()}\0", "\0RANK=")
        if "executor.worker" in command and all(mark in environment for mark in marks):
            found.append(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_TEST_OWNER", str(os.getpid()))

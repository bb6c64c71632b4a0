"""Run a plan dry, from a process that never imports torch: the worker is a process of its own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from costmodel.specs import Observation, Plan
from executor.checks import check_runnable
from executor.files import write_atomically
from executor.launch import run_command, worker_environment
from executor.worker import OBSERVATION_FILE


def dry_run(plan: Plan, *, progress: bool = False) -> Observation:
    """One step of every pipeline rank, without memory and without devices.

    Args:
        plan: for the runtime ``torch``.
        progress: tell on stderr which ranks are done.

    Returns:
        Per pipeline rank: the peak of tensor bytes with its parts, state, FLOP and communication.

    Raises:
        InputError: when the executor cannot run the plan.
        ExecutionError: when a process fails.
    """
    check_runnable(plan)
    with tempfile.TemporaryDirectory(prefix="meshwright-verify-") as name:
        folder = Path(name)
        write_atomically(folder / "plan.json", plan.model_dump_json())
        command = [sys.executable, "-m", "executor.dry_run", "--plan", str(folder / "plan.json"), "--output", name]
        run_command(command if progress else [*command, "--no-progress"], worker_environment(1), folder)
        return Observation.model_validate_json((folder / OBSERVATION_FILE).read_text())

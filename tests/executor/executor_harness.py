"""Runs plans on real processes and compares them with one plain process.

A pool of processes is started once (fork server with torch imported) and runs one job after another, each with its own process
group on its own file store. The reference is a plain `transformers` model: same initial values, whole global batch, mean
loss, torch's own clipping and optimizer. The comparison runs inside the pool, so the test process needs no torch.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from costmodel.specs import Plan

JOB_TIMEOUT_SECONDS = 150
GROUP_TIMEOUT_SECONDS = 60
_CONSEQUENCES = ("Connection closed by peer", "Connection reset", "Broken pipe", "timed out", "Timed out")


@dataclass(frozen=True)
class Parity:
    """How far a run is from the reference.

    Relative differences are of the weights, or of their updates, all of them together. ``relative_rounding``: how far
    the update of a mixed-precision reference is from that of the same training without rounding to the compute format.
    """

    num_compared: int
    num_parameters: int
    loss_difference: float
    weight_difference: float
    worst_weight: str
    relative_loss_difference: float
    relative_weight_difference: float
    relative_update_difference: float
    relative_rounding: float
    grad_norm_difference: float
    smallest_update: float
    clipped_steps: int
    hook_calls: list[str]


class Pool:
    """``size`` persistent processes; after a failure they are replaced."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.context = multiprocessing.get_context("forkserver")
        self.workers: list[tuple[Any, Connection]] = []

    def run(self, world_size: int, job: dict[str, Any]) -> Any:
        """Run one job on ranks 0 to ``world_size`` - 1 and return rank 0's answer."""
        self._start()
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(world_size):
                place = {"rank": rank, "world_size": world_size, "store": str(Path(folder) / "store")}
                self.workers[rank][1].send({**job, **place})
            answers = self._collect(world_size)
        errors = [text for kind, text in answers.values() if kind == "error"]
        if len(answers) < world_size:
            errors.append(f"no answer from ranks {sorted(set(range(world_size)) - set(answers))}")
        if errors:
            self.stop()
            causes = [text for text in errors if not any(mark in text for mark in _CONSEQUENCES)]
            raise AssertionError((causes or errors)[0])
        return answers[0][1]

    def _collect(self, world_size: int) -> dict[int, tuple[str, Any]]:
        pending = {self.workers[rank][1]: rank for rank in range(world_size)}
        answers: dict[int, tuple[str, Any]] = {}
        while pending:
            failed = any(kind == "error" for kind, _ in answers.values())
            ready = wait(list(pending), timeout=2 if failed else JOB_TIMEOUT_SECONDS)
            if not ready:
                break
            for connection in ready:
                rank = pending.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except EOFError:
                    answers[rank] = ("error", f"rank {rank} died")
        return answers

    def _start(self) -> None:
        if self.workers:
            return
        _start_fork_server()
        for _ in range(self.size):
            ours, theirs = self.context.Pipe()
            process = self.context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.workers.append((process, ours))

    def stop(self) -> None:
        """Kill the processes; the next job starts new ones."""
        for process, connection in self.workers:
            connection.close()
            process.kill()
            process.join()
        self.workers = []


TOLERANCE = 1e-10
MIXED_TOLERANCE = 1e-3
FEWEST_OF_A_LAYER = 6  # parameters of a layer of phi3: two norms, four products


def assert_parity(pool: Pool, plan: Plan) -> Parity:
    """Train the plan and one process; loss and every weight of the model must agree within `TOLERANCE` after 3 steps."""
    result: Parity = pool.run(plan.num_devices_used, {"kind": "parity", "plan": plan.model_dump_json()})
    assert result.num_compared == result.num_parameters >= FEWEST_OF_A_LAYER * plan.model.num_hidden_layers
    assert result.loss_difference <= TOLERANCE, result
    assert result.weight_difference <= TOLERANCE, result
    assert result.grad_norm_difference <= TOLERANCE, result
    assert result.smallest_update > 1e-4, "a weight that did not move proves nothing"
    limit = plan.training.optimizer.max_grad_norm
    assert (result.clipped_steps > 0) == (limit is not None)
    assert result.hook_calls == ["before_reduction", "after_optimizer"] * 3
    return result


def assert_mixed_parity(pool: Pool, plan: Plan) -> Parity:
    """Train the plan and one process, both in mixed precision: loss, weights and update agree within `MIXED_TOLERANCE`.

    But for the update under tensor parallelism, whose partial sums are rounded to bfloat16 before they are added: two
    roundings of one update lie sqrt(2) times as far apart as each from the update without rounding.
    """
    result: Parity = pool.run(plan.num_devices_used, {"kind": "parity", "plan": plan.model_dump_json()})
    assert result.num_compared == result.num_parameters >= FEWEST_OF_A_LAYER * plan.model.num_hidden_layers
    assert result.relative_loss_difference <= MIXED_TOLERANCE, result
    assert result.relative_weight_difference <= MIXED_TOLERANCE, result
    cut = plan.parallel.tensor_parallel_size > 1
    limit = math.sqrt(2) * result.relative_rounding if cut else MIXED_TOLERANCE
    assert result.relative_update_difference <= limit, result
    assert 3e-3 < result.relative_rounding < 0.1, "no rounding to speak of, or nothing but rounding"
    assert result.smallest_update > 1e-5, "a weight that did not move proves nothing"
    return result


def _start_fork_server() -> None:
    """Start the fork server with torch and the tests' own modules imported: its processes then start at once."""
    folder, before = str(Path(__file__).parent), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if before is None else os.pathsep.join((folder, before))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        multiprocessing.set_forkserver_preload(["executor_worker"])
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def serve(connection: Connection) -> None:
    """A pool process: answer jobs until the pipe closes."""
    import executor_worker

    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer = ("ok", executor_worker.handle(job, timedelta(seconds=GROUP_TIMEOUT_SECONDS)))
        except BaseException:
            answer = ("error", f"rank {job['rank']}:\n{traceback.format_exc()}")
        connection.send(answer)

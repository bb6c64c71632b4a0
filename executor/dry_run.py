"""Dry runs of the pipeline ranks of a plan, in processes of their own: torch is imported once and they are forked from here.

Usage: ``python -m executor.dry_run --plan plan.json --output FOLDER``

Writes ``FOLDER/observation.json``; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from costmodel.specs import ExecutionError, Observation, Plan
from executor.checks import check_runnable
from executor.cores import num_cores
from executor.dry_run_extend import extend, micro_batch_counts, representatives, with_micro_batches
from executor.dry_run_observe import make_observation
from executor.dry_run_rank import DryStep, dry_step
from executor.failures import describe, load, root_cause, save, to_exception
from executor.files import read_plan, write_atomically
from executor.lifetime import die_with_parent
from executor.mesh import first_rank
from executor.worker import OBSERVATION_FILE

Task = tuple[int, int]  # pipeline rank, number of micro-batches


def observe(plan: Plan, folder: Path, *, progress: Callable[[str], None] = lambda _: None) -> Observation:
    """Run every distinct pipeline rank dry, as many at a time as there are cores.

    Args:
        plan: for the runtime ``torch``.
        folder: for the processes' results; empty.
        progress: told about every rank that is done.

    Raises:
        InputError: when the executor cannot run the plan.
        ExecutionError: when a process fails.
    """
    check_runnable(plan)
    chosen = representatives(plan)
    tasks = [(rank, count) for rank in sorted(set(chosen.values())) for count in micro_batch_counts(plan.parallel)]
    # The longest first: what is left at the end is short.
    _run_all(plan, sorted(tasks, key=lambda task: -task[1]), folder, progress)
    steps: dict[int, dict[int, DryStep]] = {}
    for rank, count in tasks:
        steps.setdefault(rank, {})[count] = pickle.loads(_result(folder, (rank, count)).read_bytes())
    return make_observation(plan, {rank: extend(steps[chosen[rank]], plan) for rank in chosen})


def _run_all(plan: Plan, tasks: Sequence[Task], folder: Path, progress: Callable[[str], None]) -> None:
    context = multiprocessing.get_context("fork")
    waiting, running, done = list(tasks), dict[int, tuple[BaseProcess, Task]](), 0
    try:
        while waiting or running:
            while waiting and len(running) < num_cores():
                task = waiting.pop(0)
                process = context.Process(target=_run_one, args=(plan, task, folder, os.getpid()))
                process.start()
                running[process.sentinel] = process, task
            for sentinel in wait(list(running)):
                ended, (rank, count) = running.pop(sentinel)  # type: ignore[arg-type]
                ended.join()
                if ended.exitcode:
                    failure, end = root_cause(load(folder)), f"ended with exit code {ended.exitcode}"
                    unsaid = ExecutionError(f"the dry run of pipeline rank {rank} {end}")
                    raise to_exception(failure) if failure else unsaid
                done += 1
                progress(f"{done} of {len(tasks)}: pipeline rank {rank} with {count} micro-batches")
    finally:
        for left, _ in running.values():
            left.kill()
            left.join()


def _run_one(plan: Plan, task: Task, folder: Path, parent: int) -> None:
    import torch

    die_with_parent(signal.SIGKILL, parent)
    torch.set_num_threads(1)
    number, count = task
    rank = first_rank(plan, number)
    try:
        step = dry_step(with_micro_batches(plan, count), rank)
        _result(folder, task).write_bytes(pickle.dumps(step))
    except BaseException as error:
        save(describe(error, rank), folder)
        os._exit(1)
    # Not a clean end: tearing down fake groups gains nothing.
    os._exit(0)


def _result(folder: Path, task: Task) -> Path:
    return folder / f"rank{task[0]}-{task[1]}.pickle"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run dry as the command line says; failures are written into the folder."""
    parser = argparse.ArgumentParser(prog="executor.dry_run", description="One step of a plan without memory or peers.")
    parser.add_argument("--plan", type=Path, required=True, help="plan file (JSON)")
    parser.add_argument("--output", type=Path, required=True, help=f"folder for {OBSERVATION_FILE}")
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    options = parser.parse_args(arguments)
    die_with_parent(signal.SIGKILL, os.getppid())
    try:
        tell: Callable[[str], None] = (lambda _: None) if options.no_progress else _tell
        observation = observe(read_plan(options.plan), options.output, progress=tell)
        write_atomically(options.output / OBSERVATION_FILE, observation.model_dump_json(indent=2) + "\n")
    except BaseException as error:
        failure = describe(error, 0)
        save(failure, options.output)
        return 2 if failure.kind == "input" else 1
    return 0


def _tell(text: str) -> None:
    print(f"dry run {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""A profile of this machine, or of all machines that torchrun started, for planning.

Everything is measured with all processes busy at once, so the numbers contain what they take from each other: shared
cores, caches, memory bandwidth, the network. A ``cpu`` device is one process with its share of the cores; a ``cuda``
device is one GPU with one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from costmodel.specs import ClusterSpec, ExecutionError, InputError
from executor.cores import check_processes, read_or_empty, threads_per_process
from executor.interface import set_gloo_interface
from executor.launch import describe_end, worker_environment
from executor.measured import make_cluster
from executor.measured_draft import Measured
from executor.place import Place, place_from_environment

START_SECONDS = 6.0
"""Importing torch and joining the processes."""
_ALREADY_IMPORTED = 2.0


def _ignore(_: str) -> None:
    """Progress that nobody watches."""


def measure_machine(
    *,
    kind: str | None = None,
    num_processes: int | None = None,
    budget_seconds: float = 20.0,
    quick: bool = True,
    progress: Callable[[str], None] = _ignore,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
) -> Measured:
    """Measure this machine, or under torchrun this process's share of all machines.

    Args:
        kind: cpu or cuda; None takes CUDA devices where there are any.
        num_processes: processes that training will use at the same time; None takes one for each CUDA device, or
            torchrun's. Needed on a CPU.
        budget_seconds: wall time to spend, starting the processes included.
        quick: fewer sizes.
        progress: told what is measured next.
        environment: None takes this process's.
        timeout_seconds: under torchrun, how long a process waits for another; None: 60.

    Returns:
        The cluster, every measured number with its source; the same on every process that torchrun started.

    Raises:
        InputError: for a number of processes, a kind or a time that cannot be.
        ExecutionError: when a measuring process fails.
    """
    if not budget_seconds > START_SECONDS:
        raise InputError(f"budget_seconds is {budget_seconds:g}; starting takes {START_SECONDS:g} s: give more, say 20")
    place = place_from_environment(os.environ if environment is None else environment)
    found_kind = choose_kind(kind)
    if place is not None:
        if num_processes not in (None, place.local_size):
            raise InputError(f"num_processes is {num_processes}; torchrun started {place.local_size} on this node")
        found = _measure_here(
            place,
            found_kind,
            budget_seconds - _ALREADY_IMPORTED,
            quick=quick,
            progress=progress,
            timeout_seconds=timeout_seconds,
        )
    else:
        count = _count(found_kind, num_processes)
        found = _measure_children(found_kind, count, budget_seconds - START_SECONDS, quick=quick, progress=progress)
    _check_equal(found["facts"])
    return make_cluster(found["facts"], found["readings"], processor=processor_name())


def measure_cpu(num_processes: int, budget_seconds: float = 20.0) -> ClusterSpec:
    """This machine as a node of ``num_processes`` cpu devices, by the short menu; errors as `measure_machine`."""
    return measure_machine(
        kind="cpu", num_processes=num_processes, budget_seconds=budget_seconds, environment={}
    ).cluster


def choose_kind(stated: str | None) -> str:
    """What is measured: cpu or cuda.

    Raises:
        InputError: for another word, or cuda without CUDA devices.
    """
    if stated not in (None, "cpu", "cuda"):
        raise InputError(f"device is {stated!r}; needed cpu or cuda")
    if stated == "cpu":
        return "cpu"
    import torch

    available = torch.cuda.is_available() and torch.cuda.device_count() > 0
    if stated == "cuda" and not available:
        raise InputError("torch finds no CUDA device here; measure this machine's CPU with --device cpu")
    return "cuda" if available else "cpu"


def processor_name() -> str:
    """The host's processor as the system names it."""
    for line in read_or_empty(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def _count(kind: str, stated: int | None) -> int:
    if kind == "cpu":
        if stated is None:
            raise InputError(
                "num_processes is missing; on a CPU state how many processes train side by side (--processes N)"
            )
        if stated < 1:
            raise InputError(f"num_processes is {stated}; needed: at least 1")
        check_processes(stated)
        return stated
    import torch

    found = torch.cuda.device_count()
    count = found if stated is None else stated
    if not 1 <= count <= found:
        raise InputError(f"num_processes is {count}; needed 1 to {found}, one for each CUDA device")
    return count


def _check_equal(facts: Mapping[str, Any]) -> None:
    if len(facts["names"]) > 1:
        raise InputError(f"the processes have different devices: {', '.join(facts['names'])}; plans need equal ones")


def _measure_here(
    place: Place,
    kind: str,
    seconds: float,
    *,
    quick: bool,
    progress: Callable[[str], None],
    timeout_seconds: float | None,
) -> dict[str, Any]:
    """This process is one of torchrun's."""
    import torch

    from executor.measure_process import TIMEOUT_SECONDS, run_measurements

    torch.set_num_threads(threads_per_process(place.local_size))
    tell = progress if place.rank == 0 else _ignore
    if kind == "cpu" and place.num_nodes > 1:
        set_gloo_interface(os.environ["MASTER_ADDR"])
    try:
        return run_measurements(
            place,
            kind=kind,
            init_method="env://",
            seconds=seconds,
            quick=quick,
            progress=tell,
            timeout_seconds=timeout_seconds or TIMEOUT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:  # a peer that is gone, an endpoint that is none
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExecutionError(f"measuring failed on rank {place.rank} of {place.size}: {reason}") from error


def _measure_children(
    kind: str, num_processes: int, seconds: float, *, quick: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Start the processes of this machine and take what they found."""
    size = str(num_processes)
    command = [sys.executable, "-m", "executor.measure_worker", kind, size, f"{seconds:.3f}"]
    command.append("quick" if quick else "thorough")
    lines: list[dict[str, Any]] = []

    def read(line: str) -> None:
        content = json.loads(line) if line.startswith("{") else {}
        if "progress" in content:
            progress(content["progress"])
        elif content:
            lines.append(content)

    code, errors = _finish(command, worker_environment(num_processes), 10 * seconds + 120, read)
    if code or not lines:
        reason = (errors.strip().splitlines() or [describe_end(code)])[-1]
        raise ExecutionError(f"measuring with {num_processes} processes failed: {reason}")
    return lines[-1]


def _finish(
    command: list[str], environment: dict[str, str], limit_seconds: float, read: Callable[[str], None]
) -> tuple[int, str]:
    """Exit code and stderr of a program, its stdout line by line; whatever it started ends with it, or with this process."""
    pipe = subprocess.PIPE
    errors: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [_reader(process.stdout, read), _reader(process.stderr, errors.append)]
        try:
            process.wait(timeout=limit_seconds)
        except subprocess.TimeoutExpired as error:
            raise ExecutionError(f"measuring did not end within {limit_seconds:.0f} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for reader in readers:
                reader.join()
    return process.returncode, "".join(errors)


def _reader(stream: IO[str], take: Callable[[str], object]) -> threading.Thread:
    """A thread that hands over a stream's lines until it ends."""

    def work() -> None:
        for line in stream:
            take(line)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread

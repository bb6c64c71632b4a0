"""Run a plan: start one process per device of this node with torchrun, wait, and return what was measured."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from costmodel.specs import ExecutionError, InputError, Observation, Plan
from executor.checks import check_data, check_runnable
from executor.cores import check_processes, threads_per_process
from executor.endpoint import check_endpoint
from executor.failures import load, root_cause, to_exception
from executor.files import write_atomically
from executor.outputs import Outputs, check_apart
from executor.worker import JOIN_TIMEOUT_SECONDS, OBSERVATION_FILE

_STOP_SECONDS = 10.0
SILENT = "FATAL"
"""Of torch's C++ log: a node that is not there yet is no page of stack frames. The agent lets its processes' errors pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Where this node stands among all.

    ``rdzv_endpoint``: host:port of node 0, needed for more than one node. ``timeout_seconds``: how long it waits for
    them; None: 60.
    """

    nnodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str | None = None
    timeout_seconds: float | None = None


def run(
    plan: Plan,
    *,
    steps: int,
    data: str | Path | None = None,
    output: str | Path | None = None,
    force: bool = False,
    seed: int | None = None,
    nnodes: int = 1,
    node_rank: int = 0,
    rdzv_endpoint: str | None = None,
    progress: bool = True,
    timeout_seconds: float | None = None,
    outputs: Outputs | None = None,
) -> Observation:
    """Train ``steps`` optimizer steps with the plan.

    Args:
        plan: for the runtime ``torch``.
        steps: optimizer steps, counted from the start of training; from three on, step times are measured.
        data: text, JSON Lines or token file; None trains on the text that meshwright carries.
        output: file for the Observation (JSON); None keeps nothing.
        force: replace an existing ``output``.
        seed: of weights and data order; None takes the plan's.
        nnodes: nodes of the run; every node calls this function.
        node_rank: number of this node, from 0.
        rdzv_endpoint: host:port of node 0, where the nodes meet.
        progress: show loss and speed on stderr.
        timeout_seconds: how long nodes and processes wait for one another before the run fails; None: 60, in training 20
            predicted steps if those take longer.
        outputs: checkpoints and the exported model; None saves neither.

    Returns:
        Losses of all steps, step times without the first two steps, and per rank the bytes of parameters,
        gradients and optimizer state at the three instants and the peak of all tensors.

    Raises:
        InputError: when the plan, the text, the nodes or the output cannot be used.
        ExecutionError: when a process fails; it names the rank and the cause.
    """
    data_path = None if data is None else Path(data)
    output_path = None if output is None else Path(output)
    outputs = outputs or Outputs()
    nodes = Nodes(nnodes=nnodes, node_rank=node_rank, rdzv_endpoint=rdzv_endpoint, timeout_seconds=timeout_seconds)
    _check(plan, steps=steps, data=data_path, output=output_path, force=force, nodes=nodes, outputs=outputs)
    if progress and nnodes > 1:
        print(f"node {node_rank} of {nnodes} meets the others at {rdzv_endpoint} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="meshwright-run-") as name:
        folder = Path(name)
        arguments = worker_arguments(plan, folder, steps=steps, data=data_path, seed=seed, progress=progress)
        arguments += [] if timeout_seconds is None else ["--timeout-seconds", str(timeout_seconds)]
        arguments += outputs.arguments()
        _start_and_wait(plan, arguments, nodes, folder)
        observation = Observation.model_validate_json((folder / OBSERVATION_FILE).read_text())
    if output_path is not None:
        write_observation(observation, output_path, force=force)
    return observation


def write_observation(observation: Observation, output: Path, *, force: bool) -> None:
    """Write it; whoever made the file meanwhile keeps it, and the training was not for nothing either.

    Raises:
        ExecutionError: when there is one (without ``force``); names the file beside it that holds the observation.
    """
    text = observation.model_dump_json(indent=2) + "\n"
    if force or not os.path.lexists(output):
        write_atomically(output, text)
        return
    beside = output.with_name(f"{output.stem[:100]}-{secrets.token_hex(4)}{output.suffix}")
    write_atomically(beside, text)
    raise ExecutionError(f"output {output} was made by somebody else during this run; its observation is in {beside}")


def _check(
    plan: Plan, *, steps: int, data: Path | None, output: Path | None, force: bool, nodes: Nodes, outputs: Outputs
) -> None:
    if steps < 1:
        raise InputError(f"steps is {steps}; needed: at least 1")
    if nodes.timeout_seconds is not None and not nodes.timeout_seconds >= 1:
        raise InputError(f"timeout_seconds is {nodes.timeout_seconds:g}; needed: at least 1")
    if output is not None and output.is_dir():
        raise InputError(f"output {output} is a folder; give the name of a file")
    if output is not None and os.path.lexists(output) and not force:
        raise InputError(f"output {output} exists already; choose another name or pass --force to replace it")
    check_runnable(plan)
    _check_nodes(plan, nodes)
    _check_devices(plan, plan.num_devices_used // nodes.nnodes)
    check_apart(outputs, output=output, data=data)
    outputs.check(plan, steps=steps)
    check_data(plan, data)


def _check_nodes(plan: Plan, nodes: Nodes) -> None:
    if nodes.nnodes < 1 or plan.num_devices_used % nodes.nnodes:
        raise InputError(
            f"{plan.num_devices_used} devices of the plan cannot be shared by {nodes.nnodes} nodes equally: "
            f"nnodes must divide {plan.num_devices_used}"
        )
    if not 0 <= nodes.node_rank < nodes.nnodes:
        needed = f"0 to {nodes.nnodes - 1} for {nodes.nnodes} nodes" if nodes.nnodes > 1 else "0, as there is one node"
        raise InputError(f"node_rank is {nodes.node_rank}; needed: {needed}")
    if nodes.rdzv_endpoint:
        check_endpoint(nodes.rdzv_endpoint, resolve=nodes.nnodes > 1)
    elif nodes.nnodes > 1:
        raise InputError(f"{nodes.nnodes} nodes need rdzv_endpoint, the host:port of node 0, the same on every node")


def _check_devices(plan: Plan, needed: int) -> None:
    device = plan.cluster.device
    if device.kind == "cpu":
        check_processes(needed)
        return
    import torch

    found = torch.cuda.device_count()
    if found < needed:
        raise InputError(
            f"the plan is for {device.name} and needs {needed} CUDA devices on this node; found {found}: "
            "run it where the devices are (meshwright export), or plan for this machine (meshwright hardware measure)"
        )


def torchrun_arguments(plan: Plan, nodes: Nodes) -> list[str]:
    """Options of torchrun for this node, without the program."""
    per_node = ["--nproc-per-node", str(plan.num_devices_used // nodes.nnodes)]
    if nodes.nnodes == 1:
        return ["--standalone", *per_node]
    # The static backend takes the node's rank as stated; c10d would hand ranks out in the order of arrival.
    endpoint = ["--rdzv-backend", "static", "--rdzv-endpoint", str(nodes.rdzv_endpoint)]
    endpoint += ["--rdzv-conf", f"timeout={math.ceil(nodes.timeout_seconds or JOIN_TIMEOUT_SECONDS)}"]
    identity = ["--node-rank", str(nodes.node_rank), "--rdzv-id", plan.plan_hash[:16]]
    return ["--nnodes", str(nodes.nnodes), *identity, *endpoint, *per_node]


def worker_environment(num_processes: int) -> dict[str, str]:
    """This process's environment with the cores shared out among the node's processes."""
    threads = str(threads_per_process(num_processes))
    shares = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    return {"TORCH_CPP_LOG_LEVEL": SILENT, **os.environ, **shares}


def worker_arguments(
    plan: Plan, folder: Path, *, steps: int, data: Path | None, seed: int | None, progress: bool
) -> list[str]:
    """The command line of `executor.worker`, everything in ``folder``; writes the plan there."""
    write_atomically(folder / "plan.json", plan.model_dump_json())
    arguments = ["--plan", str(folder / "plan.json"), "--steps", str(steps), "--output", str(folder)]
    arguments += ["--failures", str(folder)]
    arguments += [] if data is None else ["--data", str(data.resolve())]
    arguments += [] if seed is None else ["--seed", str(seed)]
    return arguments if progress else [*arguments, "--no-progress"]


def _start_and_wait(plan: Plan, arguments: list[str], nodes: Nodes, folder: Path) -> None:
    command = [sys.executable, "-m", "executor.agent", str(folder), str(os.getpid()), *torchrun_arguments(plan, nodes)]
    command += ["--log-dir", str(folder), "-m", "executor.worker", *arguments]
    run_command(command, worker_environment(plan.num_devices_used // nodes.nnodes), folder)


def run_command(command: list[str], environment: dict[str, str], folder: Path) -> None:
    """Run a program that writes its failures into ``folder``, to its end.

    Raises:
        InputError: when it failed because of its input.
        ExecutionError: when it failed otherwise; names the rank and the cause.
    """
    # Its own session: Ctrl-C reaches it through us, once, and nothing of it survives us. Whatever a library prints to
    # stdout goes to stderr (2): stdout belongs to the caller's answer.
    process = subprocess.Popen(command, env=environment, stdout=2, start_new_session=True)
    try:
        with _forwarded_signals(process):
            code = process.wait()
    finally:
        _stop(process)
    if code:
        failure = root_cause(load(folder))
        raise to_exception(failure) if failure else ExecutionError(describe_end(code))


def describe_end(code: int) -> str:
    """How the agent ended that started the processes, where no process said why."""
    if code > 128:
        return f"the run was stopped by signal {code - 128}"
    if code == -signal.SIGTERM:  # ours, passed on before there was anything to end in good order
        return f"the run was stopped by signal {-code}"
    if code < 0:
        return f"the process that starts the others was killed by signal {-code}"
    return f"the run ended with exit code {code}"


@contextlib.contextmanager
def _forwarded_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM on to the processes; SIGINT raises KeyboardInterrupt here and `_stop` passes it on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    previous = signal.signal(signal.SIGTERM, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the agent, which ends its processes; by force when it does not within `_STOP_SECONDS`."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

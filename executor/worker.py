"""One process of a run; torchrun starts one per device.

Usage: ``torchrun --nproc-per-node N -m executor.worker --plan plan.json --steps 100 --output FOLDER``

The process with global rank 0 shows progress on stderr; every node's first process writes
``FOLDER/observation.json``. A process that fails says so in one line (``rank 3: ...``) and ends with exit code 2
for bad input, else 1.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from costmodel.specs import ExecutionError, InputError, Observation, Plan
from executor.checks import check_runnable, make_batches
from executor.data import digest
from executor.failures import describe, save
from executor.files import read_plan, write_atomically
from executor.interface import set_gloo_interface
from executor.lifetime import die_with_parent
from executor.outputs import add_output_options, outputs_of
from executor.tokenize import load_tokens

OBSERVATION_FILE = "observation.json"
JOIN_TIMEOUT_SECONDS = 60.0
TIMEOUT_STEPS = 20


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of one process."""
    parser = argparse.ArgumentParser(prog="executor.worker", description="One process of a training run.")
    parser.add_argument("--plan", type=Path, required=True, help="plan file (JSON)")
    parser.add_argument("--steps", type=int, required=True, help="optimizer steps to train")
    parser.add_argument("--output", type=Path, required=True, help=f"folder for {OBSERVATION_FILE}")
    parser.add_argument(
        "--data", type=Path, help="text, JSON Lines or token file; default: the text that meshwright carries"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the plan's device")
    parser.add_argument("--seed", type=int, help="of weights and data order; default: the plan's")
    parser.add_argument("--force", action="store_true", help=f"replace an existing {OBSERVATION_FILE} or model")
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    parser.add_argument(
        "--timeout-seconds",
        type=float,
        help="how long a process waits for another; default: 60, in training 20 predicted steps if longer",
    )
    add_output_options(parser)
    parser.add_argument("--failures", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; failures are written or printed here, once."""
    options = parse_arguments(arguments)
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        die_with_parent(signal.SIGKILL, os.getppid())
    try:
        work(options)
    except BaseException as error:
        return _report(error, rank, options.failures)
    return 0


def work(options: argparse.Namespace) -> Observation:
    """Read, check, join the other processes, train, gather and write.

    Raises:
        InputError: for a plan, text or output that cannot be used.
    """
    plan = read_plan(options.plan)
    if options.steps < 1:
        raise InputError(f"steps is {options.steps}; needed: at least 1")
    output = options.output / OBSERVATION_FILE
    if os.path.lexists(output) and not options.force:
        raise InputError(f"{output} exists already; choose another folder or pass --force to replace it")
    check_runnable(plan)
    outputs = outputs_of(options, restarted=_attempt() > 0)
    outputs.check(plan, steps=options.steps)
    seed = plan.training.seed if options.seed is None else options.seed
    tokens = load_tokens(plan.model, options.data)
    batches = make_batches(plan, tokens, seed)
    device_kind = options.device or plan.cluster.device.kind
    _join(plan, device_kind, options.timeout_seconds or JOIN_TIMEOUT_SECONDS)
    from executor.train import train

    observation = train(
        plan,
        batches,
        outputs,
        steps=options.steps,
        device_kind=device_kind,
        seed=seed,
        data=digest(tokens),
        timeout_seconds=options.timeout_seconds or default_timeout(plan),
        progress=not options.no_progress,
    )
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        write_atomically(output, observation.model_dump_json(indent=2) + "\n")
    return observation


def default_timeout(plan: Plan) -> float:
    """Seconds that no process of a healthy run waits for another: many steps, and enough for a slow start."""
    predicted = plan.estimate.step_time_seconds.high if plan.estimate is not None else 0.0
    return max(JOIN_TIMEOUT_SECONDS, TIMEOUT_STEPS * predicted)


def _join(plan: Plan, device_kind: str, timeout_seconds: float) -> None:
    import torch
    import torch.distributed as dist

    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != plan.num_devices_used:
        raise InputError(
            f"the plan uses {plan.num_devices_used} devices, one process each, but {world} processes were started: "
            f"start {plan.num_devices_used} in all, for example torchrun --nproc-per-node {plan.num_devices_used}"
        )
    if device_kind == "cuda":
        local, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= found:
            raise InputError(f"this node has {found} CUDA devices, but process {local} (from 0) needs its own")
        torch.cuda.set_device(local)
    else:  # gloo has no all-to-all; torch's fallback is exact and says so on every rank
        logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)
        if world > int(os.environ.get("LOCAL_WORLD_SIZE", world)):
            set_gloo_interface(os.environ["MASTER_ADDR"])
    backend, timeout = ("nccl" if device_kind == "cuda" else "gloo"), timedelta(seconds=timeout_seconds)
    if "RANK" in os.environ:
        _meet(backend, timeout)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)


def _meet(backend: str, timeout: timedelta) -> None:
    """Join the processes that torchrun started; a failure names those that did not come."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    shared, rank, world = next(rendezvous("env://", timeout=timeout))
    # torchrun's store outlives a restart: without a name of its own an attempt would read its predecessor's addresses.
    store = dist.PrefixStore(f"attempt{_attempt()}", shared)  # type: ignore[attr-defined]
    store.set(f"here{rank}", "")
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        missing = [str(other) for other in range(world) if not store.check([f"here{other}"])]
        if not missing:
            raise
        who = f"ranks {', '.join(missing)}" if len(missing) > 1 else f"rank {missing[0]}"
        raise ExecutionError(
            f"{who} of {world} did not join within {timeout.total_seconds():g} s: it ended, or its node is not there"
        ) from error


def _attempt() -> int:
    """How often torchrun started the processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _report(error: BaseException, rank: int, folder: Path | None) -> int:
    failure = describe(error, rank)
    if folder is not None:
        save(failure, folder)
    elif failure.kind != "input" or int(os.environ.get("LOCAL_RANK", "0")) == 0:
        print(failure, file=sys.stderr, flush=True)
    return 2 if failure.kind == "input" else 1


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after a failure, tearing down groups that still wait for lost peers can hang for minutes.
    os._exit(exit_code)

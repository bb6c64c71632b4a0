"""The product's own commands on two emulated nodes: measure the cluster, list its candidate plans, run them.

All traffic is counted by the kernel on each node's interface (/proc/net/dev), with its frames' headers; what a plan predicts
is without them. A full frame carries 1448 of its 1514 bytes (Ethernet 14, IP 20, TCP 20 with 12 of timestamps). Up to one frame
of 66 bytes acknowledges two of the other node's, 2.3% more where it sends as much; those that carry data too cost nothing.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from emulation import Node

import meshwright
from costmodel.specs import DEFAULT_AXIS_ORDER, ClusterSpec, Plan
from planner.candidates import row_plan, sift
from planner.space import declare_space

FRAMING = 1514 / 1448
"""Bytes on the wire for a byte sent."""
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "vocab_size": 2048,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
"""3.7 million parameters: computing a step takes a few tenths of a second, sending its gradients one and more."""
SCHEDULES = "none,naive,gpipe,1f1b,interleaved_1f1b"
GLOBAL_BATCH_SIZE = 8
SEQUENCE_LENGTH = 128
_PORTS = iter(range(29600, 32000))
_MEASURE_SECONDS = 240
_RUN_SECONDS = 300
_POLL_SECONDS = 0.003
_FIRST_TIMED = 2
"""Steps before the first one that is timed and counted: a warm-up and one that is watched (executor/observe.py)."""
_STEP = re.compile(r"step (\d+)/")


@dataclass(frozen=True)
class Measured:
    """A plan that ran: seconds of its timed steps, and bytes that each node sent in one step, with headers."""

    step_seconds: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    last_loss: float


def measure_cluster(nodes: Sequence[Node], folder: Path, *, processes: int) -> ClusterSpec:
    """`meshwright hardware measure` under torchrun on every node."""
    path, port = folder / f"cluster_{processes}.yaml", next(_PORTS)
    programs = []
    for rank, node in enumerate(nodes):
        place = ["--nnodes", str(len(nodes)), "--node-rank", str(rank), "--nproc-per-node", str(processes)]
        meeting = ["--master-addr", nodes[0].address, "--master-port", str(port)]
        words = [*_module("torch.distributed.run"), "--no-python", *place, *meeting]
        words += [*_module("meshwright.cli.app"), "hardware", "measure", "--device", "cpu", "-o", str(path)]
        log = folder / f"measure_{processes}_{rank}.log"
        programs.append((node.start(words, seconds=_MEASURE_SECONDS, log=log, environment=_environment()), log))
    for program, log in programs:
        assert program.wait() == 0, log.read_text()
    return meshwright.load_cluster(path)


def candidates(folder: Path, cluster: ClusterSpec, *, tensor: str) -> list[Plan]:
    """All candidates of the planner's space that keep the rules and fit, each with its estimate, fastest first.

    Recomputation is left out: every memory is large enough. Tensor parallelism over nodes is no default of that space, so its
    sizes are stated in ``tensor``.
    """
    config = folder / "config.json"
    config.write_text(json.dumps(LLAMA))
    stated = meshwright.make_plan(
        config, cluster, global_batch_size=GLOBAL_BATCH_SIZE, sequence_length=SEQUENCE_LENGTH, precision="fp32",
        sizes={"data_parallel_replicate_size": cluster.num_devices},
    )  # fmt: skip
    space = declare_space(
        stated.model, cluster, stated.training, meshwright.load_runtime("torch"),
        fix={"recompute": "none"}, allow={"tensor_parallel_size": tensor, "pipeline_schedule": SCHEDULES},
    )  # fmt: skip
    found = sift(space)
    plans = [row_plan(space.context, found.grid, int(row)) for row in np.flatnonzero(found.fits)]
    priced = [plan.model_copy(update={"estimate": meshwright.estimate(plan)}) for plan in plans]
    return sorted(priced, key=predicted_seconds)


def run_plan(nodes: Sequence[Node], plan: Plan, folder: Path, *, steps: int) -> Measured:
    """`meshwright run` on every node; the counters are read whenever a step ends."""
    assert steps <= 10, "up to ten steps every one of them is a line of the log"
    path, port = folder / "plan.json", next(_PORTS)
    path.write_text(plan.model_dump_json())
    programs, logs = [], []
    for rank, node in enumerate(nodes):
        place = ["--nnodes", str(len(nodes)), "--node-rank", str(rank), "--rdzv-endpoint", f"{nodes[0].address}:{port}"]
        words = [*_module("meshwright.cli.app"), "run", str(path), "--steps", str(steps), *place]
        words += ["--output", str(folder / f"observation_{rank}.json"), "--force"]
        logs.append(folder / f"run_{rank}.log")
        programs.append(node.start(words, seconds=_RUN_SECONDS, log=logs[-1], environment=_environment()))
    counts: dict[int, list[int]] = {}
    while any(program.poll() is None for program in programs):
        for number in map(int, _STEP.findall(logs[0].read_text())):
            if number not in counts:
                counts[number] = [node.sent_bytes() for node in nodes]
        time.sleep(_POLL_SECONDS)
    for program, log in zip(programs, logs, strict=True):
        assert program.returncode == 0, f"{plan_name(plan)}: {log.read_text()}"
    observation = json.loads((folder / "observation_0.json").read_text())
    sent = tuple(_median_increase([counts[step][rank] for step in range(_FIRST_TIMED, steps + 1)]) for rank in (0, 1))
    return Measured(tuple(observation["step_times_seconds"]), sent, observation["losses"][-1])


def _median_increase(counts: Sequence[int]) -> float:
    """The median over the steps: a counter that was read late has a step too much, and the next one a step too little."""
    return statistics.median(after - before for before, after in pairwise(counts))


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def _environment() -> dict[str, str]:
    """As a user has it: nothing that says which interface to use."""
    return {name: value for name, value in os.environ.items() if name not in ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")}


def predicted_seconds(plan: Plan) -> float:
    """The estimate's step time."""
    assert plan.estimate is not None
    return plan.estimate.step_time_seconds.value


def plan_name(plan: Plan) -> str:
    """The sizes that differ between candidates, in short."""
    sizes = plan.parallel
    words = []
    if sizes.pipeline_parallel_size > 1:
        chunks = f" x{sizes.num_model_chunks}" if sizes.num_model_chunks > 1 else ""
        words.append(f"PP{sizes.pipeline_parallel_size} {sizes.pipeline_schedule}{chunks}")
    if sizes.tensor_parallel_size > 1:
        words.append(f"TP{sizes.tensor_parallel_size}{' SP' if sizes.sequence_parallel else ''}")
    if sizes.data_parallel_shard_size > 1:
        words.append(f"ZeRO-{sizes.zero_stage} over {sizes.data_parallel_shard_size}")
    if sizes.data_parallel_replicate_size > 1:
        words.append(f"DP{sizes.data_parallel_replicate_size}")
    order = "" if plan.axis_order == DEFAULT_AXIS_ORDER else ", data outermost"
    return f"{' x '.join(words)}, {sizes.num_micro_batches} x {sizes.micro_batch_size}{order}"

"""What predictions cost: one ranking evaluation, one reported longest path, and the cells of a grid that a CPU-second settles.

python -m benchmarks.estimate

All figures are CPU time of the process on one core; every figure is the median of `REPEATS` measurements.

1. A ranking evaluation is `costmodel.estimate.step_seconds` of one complete plan: its lower bound (``exact=False``), and its step
   time (``exact=True``), whose longest path is walked anew but whose graph is known, as in a ranking. Over the published runs in
   data/published_runs, and over plans spread evenly over the candidates of a search that fit.
2. A reported longest path is that of a plan nobody asked for before: its graph is built, then walked.
3. A cell is one candidate of the declared space (one row of its grid: all sizes, schedule, batch split and recomputation). It is
   settled when it is known to break a rule, not to fit, not to be faster than the best, or when its exact step time is known.
   The time is that of everything `meshwright.plan` does in a process of its own, from reading the inputs to the finished
   recommendation, imports included, the start of the interpreter not. Small spaces are dominated by what every plan costs.

Beside them what the repositories named in `PUBLISHED` take for one evaluation; those figures were measured once, by running the
named commit on a machine of 2 cores, and are not measured again here.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import meshwright
from costmodel.bounds import pipeline_shape
from costmodel.estimate import step_seconds
from costmodel.pipeline import build_topology
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import PipelineSchedule, Plan, RuntimeProfile
from costmodel.steady_state import Shape, pipeline_ends
from meshwright.validation.adapters.errors import UnsupportedRunError
from meshwright.validation.adapters.layout import adapt
from meshwright.validation.run_files import read_runs
from planner.candidates import row_plan, sift
from planner.space import declare_space

RUNS = Path(__file__).parent / "data" / "published_runs"
REPEATS = 3
PLANS = 200
LONG_PIPELINE = 1_000
PUBLISHED = (
    ("llm-analysis d841e40", 0.46, "github.com/cli99/llm-analysis, one configuration"),
    ("calculon caa4b11", 19.5, "github.com/calculon-ai/calculon, one feasible configuration, 18 to 21 ms"),
)
PATHS: tuple[tuple[PipelineSchedule, int, int, int], ...] = (
    ("1f1b", 8, 1, 64),
    ("1f1b", 16, 1, 512),
    ("1f1b", 64, 1, 512),
    ("gpipe", 64, 1, 512),
    ("interleaved_1f1b", 8, 2, 64),
    ("interleaved_1f1b", 8, 12, 512),
    ("interleaved_1f1b", 16, 6, 128),
    ("interleaved_1f1b", 32, 4, 512),
    ("interleaved_1f1b", 64, 2, 512),
    ("interleaved_1f1b", 64, 12, 512),
)
"""Schedule, pipeline ranks, chunks, micro-batches; 128 layers fill the last but one, no published model the last."""

_GROWING = {"num_devices_used": ",".join(str(8 * nodes) for nodes in range(1, 129))}
SPACES: dict[str, dict[str, Any]] = {
    "llama-3-8b, 8 GPUs": {
        "model": "llama-3-8b",
        "cluster": "1x8xH100-SXM",
        "global_batch_size": 64,
        "sequence_length": 4096,
    },
    "llama-3.1-405b, 2,048 GPUs": {
        "model": "llama-3.1-405b",
        "cluster": "256x8xH100-SXM",
        "global_batch_size": 2048,
        "sequence_length": 4096,
    },
    "gpt3-175b, megatron, 8 to 1,024 GPUs": {
        "model": "gpt3-175b",
        "cluster": "128x8xA100-SXM-80GB",
        "global_batch_size": 1536,
        "sequence_length": 2048,
        "runtime": "megatron",
        "allow": _GROWING,
    },
    "llama-3-70b, 8 to 1,024 GPUs": {
        "model": "llama-3-70b",
        "cluster": "128x8xH100-SXM",
        "global_batch_size": 1536,
        "sequence_length": 4096,
        "allow": _GROWING,
    },
}
"""Arguments of `meshwright.plan`."""

_PLAN = """
import json, sys, time
import meshwright
answer = meshwright.plan(**json.loads(sys.argv[1]))
print(answer.certificate.candidates, time.process_time())
"""
_EMPTY = "import time; print(0, time.process_time())"


def cpu_seconds(work: Callable[[], object]) -> float:
    """Median CPU time of some work."""
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return median(taken)


def published_plans() -> list[tuple[Plan, RuntimeProfile]]:
    """The published runs that can be predicted, as `meshwright replay` adapts them."""
    found = []
    for line in read_runs(sorted(RUNS.glob("*.jsonl"))):
        try:
            run = None if line.row is None else adapt(line.row)
        except UnsupportedRunError:
            continue
        if run is not None:
            found.append((run.plan, run.runtime))
    return found


def spread_plans(model: str, cluster: str, runtime: str) -> list[tuple[Plan, RuntimeProfile]]:
    """Plans spread evenly over the candidates of a search that fit."""
    stated = meshwright.make_plan(model, cluster, global_batch_size=512, sequence_length=4096, runtime=runtime)
    profile = load_runtime(runtime)
    space = declare_space(meshwright.load_model(model), stated.cluster, stated.training, profile)
    candidates = sift(space)
    rows = np.flatnonzero(candidates.fits)
    chosen = rows[:: max(1, len(rows) // PLANS)]
    return [(row_plan(space.context, candidates.grid, int(row)), profile) for row in chosen]


def _print_evaluations(name: str, plans: Sequence[tuple[Plan, RuntimeProfile]]) -> None:
    short = [each for each in plans if pipeline_shape(Grid.from_plan(each[0]), 0).first_nodes <= LONG_PIPELINE]
    for what, those, exact in (
        ("lower bound", plans, False),
        (f"step time, pipelines of up to {LONG_PIPELINE:,} operations", short, True),
        ("step time, all", plans, True),
    ):
        taken = sorted(1e3 * cpu_seconds(partial(step_seconds, plan, runtime, exact=exact)) for plan, runtime in those)
        high = taken[int(0.9 * len(taken))]
        print(
            f"  {name}, {what} ({len(taken)}): median {median(taken):.2f} ms, 90% {high:.2f} ms, most {taken[-1]:.2f} ms"
        )


def _print_paths() -> None:
    for each in PATHS:
        shape = Shape(*each)
        stages = np.ones((shape.ranks * shape.chunks, 2))
        stages[0], stages[-1] = 1.05, 1.2
        ranks = np.zeros((shape.ranks, 2))

        def report(shape: Shape = shape, stages: Any = stages, ranks: Any = ranks) -> None:
            build_topology.cache_clear()
            pipeline_ends(shape, forward=stages, backward=2 * stages, transfer=ranks + 0.05, start=ranks)

        total = shape.nodes(shape.micro_batches)
        words = f"{shape.schedule}, {shape.ranks} ranks, {shape.chunks} chunks, {shape.micro_batches} micro-batches"
        print(f"  {words} ({total:,} operations): {1e3 * cpu_seconds(report):.1f} ms")


def _process(code: str, *arguments: str) -> tuple[int, float]:
    """Cells and median CPU time of a process of one thread that prints both."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    lines = [subprocess.check_output(command, env=environment, text=True).split() for _ in range(REPEATS)]
    return int(lines[0][0]), median(float(seconds) for _, seconds in lines)


def _print_cells() -> None:
    _, start = _process(_EMPTY)
    for name, space in SPACES.items():
        cells, total = _process(_PLAN, json.dumps(space))
        print(f"  {name}: {cells:,} cells in {total - start:.2f} s, {cells / (total - start):,.0f} a CPU-second")


def _machine() -> str:
    names = Path("/proc/cpuinfo")
    lines = names.read_text().splitlines() if names.exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return f"{model}, Python {platform.python_version()}, NumPy {np.__version__}"


def main() -> None:
    """Print all figures."""
    print(f"{_machine()}; CPU time, median of {REPEATS}\n\n1. one ranking evaluation")
    _print_evaluations("published runs", published_plans())
    _print_evaluations("llama-3-70b on 64 H100, torch", spread_plans("llama-3-70b", "8x8xH100-SXM", "torch"))
    _print_evaluations("llama-3-70b on 64 H100, megatron", spread_plans("llama-3-70b", "8x8xH100-SXM", "megatron"))
    for name, milliseconds, source in PUBLISHED:
        print(f"  {name}: {milliseconds:g} ms (published figure: {source})")
    print("\n2. one reported longest path, its graph included")
    _print_paths()
    print("\n3. cells settled by rule, memory, bound or exact step time, end to end")
    _print_cells()


if __name__ == "__main__":
    main()

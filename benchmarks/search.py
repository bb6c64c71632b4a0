"""What an answer of `meshwright plan` costs: whole processes, from the start of the interpreter to its end.

python -m benchmarks.search [--exact] [--growth] [--repeats 3]

Without an option: GPT-3 175B on 1,024 A100-80GB and Llama-3.1-405B on 16,384 H100. CPU seconds are those of user and system, the
least of `--repeats` runs (a busy machine takes up to twice as long); memory is the peak resident size. Beside them stand what
the repositories in `PEERS` take; those were measured once, by running the named commit on 2 cores, and are not measured here.

--exact: until nothing is left open, once each: GPT-3 without interleaved schedules, and how many of its candidates then have a
bound below the answer; GPT-3 and Llama-3.1-405B over the whole default space. --growth: 8 to 65,536 devices (four sequences a
device), and 12 to 128 layers on 512 devices; the exponent b of cost ~ candidates^b is the slope of least squares over logarithms,
of the whole process and of what it takes beyond the plan of one device, which is nearly all start-up.
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PEERS = (
    ("calculon caa4b11", "GPT-3 175B, 1,024 A100-80GB: 1.7 M configurations, 96-157 a CPU-second, 3-20 core-hours"),
    ("SimuMax 4dcaae5", "Llama-3-70B, 64 B200: 140 configurations in 30.6 CPU-s, 4.6 a CPU-second"),
    ("Aceso fa80ad0", "GPT-1.3B, 4 GPUs: 595 configurations in 12.1 CPU-s, 49 a CPU-second"),
    ("Galvatron cea12ff", "Llama of 28 layers, 8 GPUs, one batch: 25.4 s, after profiling on a GPU"),
    ("Alpa, archived", "profiles on GPUs first; not run"),
)
GPT3 = ("gpt3-175b", "128x8xA100-SXM-80GB", 1536, 2048)
GPT3_LIMITS = (2.0, 300.0)
LLAMA = ("llama-3.1-405b", "2048x8xH100-SXM", 2048, 8192)
LLAMA_LIMITS = (3.0, None)
NOT_INTERLEAVED = ("--allow", "pipeline_schedule=none,naive,gpipe,1f1b")
DEVICES = (8, 64, 512, 4096, 32768, 65536)
LAYERS = (12, 24, 48, 64, 96, 128)
_MIB = 2**20
_COMMAND = "from meshwright.cli.app import main; raise SystemExit(main())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One answer: its candidates, how many were evaluated, the gap that is left, and what the process took."""

    candidates: int
    evaluated: int
    gap: float
    cpu_seconds: float
    peak_bytes: int


def plan_command(model: str, cluster: str, batch: int, sequence: int, *options: str) -> list[str]:
    """The command line of a plan that prints JSON."""
    sizes = ["--global-batch-size", str(batch), "--sequence-length", str(sequence)]
    return [sys.executable, "-c", _COMMAND, "plan", "--model", model, "--cluster", cluster, *sizes, *options, "--json"]


def measure(command: Sequence[str], repeats: int) -> Cost:
    """The least CPU time and peak memory of some runs of a plan.

    Raises:
        RuntimeError: when it finds no plan.
    """
    runs = [_run(command) for _ in range(repeats)]
    certificate = runs[0][0]["certificate"]
    return Cost(
        candidates=certificate["candidates"],
        evaluated=certificate["evaluated"],
        gap=certificate["gap"],
        cpu_seconds=min(seconds for _, seconds, _ in runs),
        peak_bytes=min(size for _, _, size in runs),
    )


def _run(command: Sequence[str]) -> tuple[dict[str, Any], float, int]:
    """Answer, CPU seconds and peak resident bytes of one process of one thread."""
    environment = _as_installed()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {' '.join(command[3:])}")
        unit = 1 if sys.platform == "darwin" else 1024
        return json.load(output), used.ru_utime + used.ru_stime, used.ru_maxrss * unit


@cache
def _as_installed() -> dict[str, str]:
    """The environment of processes that find all modules compiled, as installers leave them."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**own, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": folder.name}
    first = plan_command("llama-3-8b", "1x8xH100-SXM", 64, 2048)
    subprocess.run(first, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=True)
    return environment


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope of log cost over log size by least squares: b of cost ~ size^b."""
    return statistics.linear_regression([math.log(s) for s in sizes], [math.log(c) for c in costs]).slope


def words(name: str, cost: Cost) -> str:
    """One line."""
    speed = cost.candidates / cost.cpu_seconds
    return (
        f"{name:38}{cost.candidates:>10,} candidates {cost.evaluated:>6,} evaluated {cost.cpu_seconds:7.2f} CPU-s"
        f"{cost.peak_bytes / _MIB:7.0f} MiB {speed:>9,.0f} a CPU-s, gap {cost.gap:.2%}"
    )


def verdict(what: str, found: float, most: float | None, unit: str) -> str:
    """Whether a figure is within its limit; nothing where there is none."""
    return (
        ""
        if most is None
        else f"  {what} {found:.3g}{unit}, at most {most:g}{unit}: {'yes' if found <= most else 'NO'}"
    )


def _print_answers(repeats: int) -> None:
    for task, (seconds, mebibytes) in ((GPT3, GPT3_LIMITS), (LLAMA, LLAMA_LIMITS)):
        cost = measure(plan_command(*task), repeats)
        print(words(f"{task[0]}, {task[1]}", cost))
        print(verdict("CPU", cost.cpu_seconds, seconds, " s"), end="")
        print(verdict("memory", cost.peak_bytes / _MIB, mebibytes, " MiB"), end="")
        print(verdict("gap", 100 * cost.gap, 1.0, "%"))
    print("\npublished and measured elsewhere")
    for name, told in PEERS:
        print(f"  {name:20}{told}")


def _print_exact() -> None:
    cost = measure(plan_command(*GPT3, *NOT_INTERLEAVED, "--exact"), 1)
    print(words(f"{GPT3[0]}, not interleaved, --exact", cost))
    print(verdict("CPU", cost.cpu_seconds, 60.0, " s") + verdict("gap", 100 * cost.gap, 0.0, "%"))
    total, below, unsolved = open_candidates()
    print(
        f"  of {total:,} candidates that may fit {below:,} have a bound below the answer after it; {unsolved:,} were worked on"
        " and keep a bound below their own best completion"
    )
    for question in (GPT3, LLAMA):
        cost = measure(plan_command(*question, "--exact"), 1)
        print(words(f"{question[0]}, --exact", cost))
        print(verdict("gap", 100 * cost.gap, 0.0, "%"))


def open_candidates() -> tuple[int, int, int]:
    """Of GPT-3 without interleaving after an exact search: candidates that may fit, those whose bound is below the answer, and
    those that were refined without being solved.
    """
    from meshwright.statement import resolve_statement
    from planner.candidates import sift
    from planner.closing import GAP_TOLERANCE, tighten
    from planner.effort import exact
    from planner.evaluation import Search
    from planner.search import NODE_BUDGET
    from planner.space import completer_of, declare_space

    model, cluster, batch, sequence = GPT3
    axis, values = NOT_INTERLEAVED[1].split("=")
    stated = resolve_statement(
        model, cluster, global_batch_size=batch, sequence_length=sequence, allow={axis: values.split(",")}
    )
    space = declare_space(stated.model, stated.cluster, stated.training, stated.runtime, allow=stated.allow)
    found = Search(sift(space), completer_of(space), NODE_BUDGET)
    found.fastest()
    tighten(found, exact())
    within = 1.0 - GAP_TOLERANCE
    below = found.fits & (found.lower < found.time.min() * within)
    unsolved = found.fits & found.refined & (found.lower < found.time * within)
    return int(found.fits.sum()), int(below.sum()), int(unsolved.sum())


def layered_config(folder: Path, layers: int) -> Path:
    """A config.json of a Llama of width 4096 and some layers."""
    path = folder / f"{layers}-layers.json"
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    }
    path.write_text(json.dumps(content))
    return path


def _print_growth(repeats: int) -> None:
    start = measure(plan_command("gpt2", "1xH100-SXM", 1, 1024), repeats)
    print(words("one device (start-up)", start))
    tasks = {f"{n:,} devices": ("llama-3-8b", f"{n // 8}x8xH100-SXM", 4 * n, 4096) for n in DEVICES}
    _print_series("devices", tasks, start, repeats)
    with tempfile.TemporaryDirectory() as folder:
        layered = {str(n): str(layered_config(Path(folder), n)) for n in LAYERS}
        _print_series(
            "layers",
            {f"{n} layers": (path, "64x8xH100-SXM", 1024, 4096) for n, path in layered.items()},
            start,
            repeats,
        )


def _print_series(name: str, tasks: dict[str, tuple[str, str, int, int]], start: Cost, repeats: int) -> None:
    costs = []
    for label, task in tasks.items():
        costs.append(measure(plan_command(*task), repeats))
        print(words(label, costs[-1]), flush=True)
    sizes = [float(cost.candidates) for cost in costs]
    for what, taken, base in (
        ("CPU time", [cost.cpu_seconds for cost in costs], start.cpu_seconds),
        ("memory", [float(cost.peak_bytes) for cost in costs], float(start.peak_bytes)),
    ):
        whole, beyond = exponent(sizes, taken), exponent(sizes, [max(each - base, 1e-3 * base) for each in taken])
        right = "no worse than linear" if max(whole, beyond) <= 1 else "WORSE than linear"
        print(f"  {what} over {name} ~ candidates^{whole:.2f}; beyond start-up ^{beyond:.2f}: {right}")


def main() -> None:
    """Print the figures asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    print(
        f"load of the machine over a minute {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; least of {asked.repeats} runs"
    )
    if asked.exact:
        _print_exact()
    if asked.growth:
        _print_growth(asked.repeats)
    if not asked.exact and not asked.growth:
        _print_answers(asked.repeats)


if __name__ == "__main__":
    main()

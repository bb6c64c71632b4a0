"""What the executor's step costs beyond the same torch primitives called by hand.

python -m benchmarks.executor [--pairs 20] [--only fsdp2 tp pp replicate ddp] [--output FILE]

Two gloo processes, each on one thread. In every row both sides train the same small llama in float32 from the same weights on
the same batches with the same optimizer (AdamW, fused, gradients clipped to a norm of 1 over the whole model, the loss averaged
over all processes and read on the host, as a trainer prints it), one step of one side after one step of the other, in an order
that alternates. The rows:

    fsdp2      ZeRO-3           fully_shard on every layer and on the transformers model
    tp         TP2              parallelize_module on the transformers model, ColwiseParallel and RowwiseParallel styles
    pp         PP2, 1F1B        PipelineStage and Schedule1F1B over two halves of the transformers model, 4 micro-batches
    replicate  DP2              replicate on every layer and on the transformers model
    ddp        DP2              the executor's replicate beside DistributedDataParallel by hand: another primitive, an extra row

A step takes as long as on its slower process. ``ratio`` is the median over the pairs of executor / by hand, with the quarter of
pairs below and above; ``CPU`` the same of both processes' processor time, which other programs on the machine disturb less.
Losses of the two sides are compared at every step, so that nothing else than the same training is timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import meshwright
from costmodel.specs import Plan

ROWS = ("fsdp2", "tp", "pp", "replicate", "ddp")
TARGET = 1.05
WARM_UP_PAIRS = 3
PAIRS = 20
GLOBAL_BATCH_SIZE = 8
SEQUENCE_LENGTH = 128
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_SIZES: dict[str, dict[str, Any]] = {
    "fsdp2": {"data_parallel_shard_size": 2, "zero_stage": 3, "micro_batch_size": 4, "num_micro_batches": 1},
    "tp": {"tensor_parallel_size": 2, "micro_batch_size": 8, "num_micro_batches": 1, "loss_parallel": False},
    "pp": {
        "pipeline_parallel_size": 2,
        "pipeline_schedule": "1f1b",
        "micro_batch_size": 2,
        "num_micro_batches": 4,
    },
    "replicate": {"data_parallel_replicate_size": 2, "micro_batch_size": 4, "num_micro_batches": 1},
}
_SIZES["ddp"] = _SIZES["replicate"]


@dataclass(frozen=True)
class Row:
    """Medians of one row; spreads are the quartiles of the pairs' ratios."""

    name: str
    pairs: int
    executor_seconds: float
    by_hand_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    cpu_ratio: float
    loss_difference: float
    first_loss: float
    last_loss: float


def make_plan(name: str, layers: int) -> Plan:
    """The plan of one row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
        return meshwright.make_plan(
            path, "2xcpu", global_batch_size=GLOBAL_BATCH_SIZE, sequence_length=SEQUENCE_LENGTH,
            precision="fp32", sizes=_SIZES[name],
        )  # fmt: skip


def run_row(name: str, *, pairs: int = PAIRS, layers: int = 4) -> Row:
    """Run one row on two new processes."""
    plan = make_plan(name, layers)
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        job = (name, plan.model_dump_json(), pairs, folder)
        processes = [context.Process(target=_process, args=(rank, *job)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"row {name} failed: exit codes {[process.exitcode for process in processes]}")
        found = json.loads((Path(folder) / "found.json").read_text())
    return summarise(name, found)


def _process(rank: int, name: str, plan: str, pairs: int, folder: str) -> None:
    """One of the two processes; torch stays out of the process that starts them."""
    from benchmarks.executor_sides import time_pairs

    found = time_pairs(
        name, Plan.model_validate_json(plan), rank=rank, pairs=WARM_UP_PAIRS + pairs, folder=Path(folder)
    )
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))


def summarise(name: str, found: dict[str, list[list[float]]]) -> Row:
    """Medians and quartiles without the warm-up.

    Args:
        name: the row.
        found: ``seconds``, ``cpu`` and ``losses``: [executor, by hand] of every pair.
    """
    seconds, cpu = found["seconds"][WARM_UP_PAIRS:], found["cpu"][WARM_UP_PAIRS:]
    ratios = [ours / theirs for ours, theirs in seconds]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(
        name=name,
        pairs=len(seconds),
        executor_seconds=statistics.median(pair[0] for pair in seconds),
        by_hand_seconds=statistics.median(pair[1] for pair in seconds),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        cpu_ratio=statistics.median(ours / theirs for ours, theirs in cpu),
        loss_difference=max(abs(ours - theirs) for ours, theirs in found["losses"]),
        first_loss=found["losses"][0][0],
        last_loss=found["losses"][-1][0],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(prog="benchmarks.executor", description="The executor beside torch by hand.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of steps that are timed")
    parser.add_argument("--layers", type=int, default=LLAMA["num_hidden_layers"], help="layers of the model")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS, help="rows to run")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    options = parser.parse_args(arguments)
    print(f"{options.pairs} pairs after {WARM_UP_PAIRS}; load {os.getloadavg()[0]:.1f}; target ratio {TARGET}")
    print("row         executor   by hand   ratio (quartiles)      CPU   largest loss difference")
    rows = []
    for name in options.only:
        row = run_row(name, pairs=options.pairs, layers=options.layers)
        rows.append(row)
        spread = f"{row.ratio:.3f} ({row.ratio_low:.3f} to {row.ratio_high:.3f})"
        times = f"{1e3 * row.executor_seconds:6.0f} ms {1e3 * row.by_hand_seconds:6.0f} ms"
        print(f"{name:10} {times}   {spread}   {row.cpu_ratio:.3f}   {row.loss_difference:.1e}", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()

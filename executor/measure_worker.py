"""Measure this machine with N processes at once and print the times as JSON.

Usage: ``python -m executor.measure_worker NUM_PROCESSES SECONDS``, all measurements together

torch is imported once and the processes are forked from here before it has computed anything.
"""

from __future__ import annotations

import json
import multiprocessing
import os.path
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from executor import microbenchmarks as bench
from executor.cores import threads_per_process
from executor.lifetime import die_with_parent

GEMM_SHAPES = {
    "fp32": ((64, 64, 128), (64, 128, 128), (128, 128, 256), (256, 256, 256), (256, 256, 512), (512, 512, 1024)),
    "fp64": ((256, 256, 512),),
    "bf16": ((256, 256, 512),),
}
STREAM_BYTES = 3 * 2**20
ELEMENTWISE_SHAPE = (512, 512)
ATTENTION_SHAPE = (4, 256, 64)
MESSAGE_BYTES = (2**12, 2**16, 2**19, 2**22)
ROUNDS = 3
"""Everything is measured three times over and the medians are kept: a short disturbance touches one round."""
NUM_MEASUREMENTS = 8 + 4 + 4 * len(MESSAGE_BYTES)


def measure(window: float) -> Iterator[tuple[str, list[float], float]]:
    """All measurements of one process: (kind, what was measured, seconds)."""
    for precision, shapes in GEMM_SHAPES.items():
        for rows, inner, columns in shapes:
            seconds = bench.gemm_seconds(rows, inner, columns, precision, window)
            yield f"gemm_{precision}", [2.0 * rows * inner * columns], seconds
    yield "stream", [float(STREAM_BYTES)], bench.stream_seconds(STREAM_BYTES, window)
    seconds, moved_bytes, operations = bench.elementwise_cost(*ELEMENTWISE_SHAPE, window)
    yield "elementwise", [float(moved_bytes), float(operations)], seconds
    heads, length, head_dim = ATTENTION_SHAPE
    flops = 4.0 * heads * head_dim * length * length / 2
    yield "attention", [flops], bench.attention_seconds(heads, length, head_dim, window)
    yield "dispatch", [], bench.dispatch_seconds(window)
    if dist.get_world_size() > 1:
        yield from _measure_messages(window)


def _measure_messages(window: float) -> Iterator[tuple[str, list[float], float]]:
    """Per hop, as gloo's rings make them: bytes and seconds of one of the steps of a collective."""
    size = dist.get_world_size()
    for num_bytes in MESSAGE_BYTES:
        part = num_bytes / size
        yield "hop", [part], bench.all_reduce_seconds(num_bytes, window) / (2 * (size - 1))
        yield "hop", [part], bench.reduce_scatter_seconds(num_bytes, window) / (2 * (size - 1))
        yield "hop", [part], bench.all_gather_seconds(num_bytes, window) / (size - 1)
        yield "hop", [float(num_bytes)], bench.point_to_point_seconds(num_bytes, window)


def _process(rank: int, size: int, threads: int, total_seconds: float, meeting_point: str, parent: int) -> None:
    die_with_parent(signal.SIGKILL, parent)
    torch.set_num_threads(threads)
    window = total_seconds / NUM_MEASUREMENTS / ROUNDS
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    start = time.perf_counter()
    rounds: list[list[tuple[str, list[float], float]]] = []
    while len(rounds) < ROUNDS and not (rounds and _late(start, total_seconds)):
        rounds.append([(kind, what, _mean(seconds)) for kind, what, seconds in measure(window)])
    if rank == 0:
        medians = [
            (kind, what, statistics.median(found[index][2] for found in rounds))
            for index, (kind, what, _) in enumerate(rounds[0])
        ]
        print(json.dumps(medians), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _mean(seconds: float) -> float:
    """Mean over the processes."""
    total = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _late(start: float, total_seconds: float) -> bool:
    """Whether the time is used up, by the mean of the processes' clocks, so that all of them agree."""
    return _mean(time.perf_counter() - start) > total_seconds


def main(size: int, total_seconds: float) -> int:
    """Fork the processes and wait; 1 when one of them failed."""
    die_with_parent(signal.SIGKILL, os.getppid())
    threads = threads_per_process(size)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (size, threads, total_seconds, os.path.join(folder, "store"), os.getpid())
        processes = [context.Process(target=_process, args=(rank, *arguments)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    for rank, process in enumerate(processes):
        if (
            process.exitcode is not None and process.exitcode < 0
        ):  # last on stderr: the cause, not the others' echo of it
            print(f"process {rank} was killed by {signal.Signals(-process.exitcode).name}", file=sys.stderr)
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))

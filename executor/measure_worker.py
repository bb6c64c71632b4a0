"""Measure this machine with N processes at once, without torchrun; JSON lines on stdout.

Usage: ``python -m executor.measure_worker KIND NUM_PROCESSES SECONDS quick|thorough``

torch is imported once and the processes are forked from here before it has computed anything. A line is
``{"progress": text}``, or at the end ``{"facts": ..., "readings": ...}``.
"""

from __future__ import annotations

import json
import multiprocessing
import os.path
import signal
import sys
import tempfile

import torch

from executor.cores import threads_per_process
from executor.lifetime import die_with_parent
from executor.measure_process import run_measurements
from executor.place import Place


def _tell(content: object) -> None:
    print(json.dumps(content), flush=True)


def _process(place: Place, kind: str, seconds: float, quick: bool, meeting_point: str, parent: int) -> None:
    die_with_parent(signal.SIGKILL, parent)
    torch.set_num_threads(threads_per_process(place.local_size))
    found = run_measurements(
        place,
        kind=kind,
        init_method=f"file://{meeting_point}",
        seconds=seconds,
        quick=quick,
        progress=(lambda text: _tell({"progress": text})) if place.rank == 0 else lambda _: None,
    )
    if place.rank == 0:
        _tell(found)


def main(kind: str, size: int, seconds: float, *, quick: bool) -> int:
    """Fork the processes and wait; 1 when one of them failed."""
    die_with_parent(signal.SIGKILL, os.getppid())
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        places = [Place(rank=rank, size=size, local_rank=rank, local_size=size) for rank in range(size)]
        arguments = (kind, seconds, quick, os.path.join(folder, "store"), os.getpid())
        processes = [context.Process(target=_process, args=(place, *arguments)) for place in places]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    for rank, process in enumerate(processes):
        if process.exitcode is not None and process.exitcode < 0:
            # Last on stderr: the cause, not the others' echo of it.
            print(f"process {rank} was killed by {signal.Signals(-process.exitcode).name}", file=sys.stderr)
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), quick=sys.argv[4] == "quick"))

"""Seconds of one call on a device, measured over a window of repetitions.

On a CPU: with more processes than cores a process only gets slices of a core, and a median or a minimum would show the
slice, not the share. Where a process computes on one thread, local calls are timed by the processor time they use, divided by
the process's share of a core: what other programs take meanwhile is no property of the device, while the caches and the memory
bus that the processes compete for are.

On a CUDA device: the host queues the calls ahead and two events on the stream are read, so that only the device's time
counts, as in training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from executor.cores import num_cores

_MOST_CALLS = 1000


class Stopwatch:
    """Times calls of all processes at once; ``device`` is where they compute."""

    device: torch.device

    def local(self, call: Callable[[], object], window: float) -> float:
        """Mean seconds of a call that needs no other process, all processes making it at the same time."""
        raise NotImplementedError

    def collective(self, call: Callable[[], object], window: float) -> float:
        """Mean seconds of a call in which processes work together; all agree on the number of repetitions.

        A process that has no part in it passes a call that does nothing, and ignores the answer.
        """
        call()
        self.barrier()
        once = self._seconds(call, 1)
        slowest = torch.tensor([once], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        count = max(2, min(_MOST_CALLS, int(window / float(slowest))))
        self.barrier()
        return self._seconds(call, count)

    def barrier(self) -> None:
        """Wait for all processes and their devices."""
        float(self._sum(0.0))

    def mean(self, seconds: float | None) -> float:
        """Mean over those processes that measured something; NaN where none did."""
        total, count = self._sum(seconds or 0.0), self._sum(float(seconds is not None))
        return float(total) / float(count) if float(count) else float("nan")

    def _sum(self, value: float) -> torch.Tensor:
        total = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total

    def _seconds(self, call: Callable[[], object], count: int) -> float:
        """Mean seconds of ``count`` calls, waiting for the last."""
        raise NotImplementedError


class CpuStopwatch(Stopwatch):
    """For processes that share a node's cores.

    Args:
        local_size: processes of this node.
    """

    def __init__(self, local_size: int) -> None:
        self.device = torch.device("cpu")
        self._share = min(1.0, num_cores() / local_size)

    def local(self, call: Callable[[], object], window: float) -> float:
        """Mean seconds by the process's share of the cores."""
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        call()
        self.barrier()
        start, began = time.perf_counter(), clock()
        count = 0
        while time.perf_counter() - start < window or count < 2:
            call()
            count += 1
        return (clock() - began) / count / self._share

    def _seconds(self, call: Callable[[], object], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count


class StreamStopwatch(Stopwatch):
    """For a device with a stream.

    Args:
        device: the device.
        make_event: gives a new event of its stream, with the methods of torch.cuda.Event.
    """

    def __init__(self, device: torch.device, make_event: Callable[[], Any]) -> None:
        self.device = device
        self._make_event = make_event

    def local(self, call: Callable[[], object], window: float) -> float:
        """Mean seconds on the stream."""
        call()
        once = self._seconds(call, 1)
        count = max(2, min(_MOST_CALLS, int(window / once) if once > 0 else _MOST_CALLS))
        self.barrier()
        return self._seconds(call, count)

    def _seconds(self, call: Callable[[], object], count: int) -> float:
        start, end = self._make_event(), self._make_event()
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / count


def cuda_stopwatch(device: torch.device) -> StreamStopwatch:
    """A stopwatch that reads CUDA events."""
    return StreamStopwatch(device, lambda: torch.cuda.Event(enable_timing=True))

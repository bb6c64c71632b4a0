"""The cores of this machine and how a node's processes share them."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def threads_per_process(num_processes: int) -> int:
    """The share of the cores that one of the node's processes computes with, at least one."""
    return max(1, num_cores() // num_processes)

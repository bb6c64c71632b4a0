"""The cores and the memory of this machine, and how a node's processes share them."""

from __future__ import annotations

import os
from pathlib import Path

from costmodel.specs import InputError

_MOST_PROCESSES_PER_CORE = 16
_GIB = 2**30
PROCESS_BYTES = 300 * 2**20
"""What a process with torch imported holds before it trains anything (resident set, torch 2.13 on Linux)."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def threads_per_process(num_processes: int) -> int:
    """The share of the cores that one of the node's processes computes with, at least one."""
    return max(1, num_cores() // num_processes)


def check_processes(num_processes: int) -> None:
    """Refuse more processes than this machine could keep alive, let alone time.

    Raises:
        InputError: with the most that it can.
    """
    cores, memory = num_cores(), available_memory_bytes()
    most = max(1, min(_MOST_PROCESSES_PER_CORE * cores, memory // PROCESS_BYTES))
    if num_processes > most:
        raise InputError(
            f"{num_processes} processes on this machine of {cores} cores and {memory / _GIB:.1f} GiB of free memory; "
            f"needed at most {most} ({_MOST_PROCESSES_PER_CORE} a core, {PROCESS_BYTES / _GIB:.1f} GiB each)"
        )


def available_memory_bytes() -> int:
    """Memory that new processes can use: the kernel's estimate, within the control group's limit."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    for line in read_or_empty(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit, used = (read_or_empty(Path("/sys/fs/cgroup") / name).strip() for name in ("memory.max", "memory.current"))
    if limit.isdigit() and used.isdigit():
        available = min(available, int(limit) - int(used))
    return available


def read_or_empty(path: Path) -> str:
    """The text of a file of the system; empty where there is no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""

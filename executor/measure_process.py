"""All measurements of one process, in step with the others.

Groups in which the processes communicate, of a run on N nodes of L processes:

    node     the L processes of a node, all nodes at once
    network  the N processes with one local rank, all L of these groups at once: they share the node's way out
    alone    the N processes with local rank 0, the others idle: what one process gets of that way
    world    all processes
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from executor import microbenchmarks as bench
from executor.cores import available_memory_bytes, num_cores
from executor.measure_menu import COLLECTIVES, Menu, menu_for
from executor.place import Place
from executor.stopwatch import CpuStopwatch, Stopwatch, cuda_stopwatch
from hardware_profiles.detect.report import Report
from hardware_profiles.detect.smi_query import parse_smi_query

TIMEOUT_SECONDS = 60.0
_MOST_OVER = 1.2
_HOST_SHAPE = (512, 512, 1024)
_HOST_BYTES = 192 * 2**20


class Reading(NamedTuple):
    """Mean seconds of one thing; ``sizes`` say how much of it, in the order that `executor.measured` expects.

    ``seconds`` None: another process's part.
    """

    kind: str
    sizes: list[float]
    seconds: float | None


class Group(NamedTuple):
    """A group of `node`, `network`, `alone` or `world`; ``handle`` None where this process is not in it."""

    name: str
    size: int
    handle: dist.ProcessGroup | None


def run_measurements(
    place: Place,
    *,
    kind: str,
    init_method: str,
    seconds: float,
    quick: bool,
    progress: Callable[[str], None],
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Join the other processes, measure, and leave.

    Args:
        place: this process among all.
        kind: cpu or cuda.
        init_method: where the processes meet, as torch.distributed spells it.
        seconds: what all measurements together may take.
        quick: the short menu.
        progress: told what is measured next.
        timeout_seconds: how long it waits for another process.

    Returns:
        ``facts`` about the machine and ``readings`` [kind, sizes, seconds], means over the processes and medians over the
        rounds: the same on every process.
    """
    device = torch.device("cuda", place.local_rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=init_method,
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if kind == "cuda" else None,
    )
    try:
        watch = cuda_stopwatch(device) if kind == "cuda" else CpuStopwatch(place.local_size)
        facts = describe_run(place, describe_device(device))
        menu = menu_for(facts, quick=quick)
        readings = measure_rounds(menu, watch, place, seconds=seconds, progress=progress)
        watch.barrier()
    finally:
        dist.destroy_process_group()
    return {"facts": facts, "readings": readings}


def describe_device(device: torch.device) -> dict[str, Any]:
    """What this process computes on."""
    facts: dict[str, Any] = {"kind": device.type, "torch": torch.__version__, "bf16": True}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["name"] = properties.name
        facts["memory_bytes"] = torch.cuda.mem_get_info(device)[1]
        facts["bf16"] = torch.cuda.get_device_capability(device) >= (8, 0)
        facts["power_limit_watts"] = power_limit_watts()
    else:
        facts["name"] = "cpu"
        facts["memory_bytes"] = available_memory_bytes()
    return facts


def power_limit_watts() -> float | None:
    """The smallest power limit that nvidia-smi reports; None where it cannot say."""
    try:
        done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    query = parse_smi_query(Report("nvidia-smi -q", done.stdout))
    return min((device.power_limit_watts for device in query.devices if device.power_limit_watts), default=None)


def describe_run(place: Place, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The device's facts with those of the run and of the host; memory is the smallest of all processes'."""
    every: list[Any] = [None] * place.size
    dist.all_gather_object(every, (facts["name"], facts["memory_bytes"]))
    return {
        **facts,
        "names": sorted({name for name, _ in every}),
        "memory_bytes": min(memory for _, memory in every),
        "local_size": place.local_size,
        "num_nodes": place.num_nodes,
        "cores": num_cores(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def measure_rounds(
    menu: Menu, watch: Stopwatch, place: Place, *, seconds: float, progress: Callable[[str], None]
) -> list[list[Any]]:
    """Rounds of all measurements until the menu's number is done or the time is used up."""
    groups = make_groups(place)
    start = time.perf_counter()
    window = seconds / menu.rounds / menu.count(num_groups=len(groups), cuda=watch.device.type == "cuda")
    rounds: list[list[tuple[str, list[float], float]]] = []
    while len(rounds) < menu.rounds and not _late(watch, start, len(rounds), seconds):
        done: list[tuple[str, list[float], float]] = []
        for what, readings in measure(menu, watch, groups, window=window):
            progress(f"round {len(rounds) + 1} of {menu.rounds}: {what}")
            done += [(kind, sizes, watch.mean(found)) for kind, sizes, found in readings]
        rounds.append(done)
    return [
        [kind, sizes, statistics.median(found[index][2] for found in rounds)]
        for index, (kind, sizes, _) in enumerate(rounds[0])
    ]


def measure(
    menu: Menu, watch: Stopwatch, groups: list[Group], *, window: float
) -> Iterator[tuple[str, Iterator[Reading]]]:
    """One round: (what comes next in words, its readings)."""
    yield "matrix products", _products(menu, watch, window)
    yield "memory", _memory(menu, watch, window)
    yield "attention", _attention(menu, watch, window)
    yield "launches", _launches(watch, window)
    yield "copies between host and device", _copies(menu, watch, window)
    if watch.device.type == "cuda":
        yield "the host", _host(window)
    for group in groups:
        yield f"collectives ({group.name})", _collectives(menu, watch, group, window)


def _products(menu: Menu, watch: Stopwatch, window: float) -> Iterator[Reading]:
    for precision, shapes in menu.gemm.items():
        for rows, inner, columns in shapes:
            seconds = bench.gemm_seconds(watch, rows, inner, columns, precision=precision, window=window)
            yield Reading(f"gemm_{precision}", [2.0 * rows * inner * columns], seconds)


def _memory(menu: Menu, watch: Stopwatch, window: float) -> Iterator[Reading]:
    seconds = bench.stream_seconds(watch, menu.stream_bytes, window=window)
    yield Reading("stream", [float(menu.stream_bytes)], seconds)
    cost = bench.elementwise_cost(watch, *menu.elementwise, precision=menu.main, window=window)
    yield Reading("elementwise", [float(cost[1]), float(cost[2])], cost[0])


def _attention(menu: Menu, watch: Stopwatch, window: float) -> Iterator[Reading]:
    for heads, length, head_dim in menu.attention:
        seconds = bench.attention_seconds(watch, heads, length, head_dim, precision=menu.main, window=window)
        flops = 4.0 * heads * head_dim * length * length / 2
        yield Reading("attention", [flops, float(head_dim), float(length)], seconds)


def _launches(watch: Stopwatch, window: float) -> Iterator[Reading]:
    if watch.device.type == "cuda":
        yield Reading("launch", [], bench.launch_seconds(watch, window=window))
    yield Reading("dispatch", [], bench.dispatch_seconds(watch, window=window))


def _copies(menu: Menu, watch: Stopwatch, window: float) -> Iterator[Reading]:
    cuda = watch.device.type == "cuda"
    for pinned in (True, False) if cuda else (False,):
        for to_device in (True, False) if cuda else (True,):
            words = ("pinned" if pinned else "pageable", "to_device" if to_device else "to_host")
            for num_bytes in menu.copies:
                seconds = bench.copy_seconds(watch, num_bytes, to_device=to_device, pinned=pinned, window=window)
                yield Reading("_".join(("copy", *words)) if cuda else "copy", [float(num_bytes)], seconds)


def _host(window: float) -> Iterator[Reading]:
    """The host of CUDA devices: what each process reaches on its share of the cores."""
    watch = _HostStopwatch()
    seconds = bench.stream_seconds(watch, _HOST_BYTES, window=window)
    yield Reading("host_stream", [float(_HOST_BYTES)], seconds)
    rows, inner, columns = _HOST_SHAPE
    seconds = bench.gemm_seconds(watch, rows, inner, columns, precision="fp32", window=window)
    yield Reading("host_gemm", [2.0 * rows * inner * columns], seconds)


class _HostStopwatch(CpuStopwatch):
    """Times on the host beside a backend that only carries device tensors, so without meeting the others first."""

    def __init__(self) -> None:
        super().__init__(local_size=1)

    def barrier(self) -> None:
        """Nobody to wait for."""


def _collectives(menu: Menu, watch: Stopwatch, group: Group, window: float) -> Iterator[Reading]:
    for num_bytes in menu.messages:
        for kind in COLLECTIVES:
            sizes = [float(num_bytes), float(group.size)]
            if group.handle is None:
                watch.collective(lambda: None, window)
                yield Reading(f"{group.name}_{kind}", sizes, None)
            else:
                call = bench.make_collective(kind, num_bytes, group.handle, watch.device)
                yield Reading(f"{group.name}_{kind}", sizes, watch.collective(call, window))


def make_groups(place: Place) -> list[Group]:
    """The groups of the module's docstring that have more than one process and are not the same as another."""
    if place.size == 1:
        return []
    world = dist.group.WORLD
    if place.num_nodes == 1:
        return [Group("node", place.size, world)]
    groups = []
    if place.local_size > 1:
        starts = range(0, place.size, place.local_size)
        members = [list(range(start, start + place.local_size)) for start in starts]
        groups.append(Group("node", place.local_size, _own(members, place.rank)))
    members = [list(range(local, place.size, place.local_size)) for local in range(place.local_size)]
    network = _own(members, place.rank)
    groups.append(Group("network", place.num_nodes, network))
    if place.local_size > 1:
        groups.append(Group("alone", place.num_nodes, network if place.local_rank == 0 else None))
        groups.append(Group("world", place.size, world))
    return groups


def _own(members: list[list[int]], rank: int) -> dist.ProcessGroup | None:
    """The group of this process; every process makes all of them, in the same order."""
    own = None
    for ranks in members:
        group = dist.new_group(ranks)
        own = group if rank in ranks else own
    return own


def _late(watch: Stopwatch, start: float, num_done: int, seconds: float) -> bool:
    """Whether another round like those done would end too late, by the mean clock, so that all processes agree."""
    if not num_done:
        return False
    elapsed = watch.mean(time.perf_counter() - start)
    return elapsed * (num_done + 1) / num_done > _MOST_OVER * seconds

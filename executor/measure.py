"""A profile of this machine for planning: one ``cpu`` device is one process with its share of the cores.

Everything is measured with all processes busy at once, so the numbers contain what they take from each other:
shared cores, caches, memory bandwidth and the loopback device.

    (1) GEMM: hardware_profiles.fit's curve through fp32 products of 1e6 to 5e8 FLOP; the peak is the best rate seen,
        and another precision's peak is the one that puts its product on the same curve
    (2) memory: bandwidth is that of an addition; memory_fraction = bytes / (seconds - operations x launch) of a
        normalisation, gate and residual, forward and backward, over that bandwidth
    (3) attention_fraction = causal FLOP / seconds of the fused forward, over the fp32 peak
    (4) link: bytes and seconds of one hop, hardware_profiles.fit's line through all collectives' and point-to-point
        hops (a gloo all-reduce or reduce-scatter of n processes has 2 (n - 1) hops, an all-gather n - 1)
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from costmodel.specs import (
    ClusterSpec,
    DeviceSpec,
    ExecutionError,
    HostSpec,
    InputError,
    LevelSpec,
    LinkSpec,
    Precision,
)
from executor.cores import available_memory_bytes, check_processes, num_cores, read_or_empty
from executor.launch import describe_end, worker_environment
from hardware_profiles.fit import fit_gemm_curve, fit_link

SOURCE = "measured on this host by meshwright hardware measure"
START_SECONDS = 6.0
"""Importing torch and joining the processes."""


Measurements = dict[str, list[tuple[list[float], float]]]


def measure_cpu(num_processes: int, budget_seconds: float = 20.0) -> ClusterSpec:
    """Measure this machine as a node of ``num_processes`` cpu devices.

    Args:
        num_processes: processes that training will use at the same time.
        budget_seconds: wall time to spend, starting the processes included.

    Returns:
        One level (the node); every number's source is this measurement.

    Raises:
        InputError: for no processes or too little time.
        ExecutionError: when a measuring process fails.
    """
    if num_processes < 1:
        raise InputError(f"num_processes is {num_processes}; needed: at least 1")
    check_processes(num_processes)
    if not budget_seconds > START_SECONDS:
        raise InputError(f"budget_seconds is {budget_seconds:g}; starting takes {START_SECONDS:g} s: give more, say 20")
    found = _measure(num_processes, budget_seconds - START_SECONDS)
    device = _device(found, num_processes)
    link = _link(found, device)
    return ClusterSpec(
        name=f"{num_processes}xcpu",
        device=device,
        levels=(LevelSpec(name="node", size=num_processes, link=link),),
        host=_host(device, num_processes),
        sources={
            name: SOURCE for name in ("levels.0.link", "host.memory_bytes", "host.cores", "host.flops_per_second")
        },
    )


def _measure(num_processes: int, seconds: float) -> Measurements:
    command = [sys.executable, "-m", "executor.measure_worker", str(num_processes), f"{seconds:.3f}"]
    code, output, errors = _finish(command, worker_environment(num_processes), 10 * seconds + 120)
    if code:
        reason = (errors.strip().splitlines() or [describe_end(code)])[-1]
        raise ExecutionError(f"measuring with {num_processes} processes failed: {reason}")
    found: Measurements = defaultdict(list)
    for kind, what, mean_seconds in json.loads(output.splitlines()[-1]):
        found[kind].append((what, mean_seconds))
    return found


def _finish(command: list[str], environment: dict[str, str], limit_seconds: float) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program; whatever it started ends with it, or when this process is stopped."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired as error:
            raise ExecutionError(f"measuring did not end within {limit_seconds:.0f} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors


def _device(found: Measurements, num_processes: int) -> DeviceSpec:
    """Equations (1) to (3)."""
    fp32 = [(what[0], seconds) for what, seconds in found["gemm_fp32"]]
    peak = max(flops / seconds for flops, seconds in fp32)
    curve = fit_gemm_curve([(flops, seconds, peak) for flops, seconds in fp32])
    peaks: dict[Precision, float] = {"fp32": peak}
    others: tuple[Precision, ...] = ("fp64", "bf16")
    for precision in others:
        (what, seconds) = found[f"gemm_{precision}"][-1]
        peaks[precision] = (what[0] + curve.half_flops) / (curve.max_fraction * seconds)
    launch = found["dispatch"][0][1]
    ((stream_bytes,), stream_seconds) = found["stream"][0]
    ((moved_bytes, operations), elementwise_seconds) = found["elementwise"][0]
    ((attention_flops,), attention_seconds) = found["attention"][0]
    bandwidth = stream_bytes / stream_seconds
    moving_seconds = max(elementwise_seconds - operations * launch, elementwise_seconds / 10)
    return DeviceSpec(
        name="cpu",
        kind="cpu",
        vendor="local",
        architecture=_processor_name(),
        peak_flops_per_second=peaks,
        memory_bytes=max(1, available_memory_bytes() // num_processes),
        memory_bandwidth_bytes_per_second=bandwidth,
        memory_fraction=moved_bytes / moving_seconds / bandwidth,
        gemm=curve,
        attention_fraction=attention_flops / attention_seconds / peak,
        launch_seconds=launch,
        sources={name: SOURCE for name in DeviceSpec.model_fields if name in _MEASURED_FIELDS},
    )


_MEASURED_FIELDS = (
    "peak_flops_per_second", "memory_bytes", "memory_bandwidth_bytes_per_second", "memory_fraction", "gemm",
    "attention_fraction", "launch_seconds",
)  # fmt: skip


def _link(found: Measurements, device: DeviceSpec) -> LinkSpec:
    """Equation (4); a single process has no link and gets its memory's rate."""
    if "hop" not in found:
        return LinkSpec(
            name="none",
            nominal_bytes_per_second=device.memory_bandwidth_bytes_per_second,
            efficiency=1,
            latency_seconds=0,
        )
    rate, latency = fit_link([(what[0], seconds) for what, seconds in found["hop"]])
    return LinkSpec(
        name="gloo",
        nominal_bytes_per_second=rate,
        measured_bytes_per_second=rate,
        efficiency=1,
        latency_seconds=latency,
    )


def _host(device: DeviceSpec, num_processes: int) -> HostSpec:
    bandwidth = device.memory_bandwidth_bytes_per_second
    memory = LinkSpec(name="memory", nominal_bytes_per_second=bandwidth, efficiency=1, latency_seconds=0)
    return HostSpec(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_bandwidth_bytes_per_second=bandwidth * num_processes,
        flops_per_second=device.peak_flops_per_second["fp32"] * num_processes,
        cores=num_cores(),
        pcie=memory,
    )


def _processor_name() -> str:
    for line in read_or_empty(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine

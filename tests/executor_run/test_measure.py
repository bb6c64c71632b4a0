"""From measurements to a cluster."""

import os
import sys
import time
from typing import Any

import pytest

from costmodel.specs import ClusterSpec, ExecutionError, InputError
from executor import measure
from executor.measure import SOURCE, available_memory_bytes, measure_cpu

PEAK, HALF, LAUNCH, RATE, LATENCY = 5e10, 2e6, 8e-6, 4e8, 3e-4


def ideal_machine() -> dict[str, list[tuple[list[float], float]]]:
    """What a machine with exactly these numbers would measure."""
    gemm = [([flops], (flops + HALF) / PEAK) for flops in (1e6, 1e7, 1e8, 5e8)]
    return {
        "gemm_fp32": gemm,
        "gemm_fp64": [([1e8], 2 * (1e8 + HALF) / PEAK)],
        "gemm_bf16": [([1e8], 0.5 * (1e8 + HALF) / PEAK)],
        "dispatch": [([], LAUNCH)],
        "stream": [([3e6], 3e6 / 1.2e10)],
        "elementwise": [([6e6, 20.0], 6e6 / (0.5 * 1.2e10) + 20 * LAUNCH)],
        "attention": [([1e7], 1e7 / (0.25 * PEAK))],
        "hop": [([size], LATENCY + size / RATE) for size in (1e3, 1e5, 1e6)],
    }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ClusterSpec:
    monkeypatch.setattr(measure, "_measure", lambda *_: ideal_machine())
    monkeypatch.setattr(measure, "available_memory_bytes", lambda: 12_000)
    return measure_cpu(num_processes=4)


def test_an_ideal_machine_is_recovered(cluster: ClusterSpec) -> None:
    device, link = cluster.device, cluster.levels[0].link
    assert device.launch_seconds == LAUNCH
    assert device.peak_flops_per_second["fp32"] * device.gemm.max_fraction == pytest.approx(PEAK, rel=1e-3)
    assert device.gemm.half_flops == pytest.approx(HALF, rel=1e-2)
    assert device.peak_flops_per_second["fp64"] / device.peak_flops_per_second["fp32"] == pytest.approx(0.5, rel=0.02)
    assert device.peak_flops_per_second["bf16"] / device.peak_flops_per_second["fp32"] == pytest.approx(2, rel=0.02)
    assert device.memory_bandwidth_bytes_per_second == pytest.approx(1.2e10)
    assert device.memory_fraction == pytest.approx(0.5)
    assert device.attention_fraction == pytest.approx(0.25, rel=0.01)
    assert link.measured_bytes_per_second == pytest.approx(RATE, rel=1e-3)
    assert link.latency_seconds == pytest.approx(LATENCY, rel=1e-2)


def test_a_measured_cluster_is_one_node_of_processes_with_sources(cluster: ClusterSpec) -> None:
    assert (cluster.num_devices, cluster.num_nodes, cluster.device.kind) == (4, 1, "cpu")
    assert cluster.device.memory_bytes == 3_000
    assert set(cluster.device.sources.values()) == {SOURCE}
    assert {"gemm", "launch_seconds", "peak_flops_per_second"} <= set(cluster.device.sources)


def test_one_process_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {kind: points for kind, points in ideal_machine().items() if kind != "hop"}
    monkeypatch.setattr(measure, "_measure", lambda *_: alone)
    assert measure_cpu(num_processes=1).levels[0].link.name == "none"


@pytest.mark.parametrize("arguments", [{"num_processes": 0}, {"num_processes": 2, "budget_seconds": 3.0}])
def test_bad_input(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"num_processes is 0; needed|budget_seconds is 3; starting takes"):
        measure_cpu(**arguments)


def test_a_failing_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(ExecutionError, match=r"measuring with 2 processes failed: .+"):
        measure_cpu(num_processes=2, budget_seconds=6.5)


def test_measuring_that_never_ends_is_stopped_with_all_it_started() -> None:
    program = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(1000)"
    started = time.monotonic()
    with pytest.raises(ExecutionError, match="measuring did not end within 1 s"):
        measure._finish([sys.executable, "-c", program], dict(os.environ), 1.0)
    assert time.monotonic() - started < 20


def test_more_processes_than_the_machine_keeps_alive() -> None:
    with pytest.raises(InputError, match="1000000 processes on this machine of"):
        measure_cpu(num_processes=1_000_000)


def test_available_memory_is_part_of_what_the_machine_has() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_memory_bytes() <= total


@pytest.mark.distributed
def test_this_machine() -> None:
    """Loose on purpose: other programs may run beside the test. The bounds are those of any computer of this century."""
    cluster = measure_cpu(num_processes=2, budget_seconds=9.0)
    device, link = cluster.device, cluster.levels[0].link
    assert 1e8 < device.peak_flops_per_second["fp32"] < 1e14
    assert 1e7 < device.memory_bandwidth_bytes_per_second < 1e13
    assert 1e-7 < device.launch_seconds < 1e-2
    assert device.attention_fraction > 0
    assert link.measured_bytes_per_second is not None
    assert 1e6 < link.measured_bytes_per_second < 1e12
    assert link.latency_seconds < 1

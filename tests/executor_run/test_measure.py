"""From measurements to a cluster."""

import os
import sys
import time
from typing import Any

import ideal_machine as ideal
import pytest
from ideal_machine import BANDWIDTH, HALF, LAUNCH, PEAK

from costmodel.specs import ExecutionError, InputError
from executor import measure
from executor.cores import available_memory_bytes
from executor.measure import choose_kind, measure_cpu, measure_machine
from executor.measured import make_cluster
from executor.measured_draft import Measured
from executor.place import Place, place_from_environment
from hardware_profiles.loader import load_device, load_node

H100 = "NVIDIA H100 80GB HBM3"


def make(readings: list[Any], **facts: Any) -> Measured:
    return make_cluster(ideal.facts(**facts), readings, processor="a processor")


def one_node() -> Measured:
    return make(ideal.device() + ideal.ring("node", 4, ideal.NODE_RATE, ideal.NODE_LATENCY))


def test_an_ideal_machine_is_recovered() -> None:
    cluster = one_node().cluster
    device, link = cluster.device, cluster.levels[0].link
    assert device.launch_seconds == LAUNCH
    assert device.peak_flops_per_second["fp32"] * device.gemm.max_fraction == pytest.approx(PEAK, rel=1e-3)
    assert device.gemm.half_flops == pytest.approx(HALF, rel=1e-2)
    assert device.peak_flops_per_second["fp64"] / device.peak_flops_per_second["fp32"] == pytest.approx(0.5, rel=0.02)
    assert device.peak_flops_per_second["bf16"] / device.peak_flops_per_second["fp32"] == pytest.approx(2, rel=0.02)
    assert device.memory_bandwidth_bytes_per_second == pytest.approx(BANDWIDTH)
    assert device.memory_fraction == pytest.approx(0.5)
    assert device.attention_fraction == pytest.approx(0.25, rel=0.01)
    assert link.measured_bytes_per_second == pytest.approx(ideal.NODE_RATE, rel=1e-3)
    assert link.latency_seconds == pytest.approx(ideal.NODE_LATENCY, rel=1e-2)
    assert cluster.host.pcie.measured_bytes_per_second == pytest.approx(ideal.COPY_RATE, rel=1e-3)
    assert cluster.host.pcie.latency_seconds == pytest.approx(ideal.COPY_LATENCY, rel=1e-2)


def test_a_measured_cluster_is_one_node_of_processes_with_sources() -> None:
    cluster = one_node().cluster
    assert (cluster.name, cluster.num_devices, cluster.num_nodes, cluster.device.kind) == ("4xcpu", 4, 1, "cpu")
    assert cluster.device.memory_bytes == 3_000
    assert {"gemm", "launch_seconds", "peak_flops_per_second", "attention_fraction"} <= set(cluster.device.sources)
    today = time.strftime("%Y-%m-%d")
    for source in [*cluster.device.sources.values(), *cluster.sources.values()]:
        assert source.startswith(f"measured {today} on a processor, torch 2.13.0")
    assert cluster.sources["levels.0.link"].endswith("; 12 points, residual 0.0%")


def test_findings_carry_values_points_and_residuals() -> None:
    found = {finding.name: finding for finding in one_node().findings}
    assert found["matrix products, fp32"].value == pytest.approx(PEAK, rel=1e-3)
    assert found["matrix products, fp32"].num_points == 6
    assert found["link inside a node"].residual == pytest.approx(0, abs=1e-3)
    assert found["memory bandwidth"].value == pytest.approx(BANDWIDTH)
    assert found["fused attention, head dimension 128"].value == pytest.approx(0.5 * PEAK)


def test_a_disturbed_measurement_shows_in_the_residual() -> None:
    readings = ideal.ring("node", 4, ideal.NODE_RATE, ideal.NODE_LATENCY)
    readings[0] = [*readings[0][:2], 4 * readings[0][2]]
    found = {finding.name: finding for finding in make(ideal.device() + readings).findings}
    # One of 12 points is off by a factor of 4: sqrt(ln(4)^2 / 12) = 0.40.
    assert found["link inside a node"].residual == pytest.approx(0.40, abs=0.02)


def test_one_process_has_no_link() -> None:
    assert make(ideal.device(), local_size=1).cluster.levels[0].link.name == "none"


def two_level(ports: int, **facts: Any) -> Measured:
    """4 nodes of 4: a process alone gets the whole of one port, all together share ``ports`` ports."""
    port = 2e8
    readings = [
        *ideal.ring("node", 4, ideal.NODE_RATE, ideal.NODE_LATENCY, gloo=False),
        *ideal.ring("network", 4, port * ports / 4, 0.0, gloo=False),
        *ideal.ring("alone", 4, port, 0.0, gloo=False),
    ]
    return make(ideal.device(main="bf16") + readings, num_nodes=4, kind="cuda", **facts)


@pytest.mark.parametrize("ports", [1, 2, 4])
def test_ports_are_what_all_get_over_what_one_gets(ports: int) -> None:
    level = two_level(ports, name="Some Accelerator").cluster.levels[1]
    assert (level.size, level.ports) == (4, ports)
    assert level.link.measured_bytes_per_second == pytest.approx(2e8, rel=1e-3)


def test_a_level_for_every_measured_link() -> None:
    readings = [
        *ideal.ring("node", 2, ideal.NODE_RATE, ideal.NODE_LATENCY),
        *ideal.ring("network", 2, ideal.NETWORK_RATE, ideal.NETWORK_LATENCY),
        *ideal.ring("alone", 2, 2 * ideal.NETWORK_RATE, ideal.NETWORK_LATENCY),
        # All four in one ring: 2 nodes of 2, the network carries 2 x 1e8 B/s a node; 2 (3/4 S / 2e8 + 0.3 ms + 0.9 ms).
        ["world_all_reduce", [2.0**24, 4.0], 2 * (0.75 * 2.0**24 / 2e8 + 3e-4 + 9e-4)],
    ]
    found = make(ideal.device() + readings, local_size=2, num_nodes=2)
    node, network = found.cluster.levels
    assert (found.cluster.name, node.size, network.size, network.ports) == ("2x2xcpu", 2, 2, 1)
    assert node.link.measured_bytes_per_second == pytest.approx(ideal.NODE_RATE, rel=1e-3)
    assert network.link.measured_bytes_per_second == pytest.approx(2 * ideal.NETWORK_RATE, rel=1e-3)
    assert network.link.latency_seconds == pytest.approx(ideal.NETWORK_LATENCY, rel=1e-2)
    (check,) = [finding for finding in found.findings if finding.name == "all_reduce of all"]
    predicted = float(check.remark.split()[-2])
    assert predicted == pytest.approx(check.value, rel=0.01)


def test_a_known_gpu_keeps_the_catalogue_s_peaks_and_gets_measured_fractions() -> None:
    catalogue, node = load_device("H100-SXM"), load_node("dgx-h100")
    peak = catalogue.peak_flops_per_second["bf16"]
    readings = [
        *ideal.device(main="bf16", peak=0.7 * peak, half=8e9),
        *ideal.ring("node", 8, 350e9, 5e-6, gloo=False),
    ]
    found = make(readings, kind="cuda", name=H100, names=[H100], memory_bytes=85_000_000_000, local_size=8)
    device, link = found.cluster.device, found.cluster.levels[0].link
    assert (found.cluster.name, device.name, device.architecture) == ("8xH100-SXM", "H100-SXM", "Hopper")
    assert device.peak_flops_per_second == catalogue.peak_flops_per_second
    assert device.gemm.max_fraction == pytest.approx(0.7, rel=1e-3)
    assert device.gemm.half_flops == pytest.approx(8e9, rel=0.01)
    assert device.attention_fraction == pytest.approx(0.35, rel=1e-3)  # head dimension 128: half of 0.7 x peak
    assert device.launch_seconds == LAUNCH / 2
    assert device.memory_bytes == 85_000_000_000
    assert device.power_limit_watts == catalogue.power_limit_watts
    assert (link.name, link.nominal_bytes_per_second) == ("NVLink 4", node.link.nominal_bytes_per_second)
    assert link.measured_bytes_per_second == pytest.approx(350e9, rel=1e-3)
    assert device.sources["gemm"].startswith("measured ")
    assert not any(path.startswith(("gemm.", "memory_fraction.")) for path in device.sources)
    assert "datasheet" in device.sources["peak_flops_per_second.bf16"]


def test_the_power_limit_is_the_one_that_was_measured_under() -> None:
    peak = load_device("H100-SXM").peak_flops_per_second["bf16"]
    readings = ideal.device(main="bf16", peak=0.6 * peak, half=8e9) + ideal.ring("node", 4, 3e11, 5e-6, gloo=False)
    device = make(readings, kind="cuda", name=H100, names=[H100], power_limit_watts=500.0).cluster.device
    assert device.power_limit_watts == 500
    assert device.gemm.max_fraction == pytest.approx(0.6, rel=1e-3)
    assert device.full_rate_watts_per_tflops is None  # the fraction holds at 500 W; no clock is to be lowered again


def test_an_unknown_gpu_s_peaks_are_what_its_curves_approach() -> None:
    readings = ideal.device(main="bf16", peak=1e14, half=8e9) + ideal.ring("node", 4, 5e10, 5e-6, gloo=False)
    device = make(readings, kind="cuda", name="Some Accelerator", names=["Some Accelerator"]).cluster.device
    assert device.name == "Some Accelerator"
    assert device.peak_flops_per_second["bf16"] == pytest.approx(1e14, rel=1e-3)
    assert device.gemm.max_fraction == 1
    assert device.memory_fraction <= 1


def test_nccl_s_all_reduce_does_not_enter_the_ring_s_fit() -> None:
    readings = ideal.ring("node", 8, 350e9, 5e-6, gloo=False)
    faster = [[kind, sizes, seconds / (1.4 if "all_reduce" in kind else 1)] for kind, sizes, seconds in readings]
    found = make(ideal.device(main="bf16") + faster, kind="cuda", name=H100, names=[H100], local_size=8)
    assert found.cluster.levels[0].link.measured_bytes_per_second == pytest.approx(350e9, rel=1e-3)
    (shown,) = [finding for finding in found.findings if finding.name.strip() == "all_reduce"]
    assert shown.remark.startswith("0.71 times the fitted link's seconds")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "cpu", "num_processes": 0}, "num_processes is 0; needed: at least 1"),
        ({"kind": "cpu"}, "num_processes is missing; on a CPU state how many"),
        ({"kind": "cpu", "num_processes": 2, "budget_seconds": 3.0}, "budget_seconds is 3; starting takes"),
        ({"kind": "cpu", "num_processes": 1_000_000}, "1000000 processes on this machine of"),
        ({"kind": "tpu", "num_processes": 2}, "device is 'tpu'; needed cpu or cuda"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure_machine(environment={}, **arguments)


def test_cuda_without_cuda_devices_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        InputError, match="torch finds no CUDA device here; measure this machine's CPU with --device cpu"
    ):
        choose_kind("cuda")
    assert choose_kind(None) == "cpu"


def torchrun(**changes: str) -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {**dict(zip(names, ("3", "4", "1", "2", "127.0.0.1", "29500"), strict=True)), **changes}


def test_torchrun_s_variables_name_the_place() -> None:
    place = place_from_environment(torchrun())
    assert place == Place(rank=3, size=4, local_rank=1, local_size=2)
    assert (place.node, place.num_nodes) == (1, 2)
    assert place_from_environment({}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "one"}, "RANK is 'one'; needed a whole number"),
        ({"WORLD_SIZE": "3"}, "RANK 3 of 3 and LOCAL_RANK 1 of 2; needed the same number of processes on every node"),
        ({"LOCAL_RANK": "0"}, "RANK 3 of 4 and LOCAL_RANK 0 of 2"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'; needed a port from 0 to 65535"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is '70000'"),
        ({"WORLD_SIZE": "9" * 5000}, "needed a whole number"),
    ],
)
def test_variables_that_torchrun_would_not_set(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        place_from_environment(torchrun(**changes))


def test_missing_variables_are_listed() -> None:
    environment = {name: text for name, text in torchrun().items() if "LOCAL" not in name}
    with pytest.raises(InputError, match="but not LOCAL_RANK, LOCAL_WORLD_SIZE; start it with torchrun"):
        place_from_environment(environment)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_of_torchrun_s_environment_is_refused(name: str) -> None:
    """A rank without a world would measure this machine alone and, as another rank than 0, write nothing."""
    with pytest.raises(InputError, match=f"{name} is set, but not .*LOCAL_RANK.*; start it with torchrun, or .*unset"):
        place_from_environment({name: "1"})


def test_processes_beside_torchrun_s() -> None:
    with pytest.raises(InputError, match="num_processes is 3; torchrun started 2 on this node"):
        measure_machine(kind="cpu", num_processes=3, environment=torchrun())


def test_different_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"facts": ideal.facts(names=["A", "B"]), "readings": ideal.device()}
    monkeypatch.setattr(measure, "_measure_children", lambda *_, **__: found)
    with pytest.raises(InputError, match="the processes have different devices: A, B; plans need equal ones"):
        measure_cpu(num_processes=1)


def test_a_failing_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(ExecutionError, match=r"measuring with 2 processes failed: .+"):
        measure_cpu(num_processes=2, budget_seconds=6.5)


def test_measuring_that_never_ends_is_stopped_with_all_it_started() -> None:
    program = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(1000)"
    started = time.monotonic()
    with pytest.raises(ExecutionError, match="measuring did not end within 1 s"):
        measure._finish([sys.executable, "-c", program], dict(os.environ), 1.0, lambda _: None)
    assert time.monotonic() - started < 20


def test_available_memory_is_part_of_what_the_machine_has() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_memory_bytes() <= total


@pytest.mark.distributed
def test_this_machine() -> None:
    """Loose on purpose: other programs may run beside the test. The bounds are those of any computer of this century."""
    told: list[str] = []
    found = measure_machine(kind="cpu", num_processes=2, budget_seconds=9.0, progress=told.append, environment={})
    device, link = found.cluster.device, found.cluster.levels[0].link
    assert 1e8 < device.peak_flops_per_second["fp32"] < 1e14
    assert 1e7 < device.memory_bandwidth_bytes_per_second < 1e13
    assert 1e-7 < device.launch_seconds < 1e-2
    assert device.attention_fraction > 0
    assert link.measured_bytes_per_second is not None
    assert 1e6 < link.measured_bytes_per_second < 1e12
    assert link.latency_seconds < 1
    assert told[:2] == ["round 1 of 3: matrix products", "round 1 of 3: memory"]
    assert any("collectives (node)" in text for text in told)

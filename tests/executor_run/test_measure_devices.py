"""The measuring code of CUDA devices on a CPU, and of several nodes on one machine."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from executor import microbenchmarks as bench
from executor.measure_menu import COLLECTIVES, Menu, cpu_menu, cuda_menu
from executor.measure_process import make_groups, measure_rounds, power_limit_watts
from executor.place import Place
from executor.stopwatch import CpuStopwatch, Stopwatch, StreamStopwatch
from hardware_profiles.loader import load_cluster

ROOT = Path(__file__).parents[2]
TINY = Menu(
    main="fp32",
    gemm={"fp32": ((8, 8, 8), (16, 16, 16))},
    stream_bytes=1200,
    elementwise=(8, 8),
    attention=((2, 16, 8), (2, 16, 16)),
    copies=(1024, 4096),
    messages=(1024, 4096),
    rounds=2,
)


class Event:
    """A CPU's stream is its program: an event is a moment."""

    def record(self) -> None:
        self.moment = time.perf_counter()

    def synchronize(self) -> None:
        assert self.moment

    def elapsed_time(self, end: "Event") -> float:
        return (end.moment - self.moment) * 1e3


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Place]:
    """One process that has joined a group of itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield Place(rank=0, size=1, local_rank=0, local_size=1)
    dist.destroy_process_group()


@pytest.fixture(params=["cpu", "stream"])
def watch(request: pytest.FixtureRequest, alone: Place) -> Stopwatch:
    return CpuStopwatch(alone.local_size) if request.param == "cpu" else StreamStopwatch(torch.device("cpu"), Event)


def test_every_measurement_runs_by_clock_and_by_events(watch: Stopwatch, alone: Place) -> None:
    told: list[str] = []
    readings = measure_rounds(TINY, watch, alone, seconds=0.05, progress=told.append)
    kinds = [kind for kind, _, _ in readings]
    assert kinds == [
        "gemm_fp32", "gemm_fp32", "stream", "elementwise", "attention", "attention", "dispatch", "copy", "copy",
    ]  # fmt: skip
    assert all(0 < seconds < 1 for _, _, seconds in readings)
    assert readings[1][1] == [2.0 * 16**3]
    assert readings[4][1] == [4.0 * 2 * 8 * 16 * 16 / 2, 8.0, 16.0]
    assert told[0] == "round 1 of 2: matrix products"


def test_a_known_time_is_measured(watch: Stopwatch) -> None:
    def call() -> None:  # busy, because the processor's time counts
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            pass

    assert watch.local(call, 0.05) == pytest.approx(0.01, rel=0.5)
    assert watch.collective(call, 0.05) == pytest.approx(0.01, rel=0.5)


def test_the_mean_leaves_out_who_measured_nothing(watch: Stopwatch) -> None:
    assert watch.mean(3.0) == 3.0
    assert watch.mean(None) != watch.mean(None)  # NaN


def test_launches_and_copies_both_ways(watch: Stopwatch) -> None:
    assert 0 < bench.launch_seconds(watch, window=0.01) < 1e-3
    for to_device in (True, False):
        assert 0 < bench.copy_seconds(watch, 2**20, to_device=to_device, pinned=False, window=0.01) < 1


def test_collectives_move_what_they_should(alone: Place) -> None:
    group = dist.group.WORLD
    assert group is not None
    for kind in COLLECTIVES[:3]:
        bench.make_collective(kind, 1024, group, torch.device("cpu"))()


def test_the_power_limit_is_nvidia_smi_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ROOT / "benchmarks" / "data" / "hardware_reports" / "nvidia_smi" / "a100-sxm-80gb-4_driver-555.txt"
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {report}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert power_limit_watts() == 500
    monkeypatch.setenv("PATH", "")
    assert power_limit_watts() is None


@pytest.mark.parametrize("quick", [True, False])
def test_menus_have_what_their_fits_need(quick: bool) -> None:
    for menu in (cpu_menu(quick=quick), cuda_menu(quick=quick, bf16=True), cuda_menu(quick=quick, bf16=False)):
        assert len(set(menu.gemm[menu.main])) > 2
        assert len(set(menu.copies)) > 1
        assert len(set(menu.messages)) > 1
        assert menu.count(num_groups=1, cuda=False) > menu.count(num_groups=0, cuda=False)
    assert {shape[2] for shape in cuda_menu(quick=quick, bf16=True).attention} >= {64, 128}
    assert "bf16" not in cuda_menu(quick=quick, bf16=False).gemm


def test_one_process_has_no_groups(alone: Place) -> None:
    assert make_groups(alone) == []


DRIVER = """
import sys
from executor.measure import measure_machine
from hardware_profiles.loader import save_cluster
found = measure_machine(kind="cpu", budget_seconds=float(sys.argv[2]))
if found is not None and sys.argv[1] != "-":
    save_cluster(found.cluster, sys.argv[1])
print(*(finding.name for finding in found.findings), sep="|")
"""


def start_as_torchrun(nodes: int, per_node: int, output: Path, seconds: float) -> list[str]:
    """Every process with the environment that torchrun gives it; what rank 0 printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank in range(nodes * per_node):
        place = {
            "RANK": rank,
            "WORLD_SIZE": nodes * per_node,
            "LOCAL_RANK": rank % per_node,
            "LOCAL_WORLD_SIZE": per_node,
        }
        command = [sys.executable, "-c", DRIVER, str(output) if rank == 0 else "-", str(seconds)]
        environment = common | {name: str(value) for name, value in place.items()}
        processes.append(
            subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    ends = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), ends
    return ends[0][0].strip().split("|")


@pytest.mark.distributed
def test_two_processes_as_two_nodes_give_a_network(tmp_path: Path) -> None:
    start_as_torchrun(2, 1, tmp_path / "cluster.yaml", seconds=7.0)
    cluster = load_cluster(tmp_path / "cluster.yaml")
    node, network = cluster.levels
    assert (cluster.name, node.size, network.size, network.ports) == ("2x1xcpu", 1, 2, 1)
    assert node.link.name == "none"
    assert network.link.measured_bytes_per_second is not None
    assert 1e6 < network.link.measured_bytes_per_second < 1e12
    assert "measured" in cluster.sources["levels.1.link"]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_nodes_of_two_give_two_measured_levels_that_a_plan_uses(tmp_path: Path) -> None:
    names = start_as_torchrun(2, 2, tmp_path / "cluster.yaml", seconds=8.0)
    assert {"link inside a node", "link between nodes, one process", "all_reduce of all"} <= set(names)
    cluster = load_cluster(tmp_path / "cluster.yaml")
    assert [level.size for level in cluster.levels] == [2, 2]
    assert all(level.link.measured_bytes_per_second for level in cluster.levels)
    import meshwright

    planned = meshwright.plan("llama-tiny-demo", tmp_path / "cluster.yaml", global_batch_size=8, sequence_length=128)
    assert planned.best.cluster == cluster

"""The devices of a run become a cluster: names, partial nodes, NVLink domains, stated rates; all published rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from replay_rows import vary

from hardware_profiles.loader import load_node
from meshwright.validation.adapters.errors import UnknownAcceleratorError
from meshwright.validation.adapters.hardware import build_cluster, device_name
from meshwright.validation.adapters.layout import adapt
from meshwright.validation.run_rows import HardwareFields, RunRow

PUBLISHED = sorted((Path(__file__).parents[2] / "benchmarks/data/published_runs").glob("*.jsonl"))


def sizes(**fields: Any) -> list[int]:
    return [level.size for level in build_cluster(HardwareFields(**fields)).levels]


@pytest.mark.parametrize(("word", "memory", "name"), [
    ("T4-16GB", 16, "T4"), ("V100", 32, "V100-SXM-32GB"), ("V100", 16, "V100-SXM-16GB"), ("V100", None, "V100-SXM-32GB"),
    ("V100-SXM2-16GB", 16, "V100-SXM-16GB"), ("A100", 40, "A100-SXM-40GB"), ("A100", 80, "A100-SXM-80GB"),
    ("A100-PCIe", 80, "A100-PCIe-80GB"), ("A100-SXM4-40GB", 40, "A100-SXM-40GB"), ("H100", 80, "H100-SXM"),
    ("H100", 96, "H100-96GB-HBM2e"), ("H100-96GB-HBM2e-500W", 96, "H100-96GB-HBM2e"), ("H100-80GB", 80, "H100-SXM"),
    ("H200", 141, "H200"), ("H800-80GB", 80, "H800-SXM-80GB"), ("B200-SXM", 180, "B200"), ("GB200", 186, "GB200"),
    ("A800", 80, "A800-SXM-80GB"), ("H100-SXM", 94, "H100-SXM"),
])  # fmt: skip
def test_names_and_memory_choose_the_device(word: str, memory: float | None, name: str) -> None:
    assert device_name(word, memory) == name


def test_a_name_of_several_devices_needs_its_memory() -> None:
    for word in ("A100", "H100"):
        with pytest.raises(UnknownAcceleratorError, match=f"unknown accelerator '{word}'"):
            device_name(word)
    with pytest.raises(UnknownAcceleratorError, match="unknown accelerator 'TPU v4'"):
        device_name("TPU v4", 32)


@pytest.mark.parametrize(("gpus", "per_node", "found"), [
    (8, 8, [8]), (4, 8, [4]), (12, 8, [8, 2]), (17, 8, [8, 3]), (64, 4, [4, 16]), (3, None, [3]), (20, None, [8, 3]),
])  # fmt: skip
def test_the_fewest_equal_nodes_hold_the_job(gpus: int, per_node: int | None, found: list[int]) -> None:
    assert sizes(gpu="A100-80GB", n_gpus=gpus, gpus_per_node=per_node) == found


def test_a_job_in_a_partly_used_node_runs_on_its_own_devices() -> None:
    plan = adapt(RunRow.model_validate(vary(hardware__n_gpus=12, parallel__dp=3, parallel__global_batch=48))).plan
    assert (plan.num_devices_used, plan.cluster.num_devices) == (12, 16)


@pytest.mark.parametrize(("gpus", "found"), [
    (8, [8]), (64, [64]), (72, [72]), (128, [64, 2]), (144, [72, 2]), (256, [64, 4]), (73, [37, 2]),
])  # fmt: skip
@pytest.mark.parametrize("per_node", [4, 72, None])
def test_an_nvl72_is_one_node_of_the_network(gpus: int, per_node: int | None, found: list[int]) -> None:
    cluster = build_cluster(HardwareFields(gpu="GB200", n_gpus=gpus, gpus_per_node=per_node))
    assert [level.size for level in cluster.levels] == found
    assert cluster.levels[0].link == load_node("gb200-nvl72").link
    if len(found) > 1:  # one ConnectX-7 of 400 Gbit/s for each GPU
        assert cluster.levels[1].ports == found[0]
        assert cluster.levels[1].link.nominal_bytes_per_second == 50e9


def test_a_pcie_box_talks_over_pcie_and_one_port() -> None:
    stated = {"gpu": "T4-16GB", "gpu_mem_gb": 16, "n_gpus": 16, "gpus_per_node": 4, "inter_node_gbps_per_gpu": 1.5625}
    inner, outer = build_cluster(HardwareFields(**stated)).levels
    assert inner.link.name == "PCIe 3 x16"
    assert inner.link.nominal_bytes_per_second == 15.75e9
    assert (outer.ports, outer.link.nominal_bytes_per_second) == (1, 6.25e9)  # 50 Gbit/s per node


def test_sixteen_v100_are_a_dgx_2() -> None:
    inner, outer = build_cluster(HardwareFields(gpu="V100-32GB", n_gpus=64, gpus_per_node=16)).levels
    assert (inner.size, outer.size) == (16, 4)
    assert outer.ports * outer.link.nominal_bytes_per_second == 100e9  # 800 Gbit/s per node


def test_every_published_row_on_gpus_gets_its_devices() -> None:
    without = set()
    for path in PUBLISHED:
        for line in path.read_text().splitlines():
            hardware = HardwareFields.model_validate(json.loads(line)["hardware"])
            if hardware.gpu == "TPU v4" or hardware.n_gpus is None:
                without.add(hardware.gpu)
                continue
            cluster = build_cluster(hardware)
            assert cluster.num_devices == hardware.n_gpus
            inner = cluster.levels[0].link.nominal_bytes_per_second
            assert hardware.intra_node_gbps_per_gpu in (None, pytest.approx(inner / 1e9, rel=0.01))
            if len(cluster.levels) > 1 and hardware.inter_node_gbps_per_gpu is not None:
                outer = cluster.levels[1]
                per_device = outer.ports * outer.link.nominal_bytes_per_second / cluster.levels[0].size
                assert per_device == pytest.approx(hardware.inter_node_gbps_per_gpu * 1e9, rel=0.01)
    assert without == {"TPU v4", "H100-80GB"}

"""From reports to a cluster: the catalogue, with what the reports show in place of what it assumes."""

from pathlib import Path
from typing import Any

import pytest
from machine_reports import nccl_table, published

from hardware_profiles.detect.cluster import Detected, catalogue_name, detect_cluster
from hardware_profiles.detect.report import Report
from hardware_profiles.loader import load_cluster, load_network, load_node, save_cluster
from hardware_profiles.spec import InputError

SMI = published("nvidia_smi/h100-sxm-8_driver-565.txt")
TOPOLOGY = published("topology/h100-sxm-8_nic-1.txt")
DGX_A100 = published("topology/dgx-a100_mlx5-12.txt")
A100 = published("nvidia_smi/a100-sxm-80gb-1_driver-525.txt")


def said(found: Detected) -> str:
    return "\n".join(str(note) for note in found.notes)


def test_device_memory_ports_and_links_of_a_node() -> None:
    found = detect_cluster(nvidia_smi=SMI, topology=TOPOLOGY, num_nodes=4)
    cluster = found.cluster
    assert (cluster.device.name, cluster.num_nodes, cluster.devices_per_node) == ("H100-SXM", 4, 8)
    assert cluster.device.memory_bytes == (81559 - 454) * 2**20
    assert "nvidia-smi -q, driver 565.57.01" in cluster.device.sources["memory_bytes"]
    assert cluster.levels[0].link == load_node("dgx-h100").link
    assert cluster.levels[1].ports == 1  # one card in the matrix; the catalogue's node has 8
    assert "mlx5_0" in cluster.sources["levels.1.ports"]


def test_what_no_report_shows_is_the_catalogue_s_and_said_so() -> None:
    found = detect_cluster(nvidia_smi=SMI, num_nodes=2)
    usual = load_cluster("2x8xH100-SXM")
    assert found.cluster.host == usual.host
    assert found.cluster.levels == usual.levels
    assert "those of the catalogue's node dgx-h100" in said(found)
    assert "ib-ndr-400g of the catalogue's node dgx-h100 is assumed" in said(found)


def test_a_stated_network_is_taken() -> None:
    found = detect_cluster(nvidia_smi=SMI, num_nodes=2, network="eth-100g")
    assert found.cluster.levels[1].link == load_network("eth-100g").link
    assert "is assumed" not in said(found)


def test_the_compute_cards_of_a_dgx_a100_are_its_ports() -> None:
    found = detect_cluster(nvidia_smi=A100, topology=DGX_A100, num_nodes=2)
    assert found.cluster.levels[1].ports == 8


def test_a_box_without_nvlink_gets_pcie() -> None:
    found = detect_cluster(
        nvidia_smi=published("nvidia_smi/rtx-4090-8_driver-550.txt"),
        topology=published("topology/rtx-4090-8_nic-1.txt"),
    )
    link = found.cluster.levels[0].link
    assert (link.name, link.efficiency) == ("PCIe 4 x16", 0.40)
    assert "no NVLink; the longest path between two devices is SYS" in said(found)


def test_nvlink_devices_without_nvlink_in_the_matrix_get_pcie_of_their_slot() -> None:
    text = TOPOLOGY.text.replace("NV18", "PHB")
    link = detect_cluster(nvidia_smi=SMI, topology=Report("topo.txt", text)).cluster.levels[0].link
    assert (link.name, link.measured_bytes_per_second) == ("PCIe 5 x16", None)
    assert link.nominal_bytes_per_second == pytest.approx(63e9, rel=1e-3)


def test_another_power_limit_is_kept_and_said() -> None:
    found = detect_cluster(nvidia_smi=published("nvidia_smi/a100-sxm-80gb-4_driver-555.txt"))
    assert found.cluster.device.power_limit_watts == 500
    assert "the power limit is 500 W; the catalogue's efficiencies were measured at 400 W" in said(found)


def test_measured_rates_replace_the_catalogue_s() -> None:
    # Inside: 340 GB/s and 7 hops of 5 us. Between: 8 ports of 45 GB/s; 7 hops of 5 us inside and 3 of 20 us between.
    tests = [
        nccl_table("all_gather", nodes=1, per_node=8, rate=340e9, one_way=35e-6),
        nccl_table("all_gather", nodes=4, per_node=8, rate=360e9, one_way=95e-6),
    ]
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=tests)
    inside, across = (level.link for level in found.cluster.levels)
    assert found.cluster.num_nodes == 4
    assert inside.measured_bytes_per_second == pytest.approx(340e9, rel=2e-3)
    assert inside.latency_seconds == pytest.approx(5e-6, rel=0.05)
    assert inside.efficiency == pytest.approx(340 / 450, rel=2e-3)
    assert across.measured_bytes_per_second == pytest.approx(45e9, rel=2e-3)
    assert across.latency_seconds == pytest.approx(20e-6, rel=0.1)
    source = found.cluster.sources["levels.1.link.measured_bytes_per_second"]
    assert source.startswith("measured with nccl-tests all_gather, 16 points, residual 0.0%: all_gather.txt")


def test_a_tree_over_two_nodes_gives_what_the_network_carried_at_least() -> None:
    table = published("nccl_tests/all_reduce_2x8_h100-sxm_prefixed.txt")
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=[table])
    rate = found.cluster.levels[1].link.measured_bytes_per_second
    # The same machine reached 89.9 GB/s a node with NCCL_ALGO=Ring (same issue); its default printed 155.6.
    assert rate is not None
    assert 8 * rate == pytest.approx(89.9e9, rel=0.1)
    assert 8 * rate <= 89.9e9
    assert "may be a tree's" in said(found)


def test_a_reduction_in_the_switch_says_nothing_of_the_ring() -> None:
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=[published("nccl_tests/all_reduce_1x8_h100-sxm.txt")])
    assert found.cluster.levels[0].link == load_node("dgx-h100").link
    assert "all_reduce at 473.3 GB/s is faster than a ring on NVLink 4" in said(found)


def test_a_rate_above_the_assumed_port_s_becomes_the_nominal_one() -> None:
    table = nccl_table("all_gather", nodes=2, per_node=8, rate=90e9, one_way=95e-6)
    found = detect_cluster(nvidia_smi=SMI, topology=TOPOLOGY, nccl_tests=[table])
    link = found.cluster.levels[1].link
    assert link.nominal_bytes_per_second == link.measured_bytes_per_second == pytest.approx(90e9, rel=2e-3)
    assert "is more than a port of InfiniBand NDR 400G carries (50 GB/s)" in said(found)


def test_nccl_tests_alone_name_device_and_counts() -> None:
    found = detect_cluster(nccl_tests=[published("nccl_tests/all_reduce_2x8_a100-sxm-40gb.txt")])
    cluster = found.cluster
    assert (cluster.device.name, cluster.num_nodes, cluster.devices_per_node) == ("A100-SXM-40GB", 2, 8)


def test_runs_on_several_nodes_do_not_enter_a_cluster_of_one() -> None:
    table = nccl_table("all_gather", nodes=2, per_node=8, rate=90e9, one_way=95e-6)
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=[table], num_nodes=1)
    assert len(found.cluster.levels) == 1
    assert "ran on several nodes, and the cluster has one; left out" in said(found)


def test_of_mixed_devices_the_most_numerous_are_taken() -> None:
    old = "Product Name                          : NVIDIA H100 80GB HBM3"
    text = SMI.text.replace(old, "Product Name                          : NVIDIA L4", 3)
    found = detect_cluster(nvidia_smi=Report("smi.txt", text))
    assert (found.cluster.device.name, found.cluster.num_devices) == ("H100-SXM", 5)
    assert "taken: 5 NVIDIA H100 80GB HBM3, left out: 3 NVIDIA L4 (plans need equal ones)" in said(found)


def test_more_devices_than_the_largest_node_scale_it_up() -> None:
    blocks = SMI.text.split("\nGPU ")
    extra = [f"00000000:{90 + index}:00.0" + block[16:] for index, block in enumerate(blocks[1:])]
    text = "\nGPU ".join([*blocks, *extra]).replace(
        "Attached GPUs                             : 8", "Attached GPUs : 16"
    )
    found = detect_cluster(nvidia_smi=Report("smi.txt", text))
    assert found.cluster.num_devices == 16
    assert "16 devices in a node; the largest of the catalogue (dgx-h100) has 8 and is scaled up" in said(found)


def test_contradicting_counts_are_told() -> None:
    found = detect_cluster(nvidia_smi=published("nvidia_smi/a100-sxm-80gb-4_driver-555.txt"), topology=DGX_A100)
    assert found.cluster.num_devices == 4
    assert "8 devices here, 4 in a100-sxm-80gb-4_driver-555.txt; taken: 4" in said(found)


def test_a_device_outside_the_catalogue_is_refused_until_a_profile_is_stated() -> None:
    report = published("nvidia_smi/h100-nvl-2_driver-550.txt")
    text = report.text.replace("NVIDIA H100 NVL", "NVIDIA Z900")
    with pytest.raises(InputError, match="the device 'NVIDIA Z900' is not in the catalogue; state the profile"):
        detect_cluster(nvidia_smi=Report("smi.txt", text))
    found = detect_cluster(nvidia_smi=Report("smi.txt", text), device="H100-PCIe")
    assert (found.cluster.device.name, found.cluster.num_devices) == ("H100-PCIe", 2)
    assert found.cluster.device.memory_bytes == (95830 - 594) * 2**20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nvidia_smi": Report("smi.txt", "")}, r"no report is usable; smi.txt: the file is empty"),
        ({"topology": TOPOLOGY}, "no report names a device; give nvidia-smi -q, or the device by name"),
        ({"nvidia_smi": SMI, "device": "H1000"}, "device: found 'H1000'; needed one of"),
        ({"nvidia_smi": SMI, "num_nodes": 2, "network": "carrier-pigeon"}, "unknown network"),
        (
            {"nvidia_smi": Report("smi.txt", SMI.text.replace(": Disabled", ": Enabled"))},
            "MIG mode is enabled.*and 1 more notes|MIG mode is enabled",
        ),
        (
            {"nccl_tests": [published("nccl_tests/alltoall_truncated.txt")]},
            "no report is usable; alltoall_truncated.txt:15",
        ),
    ],
)
def test_nothing_usable_is_one_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        detect_cluster(**arguments)


def test_an_unusable_report_beside_usable_ones_is_a_note() -> None:
    found = detect_cluster(nvidia_smi=SMI, topology=Report("topo.txt", "command not found"))
    assert found.cluster.levels[0].link == load_node("dgx-h100").link
    assert "topo.txt: there is no heading of GPU0, GPU1 ..." in said(found)


def test_a_run_on_another_device_than_nvidia_smi_s_is_left_out() -> None:
    other = published("nccl_tests/all_reduce_2x8_a100-sxm-40gb.txt")
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=[other])
    assert found.cluster == detect_cluster(nvidia_smi=SMI).cluster
    assert "it ran on NVIDIA A100-SXM4-40GB; needed NVIDIA H100 80GB HBM3" in said(found)


def test_a_detected_cluster_is_a_cluster_file(tmp_path: Path) -> None:
    tests = [nccl_table("all_gather", nodes=4, per_node=8, rate=360e9, one_way=95e-6)]
    cluster = detect_cluster(nvidia_smi=SMI, topology=TOPOLOGY, nccl_tests=tests).cluster
    save_cluster(cluster, tmp_path / "cluster.yaml")
    assert load_cluster(tmp_path / "cluster.yaml") == cluster


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM-32GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA B200", "B200"),
        ("Graphics Device", None),
        ("NVIDIA", None),
        ("", None),
    ],
)
def test_product_names_to_profiles(product: str, name: str | None) -> None:
    assert catalogue_name(product) == name


def measured(found: Detected, level: int) -> float:
    rate = found.cluster.levels[level].link.measured_bytes_per_second
    assert rate is not None
    return rate


def test_sendrecv_between_nodes_goes_through_one_port() -> None:
    table = nccl_table("sendrecv", nodes=2, per_node=8, rate=40e9, one_way=20e-6)
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=[table])
    assert measured(found, 1) == pytest.approx(40e9, rel=2e-3)
    assert found.cluster.levels[1].link.latency_seconds == pytest.approx(20e-6, rel=0.05)


def test_alltoall_leaves_the_node_with_what_is_not_for_it() -> None:
    # 2 nodes of 8: 8 of a rank's 15 messages leave; at 37.5 GB/s a rank 8 x 8/15 x 37.5 = 160 GB/s leave a node, 20 a port.
    table = nccl_table("alltoall", nodes=2, per_node=8, rate=37.5e9, one_way=50e-6)
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=[table])
    assert measured(found, 1) == pytest.approx(20e9, rel=2e-3)
    assert found.cluster.levels[1].link.latency_seconds == load_network("ib-ndr-400g").link.latency_seconds


def test_smaller_groups_are_left_out_and_said() -> None:
    tests = [
        nccl_table("all_gather", nodes=1, per_node=8, rate=340e9, one_way=35e-6),
        nccl_table("all_gather", nodes=1, per_node=2, rate=200e9, one_way=5e-6),
    ]
    found = detect_cluster(nvidia_smi=SMI, nccl_tests=tests)
    assert measured(found, 0) == pytest.approx(340e9, rel=2e-3)
    assert "ran on 2 devices, others on more; left out" in said(found)

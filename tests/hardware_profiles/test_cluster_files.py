"""Cluster files: whole clusters that round-trip, and named bases with overrides."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.cluster_file import dump_cluster
from hardware_profiles.convert import convert_mapping, validate
from hardware_profiles.loader import list_devices, load_cluster, load_device, load_network, load_node, save_cluster
from hardware_profiles.spec import InputError
from hardware_profiles.types import ClusterSpec, LevelSpec


def write(folder: Path, content: Any, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("name", [f"{prefix}{device}" for device in list_devices() for prefix in ("", "4x", "3x8x")])
def test_every_cluster_survives_saving_and_loading(name: str, tmp_path: Path) -> None:
    cluster = load_cluster(name)
    save_cluster(cluster, tmp_path / "saved.yaml")
    assert load_cluster(tmp_path / "saved.yaml") == cluster
    assert load_cluster(str(tmp_path / "saved.yaml")) == cluster


@settings(deadline=None)
@given(
    rate=st.floats(1, 1e18),
    latency=st.floats(0, 10),
    memory=st.integers(1, 2**60),
    name=st.text(min_size=1).filter(lambda text: text.strip() and text.isprintable()),
)
def test_numbers_and_names_survive_exactly(rate: float, latency: float, memory: int, name: str) -> None:
    cluster = load_cluster("2x8xB200")
    link = cluster.levels[1].link.model_copy(update={"nominal_bytes_per_second": rate, "latency_seconds": latency})
    level = cluster.levels[1].model_copy(update={"link": link})
    device = cluster.device.model_copy(update={"memory_bytes": memory})
    changed = cluster.model_copy(update={"name": name, "device": device, "levels": (cluster.levels[0], level)})
    read = yaml.safe_load(dump_cluster(changed))
    assert validate(ClusterSpec, convert_mapping(ClusterSpec, read, ""), "") == changed


def test_three_levels_survive(tmp_path: Path) -> None:
    cluster = load_cluster("4x8xH100-SXM")
    pod = LevelSpec(name="pod", size=3, link=load_network("ib-hdr-200g").link, ports=2, oversubscription=4.0)
    cluster = cluster.model_copy(update={"levels": (*cluster.levels, pod), "price_per_device_hour": 2.5, "nvme": None})
    save_cluster(cluster, tmp_path / "pods.yaml")
    loaded = load_cluster(tmp_path / "pods.yaml")
    assert loaded == cluster
    assert (loaded.num_devices, loaded.num_nodes, loaded.devices_per_node) == (96, 12, 8)


def test_a_json_dump_is_a_cluster_file_too(tmp_path: Path) -> None:
    cluster = load_cluster("2x8xA100-SXM-40GB")
    path = write(tmp_path, json.dumps(cluster.model_dump(mode="json")), "cluster.json")
    assert load_cluster(path) == cluster


def test_a_whole_file_may_use_units(tmp_path: Path) -> None:
    content = load_cluster("2x8xB200").model_dump(mode="json")
    content["levels"][1]["link"]["nominal_bytes_per_second"] = "800 Gbit/s"
    content["device"]["peak_flops_per_second"]["bf16"] = "2.25 PFLOP/s"
    cluster = load_cluster(write(tmp_path, content))
    assert cluster.levels[1].link.nominal_bytes_per_second == 100e9
    assert cluster.device.peak_flops_per_second["bf16"] == 2.25e15


def test_saving_keeps_an_existing_file_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    save_cluster(load_cluster("8xB200"), path)
    before = path.read_text()
    with pytest.raises(InputError, match=r"cluster\.yaml exists already; .*--force"):
        save_cluster(load_cluster("4xB200"), path)
    assert path.read_text() == before
    save_cluster(load_cluster("4xB200"), path, force=True)
    assert load_cluster(path).num_devices == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["cluster.yaml"]


def test_a_saved_file_has_ordinary_rights(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_cluster(load_cluster("8xB200"), tmp_path / "cluster.yaml")
    assert stat.S_IMODE((tmp_path / "cluster.yaml").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_saving_where_it_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*No such file or directory"):
        save_cluster(load_cluster("8xB200"), tmp_path / "missing" / "cluster.yaml")
    with pytest.raises(InputError, match="is a directory"):
        save_cluster(load_cluster("8xB200"), tmp_path, force=True)


def test_a_base_alone_is_the_named_cluster_under_another_name(tmp_path: Path) -> None:
    named, read = load_cluster("8x8xH100-SXM"), load_cluster(write(tmp_path, {"base": "8x8xH100-SXM"}))
    assert read.name == "8x8xH100-SXM (given in my.yaml)"
    assert read.model_copy(update={"name": named.name}) == named


def test_every_kind_of_number_can_be_overridden(tmp_path: Path) -> None:
    content = {
        "base": "8x8xH100-SXM",
        "name": "our pod",
        "device": {
            "memory_bytes": "94 GiB",
            "peak_flops_per_second": {"bf16": "900 TFLOP/s"},
            "gemm": {"max_fraction": 0.7},
        },
        "node_link": {"measured_bytes_per_second": "380 GB/s"},
        "network": {
            "nominal_bytes_per_second": "200 Gbit/s",
            "latency_seconds": "10 us",
            "ports": 4,
            "oversubscription": 2,
        },
        "host": {"memory_bytes": "1 TiB", "cores": 96, "pcie": {"efficiency": 0.5}},
        "nvme": {"bytes": "7.6 TB", "read_bytes_per_second": "20 GB/s"},
        "price_per_device_hour": 2.5,
    }
    cluster, base = load_cluster(write(tmp_path, content)), load_cluster("8x8xH100-SXM")
    assert cluster.name == "our pod"
    assert cluster.device.memory_bytes == 94 * 2**30
    assert cluster.device.peak_flops_per_second == {**base.device.peak_flops_per_second, "bf16": 900e12}
    assert cluster.device.gemm.max_fraction == 0.7
    assert cluster.device.gemm.half_flops == base.device.gemm.half_flops
    assert cluster.levels[0].link.measured_bytes_per_second == 380e9
    assert cluster.levels[0].link.nominal_bytes_per_second == base.levels[0].link.nominal_bytes_per_second
    assert cluster.levels[1].link.nominal_bytes_per_second == 25e9
    assert cluster.levels[1].link.latency_seconds == 1e-5
    assert (cluster.levels[1].ports, cluster.levels[1].oversubscription) == (4, 2.0)
    assert (cluster.host.memory_bytes, cluster.host.cores, cluster.host.pcie.efficiency) == (2**40, 96, 0.5)
    assert cluster.host.memory_bandwidth_bytes_per_second == base.host.memory_bandwidth_bytes_per_second
    assert cluster.nvme is not None
    assert (cluster.nvme.bytes, cluster.nvme.read_bytes_per_second) == (7_600_000_000_000, 20e9)
    assert cluster.price_per_device_hour == 2.5


def test_sources_say_what_the_file_gave_and_keep_the_rest(tmp_path: Path) -> None:
    content = {"base": "2x8xH100-SXM", "network": {"latency_seconds": "9 us"}, "device": {"launch_seconds": "4 us"}}
    cluster, base = load_cluster(write(tmp_path, content)), load_cluster("2x8xH100-SXM")
    assert cluster.sources["levels.1.link.latency_seconds"] == "given in my.yaml"
    assert cluster.device.sources["launch_seconds"] == "given in my.yaml"
    changed = {key for key in cluster.sources if cluster.sources[key] != base.sources.get(key)}
    assert changed == {"levels.1.link.latency_seconds"}


def test_a_new_nominal_rate_drops_the_measurement_of_the_old_link(tmp_path: Path) -> None:
    base = load_cluster("2x8xH100-SXM")
    assert base.levels[0].link.measured_bytes_per_second is not None
    cluster = load_cluster(
        write(tmp_path, {"base": "2x8xH100-SXM", "node_link": {"nominal_bytes_per_second": "900 GB/s"}})
    )
    link = cluster.levels[0].link
    assert (link.nominal_bytes_per_second, link.measured_bytes_per_second) == (900e9, None)
    assert link.efficiency == base.levels[0].link.efficiency
    both = {"nominal_bytes_per_second": "900 GB/s", "measured_bytes_per_second": "700 GB/s"}
    cluster = load_cluster(write(tmp_path, {"base": "2x8xH100-SXM", "node_link": both}, "both.yaml"))
    assert cluster.levels[0].link.measured_bytes_per_second == 700e9


def test_counts_and_profiles_can_be_named(tmp_path: Path) -> None:
    content = {"device": "A100-SXM-40GB", "node": "p4d.24xlarge", "num_nodes": 16, "devices_per_node": 8}
    cluster = load_cluster(write(tmp_path, content))
    node = load_node("p4d.24xlarge")
    assert (cluster.num_nodes, cluster.devices_per_node) == (16, 8)
    assert cluster.levels[1].link == load_network("efa-100g").link
    assert cluster.levels[1].ports == 4
    assert cluster.host == node.host


def test_another_network_keeps_the_ports_of_the_node(tmp_path: Path) -> None:
    for number, network in enumerate(["ib-hdr-200g", {"profile": "HDR"}, {"profile": "ib-hdr-200g", "ports": 2}]):
        cluster = load_cluster(write(tmp_path, {"base": "4x8xH100-SXM", "network": network}, f"{number}.yaml"))
        assert cluster.levels[1].link == load_network("ib-hdr-200g").link
        assert cluster.levels[1].ports == (2 if number == 2 else 8)


def test_counts_override_those_of_the_base(tmp_path: Path) -> None:
    cluster = load_cluster(write(tmp_path, {"base": "8x8xB200", "num_nodes": 3, "devices_per_node": 4}))
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.levels[1].ports) == (3, 4, 4)


def test_a_device_profile_with_changes(tmp_path: Path) -> None:
    content = {
        "device": {"profile": "H100-SXM", "name": "H100-SXM-96GB", "memory_bytes": "95 GiB"},
        "devices_per_node": 4,
    }
    cluster = load_cluster(write(tmp_path, content))
    assert (cluster.device.name, cluster.device.memory_bytes) == ("H100-SXM-96GB", 95 * 2**30)
    assert cluster.device.peak_flops_per_second == load_device("H100-SXM").peak_flops_per_second


def test_nvme_can_be_taken_away_and_given(tmp_path: Path) -> None:
    assert load_cluster(write(tmp_path, {"base": "8xB200", "nvme": None})).nvme is None
    nvme = {"bytes": "2 TB", "read_bytes_per_second": "3 GB/s", "write_bytes_per_second": "2 GB/s"}
    cluster = load_cluster(write(tmp_path, {"base": "4xcpu", "nvme": nvme}, "cpu.yaml"))
    assert cluster.nvme is not None
    assert cluster.nvme.bytes == 2_000_000_000_000

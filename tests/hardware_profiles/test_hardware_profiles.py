"""Every profile that comes with the package loads, and every number in it has a source."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import hardware_profiles
from hardware_profiles.loader import (
    list_devices,
    list_networks,
    list_nodes,
    load_cluster,
    load_device,
    load_network,
    load_node,
)
from hardware_profiles.profiles import collapse, default_nodes, resolve_name
from hardware_profiles.ridge import ridge_point
from hardware_profiles.spec import InputError

ROOT = Path(hardware_profiles.__file__).parent
FILES = sorted(path for folder in ("devices", "nodes", "networks") for path in (ROOT / folder).glob("*.yaml"))
REQUIRED_DEVICES = {
    "V100-SXM-32GB", "A100-SXM-40GB", "A100-SXM-80GB", "H100-SXM", "H100-PCIe", "B200", "RTX-4090", "L4", "cpu",
}  # fmt: skip


def numbers(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number of a file with the mapping that holds it."""
    if isinstance(content, dict):
        for key, value in content.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield f"{path}.{key}", content
            yield from numbers(value, f"{path}.{key}")
    elif isinstance(content, list):
        for item in content:
            yield from numbers(item, path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_is_a_value_with_a_source(path: Path) -> None:
    found = list(numbers(yaml.safe_load(path.read_text())))
    assert len(found) >= 3
    for where, holder in found:
        assert where.endswith(".value"), f"{path.name}{where} is a bare number"
        assert isinstance(holder["source"], str), where
        assert len(holder["source"]) >= 7, where
        assert set(holder) <= {"value", "source", "note"}, where


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_number_is_text_by_accident(path: Path) -> None:
    # YAML 1.1 reads 3e9 and 3.0e9 as text; a number needs a point and a signed exponent.
    def values(content: Any) -> Iterator[Any]:
        if isinstance(content, dict):
            if "value" in content:
                yield content["value"]
            for value in content.values():
                yield from values(value)

    assert all(isinstance(value, int | float) for value in values(yaml.safe_load(path.read_text())))


def test_the_promised_profiles_exist() -> None:
    assert set(list_devices()) == REQUIRED_DEVICES
    assert {"dgx-1v", "dgx-a100", "dgx-h100", "dgx-b200", "p4d.24xlarge", "one-gpu-box", "local-cpu"} <= set(
        list_nodes()
    )
    assert {"ib-edr-100g", "ib-hdr-200g", "ib-ndr-400g", "efa-100g", "roce-100g", "eth-25g", "eth-10g"} <= set(
        list_networks()
    )


def test_sources_name_every_number_of_a_loaded_spec() -> None:
    for name in list_devices():
        device = load_device(name)
        assert device.name == name
        expected = {f"peak_flops_per_second.{precision}" for precision in device.peak_flops_per_second}
        expected |= {"memory_bytes", "memory_bandwidth_bytes_per_second", "memory_fraction", "attention_fraction"}
        expected |= {"gemm.max_fraction", "gemm.half_flops", "launch_seconds"}
        assert expected <= set(device.sources)
    for name in list_nodes():
        node = load_node(name)
        assert {"size", "ports", "link.nominal_bytes_per_second", "host.memory_bytes"} <= set(node.sources)
        assert load_network(node.network).link.nominal_bytes_per_second > 0
    for name in list_networks():
        assert "link.nominal_bytes_per_second" in load_network(name).sources


def test_a_number_without_a_source_is_refused() -> None:
    with pytest.raises(InputError, match=r"link\.efficiency: the number 0\.5 has no source"):
        collapse({"link": {"efficiency": 0.5}})
    with pytest.raises(InputError, match=r"memory: the number has no source"):
        collapse({"memory": {"value": 3, "source": ""}})


def test_collapse_keeps_the_note_behind_the_source() -> None:
    plain, sources = collapse({"a": {"b": {"value": 2, "source": "paper", "note": "one of two"}}, "name": "x"})
    assert plain == {"a": {"b": 2}, "name": "x"}
    assert sources == {"a.b": "paper. one of two"}


# NVIDIA data sheets: dense rates, not those with sparsity, which are twice as high.
PUBLISHED_PEAKS = [
    ("V100-SXM-32GB", "fp16", 125e12, 900e9),
    ("A100-SXM-40GB", "bf16", 312e12, 1555e9),
    ("A100-SXM-80GB", "fp32", 19.5e12, 2039e9),
    ("H100-SXM", "bf16", 1979e12 / 2, 3.35e12),
    ("H100-PCIe", "fp16", 1513e12 / 2, 2e12),
    ("B200", "bf16", 4500e12 / 2, 8e12),
    ("RTX-4090", "bf16", 165.2e12, 1008e9),
    ("L4", "fp16", 242e12 / 2, 300e9),
]


@pytest.mark.parametrize(("name", "precision", "peak", "bandwidth"), PUBLISHED_PEAKS)
def test_peaks_are_the_dense_rates_of_the_data_sheets(name: str, precision: Any, peak: float, bandwidth: float) -> None:
    device = load_device(name)
    assert device.peak_flops_per_second[precision] == pytest.approx(peak, rel=1e-3)
    assert device.memory_bandwidth_bytes_per_second == bandwidth


def test_volta_has_no_bf16() -> None:
    assert "bf16" not in load_device("V100-SXM-32GB").peak_flops_per_second


@pytest.mark.parametrize(
    ("name", "precision", "flop_per_byte"),
    [
        ("V100-SXM-32GB", "fp16", 125e12 / 900e9),  # 139
        ("A100-SXM-80GB", "fp16", 312e12 / 2039e9),  # 153
        ("A100-SXM-80GB", "fp32", 19.5e12 / 2039e9),  # 9.6
    ],
)
def test_ridge_points_follow_from_the_data_sheets(name: str, precision: Any, flop_per_byte: float) -> None:
    assert ridge_point(load_device(name), precision) == pytest.approx(flop_per_byte)


def test_ridge_points_round_to_the_published_ones() -> None:
    assert round(ridge_point(load_device("V100-SXM-32GB"), "fp16")) == 139
    assert round(ridge_point(load_device("A100-SXM-80GB"), "fp16")) == 153


def test_ridge_point_of_an_unsupported_precision_is_refused() -> None:
    with pytest.raises(InputError, match="V100-SXM-32GB does not support bf16; supported: fp64, fp32, fp16"):
        ridge_point(load_device("V100-SXM-32GB"), "bf16")


def test_what_the_driver_reports_is_a_little_less_than_nominal() -> None:
    nominal = {"V100-SXM-32GB": 32, "A100-SXM-40GB": 40, "A100-SXM-80GB": 80, "H100-SXM": 80, "RTX-4090": 24, "L4": 24}
    for name, gib in nominal.items():
        assert 0.9 < load_device(name).memory_bytes / (gib * 2**30) < 1, name


def test_only_a_cpu_trains_in_every_precision_without_a_gpu_peak_above_it() -> None:
    cpu = load_device("cpu")
    assert cpu.kind == "cpu"
    assert {"fp64", "fp32", "bf16"} <= set(cpu.peak_flops_per_second)
    assert all(load_device(name).kind == "cuda" for name in list_devices() if name != "cpu")


def test_default_nodes_are_sorted_by_size() -> None:
    for name in list_devices():
        sizes = [load_node(node).size for node in default_nodes(name)]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100-sxm", "H100-SXM"),
        ("H100_SXM", "H100-SXM"),
        ("H100-SXM5-80GB", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("a100 80gb", "A100-SXM-80GB"),
        ("V100", "V100-SXM-32GB"),
        ("4090", "RTX-4090"),
        ("CPU", "cpu"),
        ("H100", None),
        ("A100", None),
        ("", None),
    ],
)
def test_other_spellings_of_a_device(spelling: str, name: str | None) -> None:
    assert resolve_name("device", spelling) == name


def test_aliases_lead_to_existing_profiles() -> None:
    aliases = yaml.safe_load((ROOT / "aliases.yaml").read_text())
    existing = {"device": list_devices(), "node": list_nodes(), "network": list_networks()}
    for kind, entries in aliases.items():
        assert set(entries.values()) <= set(existing[kind])


@pytest.mark.parametrize("load", [load_device, load_node, load_network])
def test_an_unknown_profile_is_answered_with_the_list(load: Any) -> None:
    with pytest.raises(InputError, match=r"unknown \w+ 'nothing-like-it'; valid: "):
        load("nothing-like-it")


def test_loading_a_cluster_by_name_is_fast() -> None:
    load_cluster("8x8xH100-SXM")
    start = time.process_time()
    for _ in range(20):
        load_cluster("8x8xH100-SXM")
    assert (time.process_time() - start) / 20 < 0.015

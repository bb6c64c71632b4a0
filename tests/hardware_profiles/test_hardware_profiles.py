"""Every profile that comes with the package loads, and every number in it has a source."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import hardware_profiles
from costmodel.specs import PrecisionSpec
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
FILES = sorted(
    path for folder in ("families", "devices", "nodes", "networks") for path in (ROOT / folder).glob("*.yaml")
)
REQUIRED_DEVICES = {
    "V100-SXM-16GB", "V100-SXM-32GB", "T4", "RTX-2080-Ti", "A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM-40GB",
    "A100-SXM-80GB", "A800-SXM-80GB", "A10", "A10G", "A40", "RTX-3060", "RTX-3090", "RTX-A6000", "L4", "L40S",
    "RTX-4090", "H100-PCIe", "H100-SXM", "H100-96GB-HBM2e", "H200", "H20", "H800-SXM-80GB", "B200", "GB200", "cpu",
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


FITTED = {"prior", "bounds", "uncertainty", "evidence"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_is_a_value_with_a_source(path: Path) -> None:
    found = list(numbers(yaml.safe_load(path.read_text())))
    assert len(found) >= 3
    for where, holder in found:
        if "prior" in holder and not where.endswith(".value"):
            continue  # of a fitted number: its prior, bounds and uncertainty
        assert where.endswith(".value"), f"{path.name}{where} is a bare number"
        assert isinstance(holder["source"], str), where
        assert len(holder["source"]) >= 7, where
        assert set(holder) <= {"value", "source", "note"} | FITTED, where


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
    ("T4", "fp16", 65e12, 320e9),
    ("RTX-2080-Ti", "fp16", 53.8e12, 616e9),
    ("A100-PCIe-80GB", "bf16", 312e12, 1935e9),
    ("RTX-3090", "bf16", 71e12, 936e9),
    ("RTX-A6000", "bf16", 309.7e12 / 2, 768e9),
    ("A40", "bf16", 299.4e12 / 2, 696e9),
    ("A10", "bf16", 250e12 / 2, 600e9),
    ("L40S", "fp8", 733e12, 864e9),
    ("RTX-4090", "fp8", 330.3e12, 1008e9),
    ("L4", "fp8", 485e12 / 2, 300e9),
    ("H100-SXM", "fp8", 3958e12 / 2, 3.35e12),
    ("H100-PCIe", "fp8", 3026e12 / 2, 2e12),
    ("H100-96GB-HBM2e", "fp8", 3958e12 / 2, 2.4e12),
    ("H200", "fp8", 3958e12 / 2, 4.8e12),
    ("H200", "bf16", 1979e12 / 2, 4.8e12),
    ("B200", "fp8", 72e15 / 8 / 2, 8e12),
    ("GB200", "fp8", 720e15 / 72 / 2, 8e12),
    ("GB200", "bf16", 360e15 / 72 / 2, 8e12),
]


@pytest.mark.parametrize(("name", "precision", "peak", "bandwidth"), PUBLISHED_PEAKS)
def test_peaks_are_the_dense_rates_of_the_data_sheets(name: str, precision: Any, peak: float, bandwidth: float) -> None:
    device = load_device(name)
    assert device.peak_flops_per_second[precision] == pytest.approx(peak, rel=1e-3)
    assert device.memory_bandwidth_bytes_per_second == bandwidth


@pytest.mark.parametrize("name", ["V100-SXM-16GB", "V100-SXM-32GB", "T4", "RTX-2080-Ti"])
def test_volta_and_turing_have_no_bf16(name: str) -> None:
    assert "bf16" not in load_device(name).peak_flops_per_second


def test_fp8_doubles_bf16_and_begins_with_ada_and_hopper() -> None:
    for device in map(load_device, list_devices()):
        assert ("fp8" in device.peak_flops_per_second) == (
            device.architecture in ("Ada Lovelace", "Hopper", "Blackwell")
        ), device.name
        if "fp8" in device.peak_flops_per_second:
            assert device.peak_flops_per_second["fp8"] == pytest.approx(
                2 * device.peak_flops_per_second["bf16"], rel=0.02
            )


def test_no_tensor_is_kept_in_fp8() -> None:
    formats = {"compute": "bf16", "parameter": "bf16", "gradient": "fp32", "reduce": "bf16", "state": "fp32"}
    assert PrecisionSpec.model_validate(formats).compute == "bf16"
    for field in (*formats, "master"):
        with pytest.raises(ValidationError, match=field):
            PrecisionSpec.model_validate({**formats, field: "fp8"})


def test_a_power_limited_h100_is_a_device_of_its_own() -> None:
    limited, full = load_device("H100-96GB"), load_device("H100-SXM")
    assert (limited.power_limit_watts, full.power_limit_watts) == (500, 700)
    assert limited.peak_flops_per_second == full.peak_flops_per_second
    assert limited.memory_bandwidth_bytes_per_second < full.memory_bandwidth_bytes_per_second


def test_an_nvl72_is_one_domain_of_72_gpus() -> None:
    # NVIDIA GB200 NVL72: 130 TB/s of NVLink over both directions, 36 Grace CPUs in 18 trays.
    node = load_node("gb200-nvl72")
    assert (node.size, node.devices_per_host, node.ports) == (72, 4, 72)
    assert 2 * 72 * node.link.nominal_bytes_per_second == pytest.approx(130e12, rel=0.01)
    assert [level.size for level in load_cluster("72xGB200").levels] == [72]
    assert [(level.size, level.ports) for level in load_cluster("4x64xGB200").levels] == [(64, 1), (4, 64)]
    assert all(load_node(name).devices_per_host is None for name in list_nodes() if name != "gb200-nvl72")


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
    nominal = {
        "V100-SXM-16GB": 16, "V100-SXM-32GB": 32, "T4": 16, "RTX-2080-Ti": 11, "A100-PCIe-40GB": 40,
        "A100-PCIe-80GB": 80, "A100-SXM-40GB": 40, "A100-SXM-80GB": 80, "A800-SXM-80GB": 80, "A10": 24, "A40": 48,
        "RTX-3060": 12, "RTX-3090": 24, "RTX-A6000": 48, "L4": 24, "L40S": 48, "RTX-4090": 24, "H100-SXM": 80,
        "H100-96GB-HBM2e": 96, "H200": 141,
    }  # fmt: skip
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
        ("Tesla V100-SXM2-16GB", "V100-SXM-16GB"),
        ("T4-16GB", "T4"),
        ("A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("H100-96GB-HBM2e-500W", "H100-96GB-HBM2e"),
        ("NVIDIA GB200", "GB200"),
        ("A6000", "RTX-A6000"),
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

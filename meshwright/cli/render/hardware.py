"""Machines as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from hardware_profiles.ridge import ridge_point
from hardware_profiles.types import ClusterSpec, DeviceSpec, LinkSpec, NetworkSpec, NodeSpec
from meshwright import units
from meshwright.cli.render.tables import facts, heading, lines, rows


def render_catalogue(
    console: Console, devices: Sequence[DeviceSpec], nodes: Sequence[NodeSpec], networks: Sequence[NetworkSpec]
) -> None:
    """Every profile that comes with the package."""
    heading(console, "Devices", "dense peak of 16-bit or, without one, fp32 inputs")
    body = [
        (
            device.name,
            device.architecture,
            units.rate(_headline_peak(device), "FLOP/s"),
            units.memory(device.memory_bytes),
            units.rate(device.memory_bandwidth_bytes_per_second, "B/s"),
        )
        for device in devices
    ]
    rows(console, ("device", "architecture", "peak", "memory", "bandwidth"), body, left=("device", "architecture"))
    heading(console, "Nodes")
    body = [(node.name, str(node.size), node.link.name, node.network, f"{node.ports}") for node in nodes]
    rows(console, ("node", "devices", "link", "network", "ports"), body, left=("node", "link", "network"))
    heading(console, "Networks", "one port, one direction")
    links = [(network.name, network.link) for network in networks]
    network_rows = [
        (name, link.name, units.rate(link.nominal_bytes_per_second, "B/s"), units.seconds(link.latency_seconds))
        for name, link in links
    ]
    rows(console, ("network", "link", "nominal", "latency"), network_rows, left=("network", "link"))


def render_cluster(console: Console, cluster: ClusterSpec, *, sources: bool = False) -> None:
    """One cluster: the device with its roofline, the links, the host."""
    heading(console, cluster.name, f"{_count(cluster.num_devices, 'device')}, {_count(cluster.num_nodes, 'node')}")
    _render_device(console, cluster.device)
    _render_levels(console, cluster)
    _render_host(console, cluster)
    if sources:
        _render_sources(console, "Sources", {**cluster.device.sources, **cluster.sources})


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _render_device(console: Console, device: DeviceSpec) -> None:
    heading(console, f"Device {device.name}", f"{device.vendor} {device.architecture}".strip())
    power = f"{units.significant(device.power_limit_watts)} W" if device.power_limit_watts else ""
    facts(
        console,
        [
            ("memory", units.memory(device.memory_bytes)),
            (
                "memory bandwidth",
                f"{units.rate(device.memory_bandwidth_bytes_per_second, 'B/s')}, streaming kernels reach "
                f"{units.percent(device.memory_fraction)}",
            ),
            (
                "matrix products",
                f"reach {units.percent(device.gemm.max_fraction)} of the peak, half of that at {_flops(device)}",
            ),
            ("fused attention", f"reaches {units.percent(device.attention_fraction)} of the peak"),
            ("launch", units.seconds(device.launch_seconds)),
            ("power limit", power),
        ],
    )
    heading(console, "Roofline", "below its ridge point a kernel is limited by memory")
    body = [
        (precision, units.rate(peak, "FLOP/s"), f"{units.significant(ridge_point(device, precision))} FLOP/byte")
        for precision, peak in device.peak_flops_per_second.items()
    ]
    rows(console, ("precision", "dense peak", "ridge point"), body, left=("precision",))


def _flops(device: DeviceSpec) -> str:
    return units.rate(device.gemm.half_flops, "FLOP")


def _render_levels(console: Console, cluster: ClusterSpec) -> None:
    heading(console, "Links", "one port, one direction, innermost first")
    body = [
        (level.name, str(level.size), level.link.name, str(level.ports), *_link_cells(level.link))
        for level in cluster.levels
    ]
    columns = ("level", "size", "link", "ports", "nominal", "measured", "reach", "latency")
    rows(console, columns, body, left=("level", "link"), gap=2 if console.width >= 100 else 1)


def _link_cells(link: LinkSpec) -> tuple[str, str, str, str]:
    measured = units.rate(link.measured_bytes_per_second, "B/s") if link.measured_bytes_per_second else "-"
    nominal = units.rate(link.nominal_bytes_per_second, "B/s")
    return nominal, measured, f"{link.efficiency:.0%}", units.seconds(link.latency_seconds)


def _render_host(console: Console, cluster: ClusterSpec) -> None:
    host, nvme = cluster.host, cluster.nvme
    heading(console, "Host", "one node")
    facts(
        console,
        [
            (
                "memory",
                f"{units.memory(host.memory_bytes)}, {units.rate(host.memory_bandwidth_bytes_per_second, 'B/s')}",
            ),
            ("cores", f"{host.cores}, {units.rate(host.flops_per_second, 'FLOP/s')}"),
            ("device link", f"{host.pcie.name}, {units.rate(host.pcie.nominal_bytes_per_second, 'B/s')}"),
            (
                "NVMe",
                f"{units.memory(nvme.bytes)}, read {units.rate(nvme.read_bytes_per_second, 'B/s')}, write "
                f"{units.rate(nvme.write_bytes_per_second, 'B/s')}"
                if nvme
                else "",
            ),
        ],
    )


def _render_sources(console: Console, title: str, sources: Mapping[str, str]) -> None:
    heading(console, title)
    lines(console, [f"{field}: {source}" for field, source in sources.items()])


def _headline_peak(device: DeviceSpec) -> float:
    peaks = device.peak_flops_per_second
    return peaks.get("bf16") or peaks.get("fp16") or peaks.get("fp32") or max(peaks.values())

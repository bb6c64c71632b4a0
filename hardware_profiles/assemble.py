"""Device + node + network + counts -> ClusterSpec.

A partial node (4xH100-SXM of an 8-device node) gets a proportional share of what the node's devices share: NIC
ports, host memory, cores, host bandwidth, NVMe. That is how clouds cut nodes, and it keeps every ratio per device.
Shares are rounded down, but a node always keeps one NIC port and one core. The links of a device itself (its
NVLink, its PCIe slot) stay as they are.
"""

from __future__ import annotations

from hardware_profiles.grammar import cluster_name
from hardware_profiles.types import ClusterSpec, DeviceSpec, HostSpec, LevelSpec, NetworkSpec, NodeSpec, NvmeSpec


def assemble_cluster(
    device: DeviceSpec, node: NodeSpec, network: NetworkSpec, *, num_nodes: int, devices_per_node: int
) -> ClusterSpec:
    """A cluster of equal nodes.

    Args:
        device: the device.
        node: the profile of the full node; ``devices_per_node`` may be smaller than its size.
        network: the link of one NIC port.
        num_nodes: nodes; with one there is no network level.
        devices_per_node: devices used per node.

    Returns:
        A cluster whose ``sources`` name the origin of every number outside the device.
    """
    levels = [LevelSpec(name="node", size=devices_per_node, link=node.link)]
    sources = {f"levels.0.{path}": source for path, source in node.sources.items() if path.startswith("link.")}
    sources |= {path: source for path, source in node.sources.items() if path.startswith(("host.", "nvme."))}
    if num_nodes > 1:
        ports = max(1, node.ports * devices_per_node // node.size)
        levels.append(LevelSpec(name="cluster", size=num_nodes, link=network.link, ports=ports))
        sources |= {f"levels.1.{path}": source for path, source in network.sources.items() if path.startswith("link.")}
        sources["levels.1.ports"] = node.sources["ports"]
    return ClusterSpec(
        name=cluster_name(num_nodes, devices_per_node, device.name),
        device=device,
        levels=tuple(levels),
        host=_share_host(node.host, devices_per_node, node.size),
        nvme=None if node.nvme is None else _share_nvme(node.nvme, devices_per_node, node.size),
        sources=sources,
    )


def _share_host(host: HostSpec, part: int, whole: int) -> HostSpec:
    return HostSpec(
        memory_bytes=host.memory_bytes * part // whole,
        memory_bandwidth_bytes_per_second=host.memory_bandwidth_bytes_per_second * part / whole,
        flops_per_second=host.flops_per_second * part / whole,
        cores=max(1, host.cores * part // whole),
        pcie=host.pcie,
    )


def _share_nvme(nvme: NvmeSpec, part: int, whole: int) -> NvmeSpec:
    return NvmeSpec(
        bytes=nvme.bytes * part // whole,
        read_bytes_per_second=nvme.read_bytes_per_second * part / whole,
        write_bytes_per_second=nvme.write_bytes_per_second * part / whole,
    )

"""The devices of a run -> ClusterSpec: a device profile, its node and network with the rates that the row states.

A job of n devices gets the fewest equal nodes that hold it: n = 12 on nodes of 8 are two nodes of 8, of which the
last is partly used. Where the device's link joins several hosts (the 72 GPUs of an NVL72), its domain counts as the
node whatever ``gpus_per_node`` says of the hosts, and a job of several domains uses equal parts of them: 256 GPUs
are four times 64.
"""

from __future__ import annotations

from hardware_profiles.assemble import assemble_cluster
from hardware_profiles.loader import load_device, load_network, load_node
from hardware_profiles.profiles import begun_names, default_nodes, resolve_name
from hardware_profiles.types import ClusterSpec, LinkSpec, NodeSpec
from meshwright.validation.adapters.errors import UnknownAcceleratorError, UnsupportedRunError
from meshwright.validation.run_rows import HardwareFields

# Names that mean one profile in published runs. "H100-80GB" without a form factor is SXM: every source that writes it
# ran on DGX or HGX nodes, or rented ones of that kind.
ACCELERATORS = {
    "H100-80GB": "H100-SXM",
    "H100-80GB-HBM3-700W": "H100-SXM",
}
_GIGA = 1e9
_SAME_RATE = 0.01
# What a card is sold with are mostly GiB, 7% more than GB; the driver keeps a part, with ECC up to a tenth of it.
_SAME_MEMORY = 0.08


def build_cluster(hardware: HardwareFields) -> ClusterSpec:
    """The cluster of a run, of at least its devices. Links keep their profile's efficiency and latency.

    Stated rates replace the nominal ones; a measured bus bandwidth is shared by the ports of a node.

    Raises:
        UnknownAcceleratorError: when there is no profile of the accelerator.
        UnsupportedRunError: when the number of devices is missing.
    """
    device = device_name(hardware.gpu, hardware.gpu_mem_gb)
    if hardware.n_gpus is None:
        raise UnsupportedRunError("the row lacks hardware.n_gpus")
    node = _choose_node(device, hardware.gpus_per_node)
    num_nodes, per_node = _split(hardware.n_gpus, node, hardware.gpus_per_node)
    network = load_network(node.network)
    ports = max(1, node.ports * per_node // node.size)
    port_rate = _scaled(hardware.inter_node_gbps_per_gpu, per_node / ports)
    measured = _measured_port_rate(hardware.inter_node_measured_busbw_gbps_per_node, port_rate, network.link, ports)
    link = _with_rates(network.link, port_rate, measured)
    node = node.model_copy(update={"link": _with_rates(node.link, _scaled(hardware.intra_node_gbps_per_gpu, 1), None)})
    return assemble_cluster(
        load_device(device),
        node,
        network.model_copy(update={"link": link}),
        num_nodes=num_nodes,
        devices_per_node=per_node,
    )


def device_name(word: str, memory_gigabytes: float | None = None) -> str:
    """The device profile that a run's accelerator means.

    The stated memory decides where the name leaves it open: ``A100`` of 40 GB, ``V100`` of 16 GB. Among cards that
    differ in the form factor only, the SXM one is meant.

    Raises:
        UnknownAcceleratorError: when there is none.
    """
    found = ACCELERATORS.get(word) or resolve_name("device", word)
    if memory_gigabytes is not None and (found is None or not _has_memory(found, memory_gigabytes)):
        fitting = [name for name in begun_names("device", word) if _has_memory(name, memory_gigabytes)]
        found = next((name for name in fitting if "SXM" in name), fitting[0] if fitting else found)
    if found is None:
        raise UnknownAcceleratorError(f"unknown accelerator {word!r}")
    return found


def _has_memory(device: str, gigabytes: float) -> bool:
    return abs(load_device(device).memory_bytes / (gigabytes * _GIGA) - 1) < _SAME_MEMORY


def _choose_node(device: str, devices_per_node: int | None) -> NodeSpec:
    """The smallest default node that holds them, or else the largest, whose shares then grow in proportion."""
    nodes = [load_node(name) for name in default_nodes(device)]
    large_enough = (node for node in nodes if node.size >= (devices_per_node or 1))
    return next(large_enough, nodes[-1])


def _split(num_devices: int, node: NodeSpec, stated: int | None) -> tuple[int, int]:
    """Nodes and devices in each; their product is above ``num_devices`` only where the last node is partly used."""
    if node.devices_per_host is not None:
        domains = -(-num_devices // max(node.size, stated or 1))
        return domains, -(-num_devices // domains)
    per_node = min(stated or node.size, num_devices)
    return -(-num_devices // per_node), per_node


def _measured_port_rate(busbw: float | None, stated: float | None, link: LinkSpec, ports: int) -> float | None:
    """A measured all-reduce bus bandwidth as the rate of one port.

    It is the rate of one ring through the node. A ring that is no faster than one port went through one; a faster one
    went through all of them.
    """
    if busbw is None:
        return None
    nominal = stated or link.nominal_bytes_per_second
    return busbw * _GIGA if busbw * _GIGA <= nominal else busbw * _GIGA / ports


def _scaled(gigabytes: float | None, factor: float) -> float | None:
    return None if gigabytes is None else gigabytes * _GIGA * factor


def _with_rates(link: LinkSpec, nominal: float | None, measured: float | None) -> LinkSpec:
    """The link with a stated nominal rate (which voids the profile's measured one) and a measured rate."""
    if nominal is not None and abs(nominal / link.nominal_bytes_per_second - 1) > _SAME_RATE:
        link = link.model_copy(update={"nominal_bytes_per_second": nominal, "measured_bytes_per_second": None})
    return link if measured is None else link.model_copy(update={"measured_bytes_per_second": measured})

"""The devices of a run -> ClusterSpec: a device profile, its node and network with the rates that the row states."""

from __future__ import annotations

from hardware_profiles.assemble import assemble_cluster
from hardware_profiles.loader import load_device, load_network, load_node
from hardware_profiles.profiles import default_nodes, resolve_name
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


def build_cluster(hardware: HardwareFields) -> ClusterSpec:
    """The cluster of a run. Links keep their profile's efficiency and latency; stated rates replace the nominal ones.

    Raises:
        UnknownAcceleratorError: when there is no profile of the accelerator.
        UnsupportedRunError: when the devices do not fill whole nodes, or their number is missing.
    """
    device = device_name(hardware.gpu)
    if hardware.n_gpus is None:
        raise UnsupportedRunError("the row lacks hardware.n_gpus")
    node = _choose_node(device, hardware.gpus_per_node)
    per_node = min(hardware.gpus_per_node or node.size, hardware.n_gpus)
    if hardware.n_gpus % per_node:
        raise UnsupportedRunError(f"{hardware.n_gpus} devices do not fill nodes of {per_node}")
    network = load_network(node.network)
    ports = max(1, node.ports * per_node // node.size)
    port_rate = _scaled(hardware.inter_node_gbps_per_gpu, per_node / ports)
    measured = _scaled(hardware.inter_node_measured_busbw_gbps_per_node, 1 / ports)
    link = _with_rates(network.link, port_rate, measured)
    node = node.model_copy(update={"link": _with_rates(node.link, _scaled(hardware.intra_node_gbps_per_gpu, 1), None)})
    return assemble_cluster(
        load_device(device),
        node,
        network.model_copy(update={"link": link}),
        num_nodes=hardware.n_gpus // per_node,
        devices_per_node=per_node,
    )


def device_name(word: str) -> str:
    """The device profile that a run's accelerator means.

    Raises:
        UnknownAcceleratorError: when there is none.
    """
    found = ACCELERATORS.get(word) or resolve_name("device", word)
    if found is None:
        raise UnknownAcceleratorError(f"unknown accelerator {word!r}")
    return found


def _choose_node(device: str, devices_per_node: int | None) -> NodeSpec:
    """The smallest default node that holds them, or else the largest, whose shares then grow in proportion."""
    nodes = [load_node(name) for name in default_nodes(device)]
    large_enough = (node for node in nodes if node.size >= (devices_per_node or 1))
    return next(large_enough, nodes[-1])


def _scaled(gigabytes: float | None, factor: float) -> float | None:
    return None if gigabytes is None else gigabytes * _GIGA * factor


def _with_rates(link: LinkSpec, nominal: float | None, measured: float | None) -> LinkSpec:
    """The link with a stated nominal rate (which voids the profile's measured one) and a measured rate."""
    if nominal is not None and abs(nominal / link.nominal_bytes_per_second - 1) > _SAME_RATE:
        link = link.model_copy(update={"nominal_bytes_per_second": nominal, "measured_bytes_per_second": None})
    return link if measured is None else link.model_copy(update={"measured_bytes_per_second": measured})

"""What the reports say, laid over the catalogue: a cluster of equal nodes.

The catalogue gives what no report shows (peaks, efficiencies, the host, the speed of network cards); the reports give
which device and how many, memory, power limit, the links and their measured rates. Everything taken from elsewhere,
assumed or left out has a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hardware_profiles.assemble import assemble_cluster
from hardware_profiles.detect.links import (
    NodeLink,
    joined_by_nvlink,
    network_cards,
    nvlink_link,
    pcie_link,
    pcie_port,
)
from hardware_profiles.detect.measured import use_measured_rates
from hardware_profiles.detect.nccl_tests import NcclRun, parse_nccl_tests
from hardware_profiles.detect.report import Note, Report
from hardware_profiles.detect.smi_query import SmiDevice, SmiQuery, parse_smi_query
from hardware_profiles.detect.topology import Topology, parse_topology
from hardware_profiles.errors import show_value
from hardware_profiles.profiles import (
    default_nodes,
    list_devices,
    load_device,
    load_network,
    load_node,
    resolve_name,
)
from hardware_profiles.spec import InputError
from hardware_profiles.types import ClusterSpec, DeviceSpec, NetworkSpec, NodeSpec

_VENDOR_WORDS = ("NVIDIA", "Tesla", "GeForce", "Quadro")
_PCIE_BOX = "pcie-gen4-box"
_SHOWN_NOTES = 8


@dataclass(frozen=True, slots=True)
class Detected:
    """A cluster and what a person must know about how it was found."""

    cluster: ClusterSpec
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """The reports as read, those that hold nothing usable left out. Names are those of the reports."""

    smi: SmiQuery | None
    smi_name: str
    topology: Topology | None
    topology_name: str
    runs: tuple[NcclRun, ...]


def detect_cluster(
    *,
    nvidia_smi: Report | None = None,
    topology: Report | None = None,
    nccl_tests: Sequence[Report] = (),
    num_nodes: int | None = None,
    device: str | None = None,
    network: str | None = None,
) -> Detected:
    """A cluster from what its own programs report.

    Args:
        nvidia_smi: output of ``nvidia-smi -q`` on one node.
        topology: output of ``nvidia-smi topo -m`` on one node.
        nccl_tests: outputs of nccl-tests, on one node or several.
        num_nodes: nodes of the cluster; None takes the largest number that nccl-tests ran on, else 1.
        device: catalogue name of the device, where the reports do not name one of the catalogue.
        network: catalogue name of one network port; None takes that of the catalogue's node.

    Raises:
        InputError: no report is usable, or the device is not in the catalogue; the message holds the notes.
    """
    evidence, notes = _read(nvidia_smi, topology, nccl_tests)
    name, found = _choose_device(evidence, device, notes)
    evidence = _without_foreign_runs(evidence, found, notes)
    per_node = _devices_per_node(evidence, found, notes)
    nodes = num_nodes or max((run.num_nodes for run in evidence.runs), default=1)
    node = _choose_node(name, per_node, notes)
    node = _with_topology(node, evidence, found[0] if found else None, load_device(name), notes)
    spec = _choose_network(node, network, nodes, notes)
    cluster = assemble_cluster(
        _device(name, found, evidence, notes), node, spec, num_nodes=nodes, devices_per_node=per_node
    )
    cluster = use_measured_rates(cluster, evidence.runs, notes)
    return Detected(cluster, tuple(notes))


def _read(
    nvidia_smi: Report | None, topology: Report | None, nccl_tests: Sequence[Report]
) -> tuple[_Evidence, list[Note]]:
    notes: list[Note] = []
    smi = parse_smi_query(nvidia_smi) if nvidia_smi else None
    matrix = parse_topology(topology) if topology else None
    runs: list[NcclRun] = []
    notes += smi.notes if smi else ()
    notes += matrix.notes if matrix else ()
    for report in nccl_tests:
        found, remarks = parse_nccl_tests(report)
        runs += found
        notes += remarks
    evidence = _Evidence(
        smi=smi if smi and smi.devices else None,
        smi_name=nvidia_smi.name if nvidia_smi else "",
        topology=matrix if matrix and matrix.devices else None,
        topology_name=topology.name if topology else "",
        runs=tuple(runs),
    )
    if not (evidence.smi or evidence.topology or evidence.runs):
        raise _unusable("no report is usable", notes)
    return evidence, notes


def _choose_device(evidence: _Evidence, stated: str | None, notes: list[Note]) -> tuple[str, list[SmiDevice]]:
    """The catalogue's name, and those devices of the report that have it: the most numerous kind."""
    devices = list(evidence.smi.devices) if evidence.smi else []
    kinds = Counter(device.product_name for device in devices)
    if not kinds:
        kinds = Counter(name for run in evidence.runs for name in run.device_names)
    if stated is not None:
        name = resolve_name("device", stated)
        if name is None or name == "cpu":
            raise InputError(f"device: found {show_value(stated)}; needed one of {', '.join(_reported_devices())}")
        kinds = kinds or Counter([stated])
    elif not kinds:
        raise _unusable("no report names a device; give nvidia-smi -q, or the device by name", notes)
    product = kinds.most_common(1)[0][0]
    if len(kinds) > 1:
        others = ", ".join(f"{count} {other}" for other, count in kinds.most_common()[1:])
        where = evidence.smi_name or evidence.runs[0].name
        text = (
            f"devices of several kinds; taken: {kinds[product]} {product}, left out: {others} (plans need equal ones)"
        )
        notes.append(Note(where, 0, text))
    known = name if stated is not None else catalogue_name(product)
    if known is None:
        valid = ", ".join(_reported_devices())
        raise _unusable(
            f"the device {product!r} is not in the catalogue; state the profile that comes nearest, one of {valid}",
            notes,
        )
    return known, [device for device in devices if device.product_name == product]


def _reported_devices() -> list[str]:
    """Devices that these reports can be of."""
    return [device for device in list_devices() if device != "cpu"]


def catalogue_name(product: str) -> str | None:
    """The device profile that a driver's product name means: ``NVIDIA H100 80GB HBM3`` is H100-SXM."""
    words = product.split()
    while words:
        found = resolve_name("device", " ".join(words))
        if found or words[0] not in _VENDOR_WORDS:
            return found
        words = words[1:]
    return None


def _without_foreign_runs(evidence: _Evidence, found: Sequence[SmiDevice], notes: list[Note]) -> _Evidence:
    """The evidence without runs on another device than nvidia-smi's: they tell the links of another machine."""
    own = catalogue_name(found[0].product_name) if found else None
    if own is None:
        return evidence
    runs = []
    for run in evidence.runs:
        others = {name for product in run.device_names if (name := catalogue_name(product)) not in (None, own)}
        if others:
            text = f"it ran on {', '.join(run.device_names)}; needed {found[0].product_name}, as in {evidence.smi_name}. Left out"
            notes.append(Note(run.name, run.line, text))
        else:
            runs.append(run)
    return replace(evidence, runs=tuple(runs))


def _devices_per_node(evidence: _Evidence, found: Sequence[SmiDevice], notes: list[Note]) -> int:
    if evidence.smi and found:
        count = len(found) + evidence.smi.num_undescribed
        if evidence.topology and len(evidence.topology.devices) != count:
            text = f"{len(evidence.topology.devices)} devices here, {count} in {evidence.smi_name}; taken: {count}"
            notes.append(Note(evidence.topology_name, 0, text))
        return count
    if evidence.topology:
        return len(evidence.topology.devices)
    return max(run.num_ranks // run.num_nodes for run in evidence.runs)


def _choose_node(device: str, per_node: int, notes: list[Note]) -> NodeSpec:
    """The smallest default node that is large enough, else the largest, whose shares grow in proportion."""
    nodes = [load_node(name) for name in default_nodes(device)]
    node = next((node for node in nodes if node.size >= per_node), nodes[-1])
    if node.size < per_node:
        text = (
            f"{per_node} devices in a node; the largest of the catalogue ({node.name}) has {node.size} and is scaled up"
        )
        notes.append(Note("", 0, text))
    text = f"host, PCIe and what else the reports do not show are those of the catalogue's node {node.name}"
    notes.append(Note("", 0, text))
    return node


def _with_topology(
    node: NodeSpec, evidence: _Evidence, described: SmiDevice | None, device: DeviceSpec, notes: list[Note]
) -> NodeSpec:
    """The node with the link, the device's slot and the ports that the reports show."""
    generation = described.pcie_generation if described else None
    width = described.pcie_width if described else None
    slot, slot_sources = pcie_port(node.host.pcie, generation=generation, width=width)
    host = node.host.model_copy(update={"pcie": slot})
    sources = node.sources | {f"host.pcie.{key}": source for key, source in slot_sources.items()}
    node = node.model_copy(update={"host": host, "sources": sources})
    if evidence.topology is None:
        return node
    name = f"nvidia-smi topo -m ({evidence.topology_name})"
    if len(evidence.topology.devices) > 1 and evidence.topology.shows_nvlink:
        found = _node_link(node, evidence.topology, device, generation=generation, width=width, source=name)
        sources = node.sources | {f"link.{key}": source for key, source in found.sources.items()}
        node = node.model_copy(update={"link": found.link, "sources": sources})
        if found.remark:
            notes.append(Note(evidence.topology_name, 0, found.remark))
    cards = network_cards(evidence.topology)
    if not cards:
        text = f"no network card in the matrix; the {node.ports} port(s) of {node.name} are assumed"
        notes.append(Note(evidence.topology_name, 0, text))
        return node
    # assemble_cluster shares the ports of a full node out; these are those of the node as it is.
    sources = node.sources | {"ports": f"{name}: {', '.join(cards)}"}
    size = len(evidence.topology.devices)
    return node.model_copy(update={"ports": max(1, len(cards) * node.size // size), "sources": sources})


def _node_link(
    node: NodeSpec,
    topology: Topology,
    device: DeviceSpec,
    *,
    generation: int | None,
    width: int | None,
    source: str,
) -> NodeLink:
    if joined_by_nvlink(topology):
        return nvlink_link(topology, node.link, device.architecture, source)
    usual = node.link if node.link.name.startswith("PCIe") else load_node(_PCIE_BOX).link
    found = pcie_link(topology, usual, generation=generation, width=width, source=source)
    kept = load_node(_PCIE_BOX).sources if usual is not node.link else {}
    sources = {path.removeprefix("link."): text for path, text in kept.items() if path.startswith("link.")}
    return NodeLink(found.link, sources | found.sources, found.remark)


def _choose_network(node: NodeSpec, stated: str | None, num_nodes: int, notes: list[Note]) -> NetworkSpec:
    spec = load_network(node.network if stated is None else stated)
    if num_nodes > 1 and stated is None:
        text = (
            f"the speed of a network card is in none of these reports: {spec.name} of the catalogue's node {node.name} is "
            "assumed; state the network if it is another"
        )
        notes.append(Note("", 0, text))
    return spec


def _device(name: str, found: Sequence[SmiDevice], evidence: _Evidence, notes: list[Note]) -> DeviceSpec:
    """The catalogue's device with the memory and the power limit of the report: the smallest of its devices."""
    device = load_device(name)
    if not found or evidence.smi is None:
        return device
    source = f"nvidia-smi -q, driver {evidence.smi.driver_version} ({evidence.smi_name})"
    changes: dict[str, object] = {}
    sources = dict(device.sources)
    sizes = [one.memory_bytes for one in found if one.memory_bytes]
    if sizes:
        changes["memory_bytes"] = min(sizes)
        sources["memory_bytes"] = f"{source}: FB memory, total without reserved"
    limits = [one.power_limit_watts for one in found if one.power_limit_watts]
    if limits:
        changes["power_limit_watts"] = min(limits)
        sources["power_limit_watts"] = source
        usual = device.power_limit_watts
        if usual is not None and abs(min(limits) / usual - 1) > 0.01:
            text = (
                f"the power limit is {min(limits):.0f} W; the catalogue's efficiencies were measured at {usual:.0f} W"
            )
            notes.append(Note(evidence.smi_name, found[0].line, text))
    return device.model_copy(update={**changes, "sources": sources})


def _unusable(what: str, notes: Sequence[Note]) -> InputError:
    shown = [str(note) for note in notes[:_SHOWN_NOTES]]
    more = [f"and {len(notes) - _SHOWN_NOTES} more notes"] if len(notes) > _SHOWN_NOTES else []
    return InputError("; ".join([what, *shown, *more]))

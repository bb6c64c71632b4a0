"""What a topology says about the link inside a node and the way out of it.

    (1)  all pairs NVk:       k links to a switch, or k (n - 1) links where each pair has its own; rate = links x rate of one
    (2)  some pairs NVk:      NVLink where a ring of NVLinks joins all devices (DGX-1's cube mesh), else PCIe
    (3)  no pair NVk:         PCIe; below one switch (PIX, PXB) a ring reaches more of the rate than over host bridges
    (4)  network ports:       the cards that are as near to a device as any card is (PIX and PXB count alike)

Cards that are further away serve storage or management, as on a DGX A100, whose 12 cards are 8 for compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hardware_profiles.detect.topology import PATHS, Topology
from hardware_profiles.types import LinkSpec

PCIE_LANE_BYTES_PER_SECOND = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""One direction after line coding (PCI-SIG base specifications: 8, 16, 32 and 64 GT/s)."""
_PCIE_SOURCE = "PCI-SIG: PCIe {}, one direction, after line coding"
_SWITCH_EFFICIENCY = 0.76
_SWITCH_SOURCE = "NVIDIA GTC24 S62129: 24 of 31.5 GB/s below one PCIe switch"
_NVLINK_BYTES_PER_SECOND = {"Pascal": 20e9, "Blackwell": 50e9}
_USUAL_NVLINK = 25e9  # NVLink 2 to 4, one direction (NVIDIA V100, A100 and H100 data sheets)
_SAME_RATE = 0.02


@dataclass(frozen=True, slots=True)
class NodeLink:
    """The link inside a node; ``sources`` by field of LinkSpec. ``remark``: how it differs from the catalogue, if it does."""

    link: LinkSpec
    sources: dict[str, str]
    remark: str = ""


def joined_by_nvlink(topology: Topology) -> bool:
    """Whether NVLinks join all devices so that a ring can run over them: (1) and (2)."""
    devices = topology.devices
    neighbours = {a: [b for b in devices if b != a and topology.nvlinks(a, b)] for a in devices}
    reached, waiting = {devices[0]}, [devices[0]]
    while waiting:
        for other in neighbours[waiting.pop()]:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    ends_allowed = 1 if len(devices) == 2 else 2
    return len(reached) == len(devices) and all(len(found) >= ends_allowed for found in neighbours.values())


def nvlink_link(topology: Topology, usual: LinkSpec, architecture: str, source: str) -> NodeLink:
    """The NVLink of (1), where it differs from the catalogue's usual one."""
    counts = {topology.nvlinks(a, b) for a in topology.devices for b in topology.devices if a != b}
    one = _NVLINK_BYTES_PER_SECOND.get(architecture, _USUAL_NVLINK)
    full = round(usual.nominal_bytes_per_second / one)
    if len(counts) != 1 or not usual.name.startswith("NVLink"):
        return NodeLink(usual, {})
    (count,) = counts
    direct = count * (len(topology.devices) - 1)
    links = direct if direct <= full else count
    rate = links * one
    if links > count:  # a pair has only its own links; see LinkSpec.peer_fraction
        usual = usual.model_copy(update={"peer_fraction": count / links})
    if abs(rate / usual.nominal_bytes_per_second - 1) < _SAME_RATE:
        return NodeLink(usual, {})
    link = usual.model_copy(update={"nominal_bytes_per_second": rate, "measured_bytes_per_second": None})
    remark = f"{links} NVLinks a device, {rate / 1e9:.0f} GB/s; the catalogue's node has {full}"
    return NodeLink(link, {"nominal_bytes_per_second": f"{source}: {links} NVLinks of {one / 1e9:.0f} GB/s"}, remark)


def pcie_link(
    topology: Topology, usual: LinkSpec, *, generation: int | None, width: int | None, source: str
) -> NodeLink:
    """The PCIe of (3). ``usual``: the link of a PCIe box, whose efficiency and latency are kept."""
    words = {topology.link.get((a, b), "SYS") for a in topology.devices for b in topology.devices if a != b}
    worst = max((word for word in words if word in PATHS), key=PATHS.index, default="PIX")
    link, sources = pcie_port(usual, generation=generation, width=width)
    if worst in ("PIX", "PXB"):
        link = link.model_copy(update={"efficiency": _SWITCH_EFFICIENCY})
        sources["efficiency"] = f"{_SWITCH_SOURCE}; {source}: {worst}"
    if any(word.startswith("NV") for word in words):
        remark = "NVLink joins only some devices, so a ring over all of them runs at the rate of PCIe"
    else:
        remark = f"no NVLink; the longest path between two devices is {worst}"
    return NodeLink(link, sources, remark)


def pcie_port(usual: LinkSpec, *, generation: int | None, width: int | None) -> tuple[LinkSpec, dict[str, str]]:
    """A device's PCIe port of a generation and width; ``usual`` where they are unknown."""
    if generation not in PCIE_LANE_BYTES_PER_SECOND or not width:
        return usual, {}
    name = f"PCIe {generation} x{width}"
    rate = PCIE_LANE_BYTES_PER_SECOND[generation] * width
    if abs(rate / usual.nominal_bytes_per_second - 1) < _SAME_RATE:
        return usual, {}
    changes = {"name": name, "nominal_bytes_per_second": rate, "measured_bytes_per_second": None}
    return usual.model_copy(update=changes), {"nominal_bytes_per_second": _PCIE_SOURCE.format(f"{generation} x{width}")}


def network_cards(topology: Topology) -> tuple[str, ...]:
    """The cards of (4), by their names."""
    nearest = {card: min(_distances(topology, card), default=len(PATHS)) for card in topology.cards}
    best = min(nearest.values(), default=0)
    return tuple(topology.card_names.get(card, card) for card, found in nearest.items() if found == best)


def _distances(topology: Topology, card: str) -> Sequence[int]:
    """Distance of a card to every device; PIX and PXB are the same, 0."""
    words = (topology.link.get((device, card)) for device in topology.devices)
    return [max(0, PATHS.index(word) - 1) for word in words if word in PATHS]

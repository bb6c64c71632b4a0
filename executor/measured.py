"""Readings and facts of `executor.measure_process` -> a cluster, with how well each number holds its measurements.

The device is measured_device.py's, the links are measured_links.py's. The host's link to a device is

    (1) seconds = latency + bytes / rate of copies from and to pinned memory (on a CPU: of copies within its memory)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from costmodel.specs import ClusterSpec, DeviceSpec, HostSpec, LevelSpec, LinkSpec
from executor.measured_device import make_device
from executor.measured_draft import Draft, Finding, Measured
from executor.measured_links import (
    ALL_KINDS,
    FittedLink,
    count_ports,
    fit_group,
    hop_points,
    spread,
    world_prediction,
)
from hardware_profiles.detect.cluster import catalogue_name
from hardware_profiles.fit import fit_link, link_residual
from hardware_profiles.grammar import cluster_name
from hardware_profiles.profiles import default_nodes, load_device, load_node


def make_cluster(facts: Mapping[str, Any], readings: Sequence[Sequence[Any]], *, processor: str) -> Measured:
    """The cluster that was measured.

    Args:
        facts: of `measure_process.run_measurements`.
        readings: of the same; [kind, sizes, seconds].
        processor: name of the host's processor.

    Returns:
        One level for the node; a second one for the network where several nodes were measured.
    """
    by_kind: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
    for kind, sizes, seconds in readings:
        by_kind[kind].append((sizes, seconds))
    cuda = facts["kind"] == "cuda"
    name = catalogue_name(facts["name"]) if cuda else None
    nodes = [load_node(node) for node in default_nodes(name)] if name else []
    draft = Draft(
        facts=facts,
        readings=by_kind,
        known=load_device(name) if name else None,
        node=next((node for node in nodes if node.size >= facts["local_size"]), nodes[-1] if nodes else None),
        source=f"measured {date.today().isoformat()} on {facts['name'] if cuda else processor}, torch {facts['torch']}",
    )
    device = make_device(draft, processor)
    levels, sources = _levels(draft, device)
    host, host_sources = _host(draft, device)
    cluster = ClusterSpec(
        name=cluster_name(facts["num_nodes"], facts["local_size"], device.name)
        if cuda or facts["num_nodes"] > 1
        else f"{facts['local_size']}x{device.name}",
        device=device,
        levels=levels,
        host=host,
        sources=sources | host_sources,
    )
    return Measured(cluster=cluster, findings=tuple(draft.findings))


def _levels(draft: Draft, device: DeviceSpec) -> tuple[tuple[LevelSpec, ...], dict[str, str]]:
    """The node, and the network where there are several: measured_links.py."""
    facts = draft.facts
    node, network = (fit_group(draft.readings, name, cuda=draft.cuda) for name in ("node", "network"))
    levels = [LevelSpec(name="node", size=facts["local_size"], link=_node_link(draft, node, device))]
    sources = {"levels.0.link": draft.source if node is None else draft.quality(node.num_points, node.residual)}
    _show_link(draft, "link inside a node", "node", node)
    if network is not None:
        ports = count_ports(draft.readings, facts["local_size"])
        rate = facts["local_size"] * network.bytes_per_second / ports
        link = _link("nccl" if draft.cuda else "gloo", rate, network.latency_seconds)
        levels.append(LevelSpec(name="cluster", size=facts["num_nodes"], link=link, ports=ports))
        sources["levels.1.link"] = draft.quality(network.num_points, network.residual)
        sources["levels.1.ports"] = f"{draft.source}: what one process gets of a node's way out when alone and with all"
        _show_link(draft, "link between nodes, one process", "network", network)
        _show_world(draft, node, network)
    return tuple(levels), sources


def _node_link(draft: Draft, found: FittedLink | None, device: DeviceSpec) -> LinkSpec:
    """The fitted link under the catalogue's name; a single process has no link and gets its memory's rate."""
    if found is None:
        rate = device.memory_bandwidth_bytes_per_second
        return LinkSpec(name="none", nominal_bytes_per_second=rate, efficiency=1, latency_seconds=0)
    usual = draft.node.link if draft.node else None
    return _link("nccl" if draft.cuda else "gloo", found.bytes_per_second, found.latency_seconds, usual)


def _link(name: str, rate: float, latency: float, usual: LinkSpec | None = None) -> LinkSpec:
    """A measured link; the catalogue's ``usual`` one, where there is one, keeps its name and nominal rate."""
    nominal = rate if usual is None else max(usual.nominal_bytes_per_second, rate)
    measured = {
        "nominal_bytes_per_second": nominal,
        "measured_bytes_per_second": rate,
        "efficiency": min(1.0, rate / nominal),
        "latency_seconds": latency,
    }
    return LinkSpec.model_validate({"name": name} | (usual.model_dump() if usual else {}) | measured)


def _show_link(draft: Draft, name: str, group: str, found: FittedLink | None) -> None:
    if found is None:
        return
    remark = f"latency of a hop {found.latency_seconds * 1e6:.1f} us; {', '.join(found.kinds)}"
    finding = Finding(
        name=name,
        value=found.bytes_per_second,
        unit="B/s",
        num_points=found.num_points,
        residual=found.residual,
        remark=remark,
    )
    draft.findings.append(finding)
    for kind in ALL_KINDS:
        points = hop_points(draft.readings, group, kind, cuda=draft.cuda)
        largest = max(points)
        remark = f"{spread(points, found):.2f} times the fitted link's seconds, over all sizes"
        draft.findings.append(
            Finding(name=f"  {kind}", value=largest[0] / largest[1], unit="B/s", num_points=len(points), remark=remark)
        )


def _show_world(draft: Draft, node: FittedLink | None, network: FittedLink) -> None:
    """A check that no fit has seen: an all-reduce over all processes beside what the two links say."""
    points = draft.readings.get("world_all_reduce", ())
    if not points:
        return
    sizes, seconds = max(points)
    local, nodes = draft.facts["local_size"], draft.facts["num_nodes"]
    predicted = world_prediction(node, network, num_bytes=sizes[0], local_size=local, num_nodes=nodes)
    remark = f"{sizes[0] / 2**20:.3g} MiB over all processes; by the two links {predicted:.3g} s"
    draft.findings.append(Finding(name="all_reduce of all", value=seconds, unit="s", remark=remark))


def _host(draft: Draft, device: DeviceSpec) -> tuple[HostSpec, dict[str, str]]:
    """Equation (1), and the host as all processes together measured it."""
    facts, size = draft.facts, draft.facts["local_size"]
    kinds = ("copy_pinned_to_device", "copy_pinned_to_host") if draft.cuda else ("copy",)
    points = [(sizes[0], seconds) for kind in kinds for sizes, seconds in draft.readings.get(kind, ())]
    rate, latency = fit_link(points)
    residual = link_residual(rate, latency, points)
    name = "host link, pinned" if draft.cuda else "copy within memory"
    remark = f"latency {latency * 1e6:.1f} us"
    finding = Finding(name=name, value=rate, unit="B/s", num_points=len(points), residual=residual, remark=remark)
    draft.findings.append(finding)
    _show_pageable(draft)
    usual = draft.node.host.pcie if draft.node else None
    bandwidth, flops = device.memory_bandwidth_bytes_per_second, device.peak_flops_per_second["fp32"]
    if draft.cuda:
        (num_bytes,), seconds = draft.readings["host_stream"][0]
        (num_flops,), product_seconds = draft.readings["host_gemm"][0]
        bandwidth, flops = num_bytes / seconds, num_flops / product_seconds
        draft.findings.append(Finding(name="host memory, one process", value=bandwidth, unit="B/s"))
    host = HostSpec(
        memory_bytes=facts["host_memory_bytes"],
        memory_bandwidth_bytes_per_second=bandwidth * size,
        flops_per_second=flops * size,
        cores=facts["cores"],
        pcie=_link("memory", rate, latency, usual),
    )
    fields = ("memory_bytes", "cores", "flops_per_second", "memory_bandwidth_bytes_per_second")
    sources = {f"host.{name}": draft.source for name in fields}
    return host, sources | {"host.pcie": draft.quality(len(points), residual)}


def _show_pageable(draft: Draft) -> None:
    for way in ("to_device", "to_host"):
        points = draft.readings.get(f"copy_pageable_{way}", ())
        if points:
            sizes, seconds = max(points)
            draft.findings.append(
                Finding(name=f"host link, pageable, {way.replace('_', ' ')}", value=sizes[0] / seconds, unit="B/s")
            )

"""A cluster from names, with some of its numbers changed.

    base: 8x8xH100-SXM            # or device, num_nodes, devices_per_node; node and network name other profiles
    device: {memory_bytes: 94 GiB}
    node_link: {measured_bytes_per_second: 380 GB/s}
    network: {profile: ib-hdr-200g, nominal_bytes_per_second: 400 Gbit/s, ports: 4}
    host: {memory_bytes: 1 TiB}
    nvme: {bytes: 7.6 TB}         # or null
    price_per_device_hour: 2.5

Counts and profiles come first, the other keys change the resulting cluster. A new nominal rate of a link drops the
profile's measured rate, which belonged to the old link: the link then reaches ``efficiency`` times the new rate, unless
the file gives a measured rate too. What a file gives is marked so in ``sources``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardware_profiles.assemble import assemble_cluster
from hardware_profiles.convert import (
    convert_mapping,
    leaf_paths,
    merge,
    require_count,
    require_keys,
    require_mapping,
    require_text,
    validate,
)
from hardware_profiles.grammar import MAX_COUNT, choose_node, parse_cluster_name
from hardware_profiles.profiles import load_device, load_network, load_node
from hardware_profiles.spec import InputError
from hardware_profiles.types import ClusterSpec, DeviceSpec, HostSpec, LevelSpec, LinkSpec, NodeSpec, NvmeSpec

OVERRIDE_KEYS = (
    "base",
    "name",
    "device",
    "node",
    "network",
    "num_nodes",
    "devices_per_node",
    "node_link",
    "host",
    "nvme",
    "price_per_device_hour",
)
_LEVEL_KEYS = ("ports", "oversubscription")
_WITH_PROFILE = ("device", "network")


def apply_overrides(content: Mapping[str, Any], *, origin: str) -> ClusterSpec:
    """Build the named cluster and lay every change over it.

    Args:
        content: the file's content; valid keys are OVERRIDE_KEYS.
        origin: what ``sources`` says of a changed number.

    Raises:
        InputError: an unknown key, profile or unit, a value out of range, a change of something that is not there.
    """
    require_keys(content, OVERRIDE_KEYS, "")
    cluster = _named_cluster(content)
    cluster = _change_device(cluster, content, origin)
    cluster = _change_level(cluster, content, origin, key="node_link", index=0)
    cluster = _change_level(cluster, content, origin, key="network", index=1)
    cluster = _change_host(cluster, content, origin)
    cluster = _change_nvme(cluster, content, origin)
    return _change_price_and_name(cluster, content, origin)


def _named_cluster(content: Mapping[str, Any]) -> ClusterSpec:
    device_name, _ = _section(content, "device")
    network_name, _ = _section(content, "network")
    if "base" not in content and device_name is None:
        raise InputError(
            "nothing to start from; needed base: 8x8xH100-SXM, or device: H100-SXM, or a whole cluster with levels. "
            f"Valid keys: {', '.join(OVERRIDE_KEYS)}"
        )
    start = "base" if "base" in content else "device"
    base = parse_cluster_name(require_text(content.get("base", device_name), start), what=start)
    num_nodes = require_count(content.get("num_nodes", base.num_nodes), "num_nodes", MAX_COUNT)
    per_node = require_count(content.get("devices_per_node", base.devices_per_node), "devices_per_node", MAX_COUNT)
    device = load_device(device_name or base.device)
    node = _node(content, device, num_nodes, per_node)
    network = load_network(network_name or node.network)
    return assemble_cluster(device, node, network, num_nodes=num_nodes, devices_per_node=per_node)


def _node(content: Mapping[str, Any], device: DeviceSpec, num_nodes: int, per_node: int) -> NodeSpec:
    if "node" not in content:
        return load_node(choose_node(device.name, num_nodes, per_node))
    node = load_node(require_text(content["node"], "node"))
    if per_node > node.size:
        raise InputError(
            f"devices_per_node: found {per_node}; needed at most {node.size}, the size of node {node.name}. For a node "
            "of another kind write a whole cluster file with levels"
        )
    return node


def _change_device(cluster: ClusterSpec, content: Mapping[str, Any], origin: str) -> ClusterSpec:
    _, section = _section(content, "device")
    changes = convert_mapping(DeviceSpec, section, "device", forbidden=("sources",), also=("profile",))
    device = cluster.device
    merged = merge(device.model_dump(), changes) | {"sources": _mark(device.sources, leaf_paths(changes), origin)}
    return cluster.model_copy(update={"device": validate(DeviceSpec, merged, "device")})


def _change_level(
    cluster: ClusterSpec, content: Mapping[str, Any], origin: str, *, key: str, index: int
) -> ClusterSpec:
    if key not in content:
        return cluster
    if index >= len(cluster.levels):
        raise InputError(f"{key}: there is one node and so no network to change; needed num_nodes above 1")
    _, section = _section(content, key)
    also = ("profile", *_LEVEL_KEYS) if key in _WITH_PROFILE else _LEVEL_KEYS
    link = _drop_stale(convert_mapping(LinkSpec, section, key, also=also))
    outer = convert_mapping(LevelSpec, {name: section[name] for name in _LEVEL_KEYS if name in section}, key)
    old = cluster.levels[index]
    new_link = validate(LinkSpec, merge(old.link.model_dump(), link), key)
    level = validate(LevelSpec, {**old.model_dump(), **outer, "link": new_link.model_dump()}, key)
    levels = (*cluster.levels[:index], level, *cluster.levels[index + 1 :])
    written = leaf_paths({**outer, "link": link}, f"levels.{index}.")
    return cluster.model_copy(update={"levels": levels, "sources": _mark(cluster.sources, written, origin)})


def _change_host(cluster: ClusterSpec, content: Mapping[str, Any], origin: str) -> ClusterSpec:
    _, section = _section(content, "host")
    changes = convert_mapping(HostSpec, section, "host")
    if "pcie" in changes:
        changes["pcie"] = _drop_stale(changes["pcie"])
    host = validate(HostSpec, merge(cluster.host.model_dump(), changes), "host")
    sources = _mark(cluster.sources, leaf_paths(changes, "host."), origin)
    return cluster.model_copy(update={"host": host, "sources": sources})


def _change_nvme(cluster: ClusterSpec, content: Mapping[str, Any], origin: str) -> ClusterSpec:
    if "nvme" not in content:
        return cluster
    if content["nvme"] is None:
        return cluster.model_copy(update={"nvme": None, "sources": _mark(cluster.sources, ["nvme"], origin)})
    _, section = _section(content, "nvme")
    changes = convert_mapping(NvmeSpec, section, "nvme")
    nvme = validate(NvmeSpec, merge(cluster.nvme.model_dump() if cluster.nvme else {}, changes), "nvme")
    sources = _mark(cluster.sources, leaf_paths(changes, "nvme."), origin)
    return cluster.model_copy(update={"nvme": nvme, "sources": sources})


def _change_price_and_name(cluster: ClusterSpec, content: Mapping[str, Any], origin: str) -> ClusterSpec:
    keys = [key for key in ("name", "price_per_device_hour") if key in content]
    changes = convert_mapping(ClusterSpec, {key: content[key] for key in keys}, "")
    changes.setdefault("name", f"{cluster.name} ({origin})")
    sources = _mark(cluster.sources, [key for key in keys if key != "name"], origin)
    return validate(ClusterSpec, {**cluster.model_dump(), **changes, "sources": sources}, "")


def _section(content: Mapping[str, Any], key: str) -> tuple[str | None, Mapping[str, Any]]:
    """What stands under a key: the name of a profile (device and network only) and the changes."""
    value = content.get(key, {})
    if key in _WITH_PROFILE and isinstance(value, str):
        return require_text(value, key), {}
    mapping = require_mapping(value, key)
    if key in _WITH_PROFILE and "profile" in mapping:
        return require_text(mapping["profile"], f"{key}.profile"), mapping
    return None, mapping


def _drop_stale(changes: dict[str, Any]) -> dict[str, Any]:
    """A new nominal rate means another link: the measurement of the old one no longer holds."""
    if "nominal_bytes_per_second" in changes and "measured_bytes_per_second" not in changes:
        return {**changes, "measured_bytes_per_second": None}
    return changes


def _mark(sources: Mapping[str, str], written: list[str], origin: str) -> dict[str, str]:
    """Sources without those of what was written, and the origin for what was."""
    kept = {
        path: source
        for path, source in sources.items()
        if not any(path == other or path.startswith(f"{other}.") for other in written)
    }
    return kept | {path: origin for path in written}

"""Cluster files: a whole cluster, or a base with overrides.

A file with ``levels`` is a whole ClusterSpec. Any other file names what it starts from and changes some of it:

    base: 8x8xH100-SXM            # or device / node / network / num_nodes / devices_per_node by name
    node_link: {measured_bytes_per_second: 380 GB/s}
    network: {nominal_bytes_per_second: 200 Gbit/s, ports: 4}
    host: {memory_bytes: 1 TiB}
    nvme: {bytes: 7.6 TB}
    price_per_device_hour: 2.5

A new nominal rate of a link drops the profile's measured rate, which belonged to the old link; the link then
reaches ``efficiency`` times the new rate, unless the file gives a measured rate too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from hardware_profiles.assemble import assemble_cluster
from hardware_profiles.convert import (
    convert_mapping,
    leaf_paths,
    merge,
    require_count,
    require_keys,
    require_mapping,
    require_text,
)
from hardware_profiles.errors import explain_validation_error
from hardware_profiles.files import read_yaml_mapping
from hardware_profiles.grammar import choose_node, parse_cluster_name
from hardware_profiles.profiles import load_device, load_network, load_node
from hardware_profiles.spec import InputError, Spec
from hardware_profiles.types import ClusterSpec, DeviceSpec, HostSpec, LevelSpec, LinkSpec, NodeSpec, NvmeSpec

SpecType = TypeVar("SpecType", bound=Spec)

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


def read_cluster_file(path: Path) -> ClusterSpec:
    """Read a cluster file of either kind.

    Raises:
        InputError: the file cannot be read, or a key, unit or value in it is not valid; the message names the file
            and the dotted path.
    """
    what = f"cluster file {path}"
    content = read_yaml_mapping(path, "cluster file")
    try:
        return _read_whole(content) if "levels" in content else _Overrides(content, path.name).apply()
    except InputError as error:
        raise InputError(f"{what}: {error}") from error


def dump_cluster(cluster: ClusterSpec) -> str:
    """The cluster as YAML text that reads back to exactly the same cluster."""
    return str(yaml.safe_dump(cluster.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120))


def _read_whole(content: Mapping[str, Any]) -> ClusterSpec:
    return _validate(ClusterSpec, convert_mapping(ClusterSpec, content, "cluster"), "cluster")


class _Overrides:
    """One override file; the methods follow its keys."""

    def __init__(self, content: Mapping[str, Any], file_name: str) -> None:
        require_keys(content, OVERRIDE_KEYS, "cluster")
        self._content = content
        self._origin = f"given in {file_name}"

    def apply(self) -> ClusterSpec:
        """Base by names, then every change laid over it."""
        cluster = self._base()
        for change in (self._change_device, self._change_links, self._change_host, self._change_rest):
            cluster = change(cluster)
        return cluster

    def _base(self) -> ClusterSpec:
        content = self._content
        device_name = self._device_name()
        if "base" in content:
            base = parse_cluster_name(require_text(content["base"], "base"))
        elif device_name is not None:
            base = parse_cluster_name(device_name)
        else:
            raise InputError(
                "no base and no device is named; needed base: 8x8xH100-SXM, or device: H100-SXM, or a whole cluster with levels"
            )
        num_nodes = require_count(content.get("num_nodes", base.num_nodes), "num_nodes")
        per_node = require_count(content.get("devices_per_node", base.devices_per_node), "devices_per_node")
        device = load_device(device_name or base.device)
        node = self._node(device, num_nodes, per_node)
        network = load_network(self._network_name() or node.network)
        return assemble_cluster(device, node, network, num_nodes=num_nodes, devices_per_node=per_node)

    def _device_name(self) -> str | None:
        device = self._content.get("device")
        if isinstance(device, Mapping):
            device = device.get("profile")
        return None if device is None else require_text(device, "device")

    def _network_name(self) -> str | None:
        network = self._content.get("network")
        if isinstance(network, Mapping):
            network = network.get("profile")
        return None if network is None else require_text(network, "network")

    def _node(self, device: DeviceSpec, num_nodes: int, per_node: int) -> NodeSpec:
        if "node" not in self._content:
            return load_node(choose_node(device.name, num_nodes, per_node, f"{num_nodes}x{per_node}x{device.name}"))
        node = load_node(require_text(self._content["node"], "node"))
        if per_node > node.size:
            raise InputError(
                f"devices_per_node: found {per_node}; the node {node.name} holds at most {node.size}. For another kind of "
                "node, save a cluster as a whole file and edit its levels"
            )
        return node

    def _change_device(self, cluster: ClusterSpec) -> ClusterSpec:
        changes = self._section("device", DeviceSpec, extra=("profile",))
        if not changes:
            return cluster
        return cluster.model_copy(update={"device": self._lay_over(cluster.device, changes, "device")})

    def _change_links(self, cluster: ClusterSpec) -> ClusterSpec:
        for index, key in enumerate(("node_link", "network")):
            changes = self._section(key, LinkSpec, extra=("profile", *_LEVEL_KEYS) if key == "network" else _LEVEL_KEYS)
            if key in self._content and index >= len(cluster.levels):
                raise InputError(
                    f"{key}: the cluster has one node, so there is no network to change; set num_nodes above 1"
                )
            if changes:
                cluster = self._change_level(cluster, index, key, changes)
        return cluster

    def _change_level(self, cluster: ClusterSpec, index: int, key: str, changes: dict[str, Any]) -> ClusterSpec:
        level = cluster.levels[index]
        outer = {name: changes.pop(name) for name in _LEVEL_KEYS if name in changes}
        changed = {**level.model_dump(), **outer, "link": merge(level.link.model_dump(), _drop_stale(changes))}
        levels = list(cluster.levels)
        levels[index] = _validate(LevelSpec, changed, key, hidden="link.")
        prefix = f"levels.{index}."
        written = [*(f"{prefix}{name}" for name in outer), *(f"{prefix}link.{name}" for name in _drop_stale(changes))]
        return cluster.model_copy(update={"levels": tuple(levels), "sources": self._sources(cluster.sources, written)})

    def _change_host(self, cluster: ClusterSpec) -> ClusterSpec:
        changes = self._section("host", HostSpec)
        if not changes:
            return cluster
        if "pcie" in changes:
            changes["pcie"] = _drop_stale(changes["pcie"])
        host = _validate(HostSpec, merge(cluster.host.model_dump(), changes), "host")
        written = leaf_paths(changes, "host.")
        return cluster.model_copy(update={"host": host, "sources": self._sources(cluster.sources, written)})

    def _change_rest(self, cluster: ClusterSpec) -> ClusterSpec:
        content, update, written = self._content, {"name": f"{cluster.name} ({self._origin})"}, list[str]()
        if "name" in content:
            update["name"] = require_text(content["name"], "name")
        update_any: dict[str, Any] = dict(update)
        if "nvme" in content:
            update_any["nvme"], written = self._nvme(cluster)
        if "price_per_device_hour" in content:
            price = convert_mapping(ClusterSpec, {"price_per_device_hour": content["price_per_device_hour"]}, "cluster")
            update_any |= price
            written.append("price_per_device_hour")
        update_any["sources"] = self._sources(cluster.sources, written)
        return _validate(ClusterSpec, cluster.model_copy(update=update_any).model_dump(), "cluster")

    def _nvme(self, cluster: ClusterSpec) -> tuple[NvmeSpec | None, list[str]]:
        if self._content["nvme"] is None:
            return None, ["nvme"]
        changes = self._section("nvme", NvmeSpec)
        base = cluster.nvme.model_dump() if cluster.nvme else {}
        return _validate(NvmeSpec, merge(base, changes), "nvme"), leaf_paths(changes, "nvme.")

    def _section(self, key: str, model: type[Spec], extra: tuple[str, ...] = ()) -> dict[str, Any]:
        """The changes under one key, converted; a bare name changes nothing further."""
        content = self._content.get(key, {})
        if isinstance(content, str) and "profile" in extra or (isinstance(content, str) and key == "device"):
            return {}
        mapping = require_mapping(content, key)
        require_keys(mapping, [*(name for name in model.model_fields if name != "sources"), *extra], key)
        own = {name: value for name, value in mapping.items() if name in model.model_fields}
        level = {name: value for name, value in mapping.items() if name in _LEVEL_KEYS and name in extra}
        return convert_mapping(model, own, key, forbidden=("sources",)) | convert_mapping(LevelSpec, level, key)

    def _lay_over(self, device: DeviceSpec, changes: dict[str, Any], key: str) -> DeviceSpec:
        merged = merge(device.model_dump(), changes)
        merged["sources"] = self._sources(device.sources, leaf_paths(changes))
        return _validate(DeviceSpec, merged, key)

    def _sources(self, sources: Mapping[str, str], written: list[str]) -> dict[str, str]:
        kept = {path: source for path, source in sources.items() if not _covered(path, written)}
        return kept | {path: self._origin for path in written}


def _covered(path: str, written: list[str]) -> bool:
    return any(path == other or path.startswith(f"{other}.") for other in written)


def _drop_stale(changes: dict[str, Any]) -> dict[str, Any]:
    """A new nominal rate means another link: the measurement of the old one no longer holds."""
    if "nominal_bytes_per_second" in changes and "measured_bytes_per_second" not in changes:
        return {**changes, "measured_bytes_per_second": None}
    return changes


def _validate(model: type[SpecType], content: Mapping[str, Any], path: str, *, hidden: str = "") -> SpecType:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        message = explain_validation_error(error, path, model)
        raise InputError(
            message.replace(f"{path}: {hidden}", f"{path}: ", 1).replace(f"{path}: ", f"{path}.", 1)
        ) from error

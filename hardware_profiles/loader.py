"""Loading and saving clusters: the only part of the project that reads hardware files."""

from __future__ import annotations

import os
from pathlib import Path

from hardware_profiles.assemble import assemble_cluster
from hardware_profiles.cluster_file import dump_cluster, read_cluster_file
from hardware_profiles.errors import show_value
from hardware_profiles.files import write_text_atomically
from hardware_profiles.grammar import GRAMMAR, parse_cluster_name
from hardware_profiles.profiles import (
    list_devices,
    list_networks,
    list_nodes,
    load_device,
    load_network,
    load_node,
)
from hardware_profiles.spec import InputError
from hardware_profiles.types import ClusterSpec

__all__ = [
    "list_devices",
    "list_networks",
    "list_nodes",
    "load_cluster",
    "load_device",
    "load_network",
    "load_node",
    "save_cluster",
]

_FILE_SUFFIXES = (".yaml", ".yml", ".json")


def load_cluster(source: str | Path) -> ClusterSpec:
    """Load a cluster by name or from a YAML file.

    Args:
        source: ``DEVICE`` (one device), ``NxDEVICE`` (one node of N), ``MxNxDEVICE`` (M nodes of N), or the path of
            a YAML file: a whole cluster as `save_cluster` writes it, or a base with overrides. Text is a path where
            it ends in .yaml, .yml or .json, holds a path separator or names an existing file.

    Returns:
        The cluster, each number's origin in ``sources``.

    Raises:
        InputError: an unknown device, key or unit, a count or number that is not valid, an unreadable file.
    """
    if isinstance(source, Path):
        return read_cluster_file(source)
    if not isinstance(source, str) or not source.strip():
        raise InputError(f"cluster: found {show_value(source)}; needed {GRAMMAR}, or the path of a YAML file")
    if _is_path(source):
        return read_cluster_file(Path(source))
    name = parse_cluster_name(source)
    node = load_node(name.node)
    return assemble_cluster(
        load_device(name.device),
        node,
        load_network(node.network),
        num_nodes=name.num_nodes,
        devices_per_node=name.devices_per_node,
    )


def save_cluster(cluster: ClusterSpec, path: str | Path, force: bool = False) -> None:
    """Write a whole cluster as YAML; `load_cluster` reads exactly the same cluster back.

    Args:
        cluster: the cluster.
        path: the file to write.
        force: overwrite an existing file.

    Raises:
        InputError: the file exists and ``force`` is not given, or it cannot be written.
    """
    write_text_atomically(Path(path), dump_cluster(cluster), force=force)


def _is_path(source: str) -> bool:
    if source.casefold().endswith(_FILE_SUFFIXES) or os.sep in source or "\0" in source:
        return True
    return len(source) < 256 and Path(source).is_file()

"""Cluster files of two kinds: a whole cluster (it has ``levels``), or a named base with overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hardware_profiles.convert import convert_mapping, validate
from hardware_profiles.errors import show_path
from hardware_profiles.files import read_yaml_mapping
from hardware_profiles.grammar import MAX_COUNT
from hardware_profiles.overrides import apply_overrides
from hardware_profiles.spec import InputError
from hardware_profiles.types import ClusterSpec, DeviceSpec
from hardware_profiles.unequal_nodes import is_written_twice, refuse_unequal_nodes, unequal_nodes


def read_cluster_file(path: Path) -> ClusterSpec:
    """Read a cluster file of either kind.

    Raises:
        InputError: the file cannot be read, or a key, unit or value in it is not valid; the message names the file
            and the dotted path.
    """
    content = _read_content(path)
    try:
        if "levels" in content:
            cluster = validate(ClusterSpec, convert_mapping(ClusterSpec, content, ""), "")
        else:
            cluster = apply_overrides(content, origin=f"given in {show_path(Path(path.name))}")
        _check_fractions(cluster.device)
        _check_size(cluster)
        return cluster
    except InputError as error:
        raise InputError(f"cluster file {show_path(path)}: {error}") from error


def _read_content(path: Path) -> dict[str, Any]:
    try:
        return read_yaml_mapping(path, "cluster file", check=refuse_unequal_nodes)
    except InputError as error:
        if is_written_twice(error.__cause__):
            raise InputError(unequal_nodes(str(error))) from error
        raise


def dump_cluster(cluster: ClusterSpec) -> str:
    """The cluster as YAML text that reads back to exactly the same cluster."""
    return str(yaml.safe_dump(cluster.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120))


def _check_fractions(device: DeviceSpec) -> None:
    """No more than all of a data sheet's peak is reached; the "peak" of a cpu is a measurement, which caches may beat."""
    if device.kind == "cpu":
        return
    fractions = {
        "memory_fraction": device.memory_fraction,
        "attention_fraction": device.attention_fraction,
        "gemm.max_fraction": device.gemm.max_fraction,
    }
    for name, found in fractions.items():
        if found > 1:
            raise InputError(f"device.{name}: found {found:g}; needed at most 1, a share of the device's peak")


def _check_size(cluster: ClusterSpec) -> None:
    if cluster.num_devices > MAX_COUNT**2:
        raise InputError(f"levels: found {cluster.num_devices:,} devices in all; needed at most {MAX_COUNT**2:,}")

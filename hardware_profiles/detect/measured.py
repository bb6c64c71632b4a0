"""Measured rates in place of the catalogue's: equations (2) and (3) of rates.py.

What is wanted is the rate of a ring. Two all_reduces are none:

- An NVSwitch of Hopper or later reduces on the way (NVLink SHARP); a rate above the catalogue's ring says nothing of it.
- Over two nodes NCCL's tree sends each byte once where a ring sends it 2 (n - 1)/n times, so that the network carried at
  least n / (2 (n - 1)) of the bus bandwidth. (On two nodes of 8 H100, https://github.com/NVIDIA/nccl-tests/issues/290,
  that is 83 of 156 GB/s; a ring, NCCL_ALGO=Ring, reached 90.)
"""

from __future__ import annotations

from collections.abc import Sequence

from hardware_profiles.detect.nccl_tests import NcclRun
from hardware_profiles.detect.rates import LinkRate, fit_rate, network_hops, node_hops, node_rate
from hardware_profiles.detect.report import Note
from hardware_profiles.types import ClusterSpec, LevelSpec

_REDUCING_SWITCHES = ("Hopper", "Blackwell")
_POOR_FIT = 0.25


def use_measured_rates(cluster: ClusterSpec, runs: Sequence[NcclRun], notes: list[Note]) -> ClusterSpec:
    """The cluster with the rates of nccl-tests: runs on one node for the first level, on several for the second."""
    if not runs:
        return cluster
    for run in runs:
        _check_size(run, cluster, notes)
    inside = fit_rate(_largest([run for run in runs if run.num_nodes == 1], notes))
    if inside:
        cluster = _use_inside(cluster, inside, notes)
    across = fit_rate(_largest([run for run in runs if run.num_nodes > 1], notes))
    if across and len(cluster.levels) > 1:
        cluster = _use_across(cluster, across, notes)
    elif across:
        notes.append(_note(across, "ran on several nodes, and the cluster has one; left out"))
    return cluster


def _largest(runs: Sequence[NcclRun], notes: list[Note]) -> list[NcclRun]:
    """The runs on the most ranks; smaller ones show another group."""
    most = max(((run.num_nodes, run.num_ranks) for run in runs), default=None)
    for run in runs:
        if (run.num_nodes, run.num_ranks) != most:
            notes.append(Note(run.name, run.line, f"ran on {run.num_ranks} devices, others on more; left out"))
    return [run for run in runs if (run.num_nodes, run.num_ranks) == most]


def _check_size(run: NcclRun, cluster: ClusterSpec, notes: list[Note]) -> None:
    per_node = run.num_ranks // run.num_nodes
    if per_node != cluster.devices_per_node or run.num_ranks % run.num_nodes:
        text = f"it ran on {run.num_ranks} devices of {run.num_nodes} node(s); a node has {cluster.devices_per_node}"
        notes.append(Note(run.name, run.line, text))


def _use_inside(cluster: ClusterSpec, found: LinkRate, notes: list[Note]) -> ClusterSpec:
    level = cluster.levels[0]
    link, rate = level.link, found.bytes_per_second
    in_switch = found.collectives == ("all_reduce",) and cluster.device.architecture in _REDUCING_SWITCHES
    usual = link.measured_bytes_per_second or link.efficiency * link.nominal_bytes_per_second
    if in_switch and rate > usual and link.name.startswith("NVLink"):
        text = (
            f"all_reduce at {_gigabytes(rate)} is faster than a ring on {link.name} (reduced in the switch); the ring's "
            f"rate stays {_gigabytes(usual)}. Give all_gather_perf or reduce_scatter_perf too"
        )
        notes.append(_note(found, text))
        return cluster
    latency = None if found.one_way_seconds is None else found.one_way_seconds / node_hops(found)
    return _with_rate(cluster, 0, found, rate, latency, notes)


def _use_across(cluster: ClusterSpec, found: LinkRate, notes: list[Note]) -> ClusterSpec:
    level, run = cluster.levels[1], found.runs[0]
    carried = node_rate(found, level.ports)
    if found.collectives == ("all_reduce",) and run.num_nodes == 2:
        carried *= run.num_ranks / (2 * (run.num_ranks - 1))
        text = (
            f"all_reduce over two nodes at {_gigabytes(found.bytes_per_second)} may be a tree's, which sends less than a "
            f"ring; taken: the {_gigabytes(carried)} that the network carried at least. Measure all_gather_perf, or "
            "all_reduce_perf with NCCL_ALGO=Ring"
        )
        notes.append(_note(found, text))
    latency = None
    if found.one_way_seconds is not None:
        inside = (
            0.0 if found.collectives == ("sendrecv",) else node_hops(found) * cluster.levels[0].link.latency_seconds
        )
        latency = max(0.0, found.one_way_seconds - inside) / network_hops(found) or None
    return _with_rate(cluster, 1, found, carried / level.ports, latency, notes)


def _with_rate(
    cluster: ClusterSpec, index: int, found: LinkRate, rate: float, latency: float | None, notes: list[Note]
) -> ClusterSpec:
    level = cluster.levels[index]
    nominal = level.link.nominal_bytes_per_second
    changes = {"measured_bytes_per_second": rate, "efficiency": min(1.0, rate / nominal)}
    if rate > nominal:
        text = (
            f"{_gigabytes(rate)} is more than a port of {level.link.name} carries ({_gigabytes(nominal)}), so it is "
            "another link or there are more ports; the measured rate is taken for the nominal one"
        )
        notes.append(_note(found, text))
        changes["nominal_bytes_per_second"] = rate
    if latency is None:
        notes.append(_note(found, f"the latency of {level.link.name} does not show; the catalogue's is kept"))
    else:
        changes["latency_seconds"] = latency
    if found.residual > _POOR_FIT:
        notes.append(_note(found, f"the fit is poor: residual {found.residual:.0%}; measure again on an idle machine"))
    link = level.link.model_copy(update=changes)
    levels = list(cluster.levels)
    levels[index] = LevelSpec.model_validate({**level.model_dump(), "link": link.model_dump()})
    sources = {f"levels.{index}.link.{key}": found.describe() for key in changes}
    sources[f"levels.{index}.link.efficiency"] = "formula: measured over nominal rate"
    return cluster.model_copy(update={"levels": tuple(levels), "sources": {**cluster.sources, **sources}})


def _note(found: LinkRate, text: str) -> Note:
    return Note(found.runs[0].name, found.runs[0].line, text)


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.4g} GB/s"

"""The short way to name a cluster: ``DEVICE``, ``NxDEVICE`` (one node of N) or ``MxNxDEVICE`` (M nodes of N)."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from hardware_profiles.errors import show_value
from hardware_profiles.profiles import default_nodes, list_devices, load_node, resolve_name, unknown_profile
from hardware_profiles.spec import InputError
from hardware_profiles.unequal_nodes import refuse_several_names

GRAMMAR = (
    "DEVICE, NxDEVICE (one node of N devices) or MxNxDEVICE (M nodes of N devices), "
    "for example 8xH100-SXM or 16x8xA100-SXM-80GB"
)
MAX_COUNT = 1_000_000

_COUNT = re.compile(r"\s*(?P<count>[+-]?\d[\d.,_]*|[+-]\S*?)\s*[xX×*]\s*(?P<rest>.*)", re.DOTALL | re.ASCII)
_ANY_COUNT = re.compile(r"(?P<count>.*?)[xX×*](?P<rest>.*)", re.DOTALL | re.ASCII)
_TRAILING_COUNT = re.compile(r"(?P<device>.+?)\s*[xX×*]\s*(?P<count>\d{1,7})\s*", re.ASCII)


class ClusterName(NamedTuple):
    """A parsed name; ``node`` is the smallest default node profile that holds ``devices_per_node``."""

    num_nodes: int
    devices_per_node: int
    device: str
    node: str

    def __str__(self) -> str:
        return cluster_name(self.num_nodes, self.devices_per_node, self.device)


def cluster_name(num_nodes: int, devices_per_node: int, device: str) -> str:
    """The canonical spelling: without a leading ``1x`` for one node, without any count for one device."""
    if num_nodes > 1:
        return f"{num_nodes}x{devices_per_node}x{device}"
    return f"{devices_per_node}x{device}" if devices_per_node > 1 else device


def parse_cluster_name(text: str, *, what: str = "cluster") -> ClusterName:
    """Read a cluster name.

    Args:
        text: ``DEVICE``, ``NxDEVICE`` or ``MxNxDEVICE``; case of the device does not matter.
        what: what the text is, for the message.

    Raises:
        InputError: an unknown device, a count that is no positive whole number, more devices than the largest node
            of that device holds, or too many counts. The message lists what is valid and suggests a spelling.
    """
    try:
        refuse_several_names(text, _is_name)
        return _parse(text)
    except InputError as error:
        raise InputError(f"{what} {show_value(text)}: {error}") from error


def choose_node(device: str, num_nodes: int, devices_per_node: int) -> str:
    """The first default node of the device that is large enough.

    Raises:
        InputError: no default node holds so many devices.
    """
    nodes = default_nodes(device)
    for name in nodes:
        if load_node(name).size >= devices_per_node:
            return name
    largest = load_node(nodes[-1])
    raise InputError(
        f"found {devices_per_node} devices in one node; needed at most {largest.size}, the size of a node of {device} "
        f"({largest.name}). {_suggest_nodes(device, num_nodes * devices_per_node, largest.size)}"
    )


def _parse(text: str) -> ClusterName:
    counts, rest = _split(text)
    device = resolve_name("device", rest) if rest else None
    if device is None:
        _refuse_device(counts, rest)
    if len(counts) > 2:
        raise InputError(f"found {len(counts)} counts; needed {GRAMMAR}")
    numbers = [_parse_count(count) for count in counts]
    num_nodes = numbers[0] if len(numbers) == 2 else 1
    devices_per_node = numbers[-1] if numbers else 1
    return ClusterName(num_nodes, devices_per_node, device, choose_node(device, num_nodes, devices_per_node))


def _is_name(text: str) -> bool:
    counts, rest = _split(text)
    return len(counts) <= 2 and resolve_name("device", rest) is not None


def _split(text: str) -> tuple[list[str], str]:
    """Counts from the left while they look like numbers; a device may itself begin with letters and hold an x."""
    counts, rest = [], text.strip()
    while resolve_name("device", rest) is None and (match := _COUNT.fullmatch(rest)):
        counts.append(match["count"])
        rest = match["rest"].strip()
    return counts, rest


def _parse_count(count: str) -> int:
    if not (count.isascii() and count.isdecimal()) or len(count) > 15 or not 1 <= int(count) <= MAX_COUNT:
        raise InputError(_bad_count(count))
    return int(count)


def _bad_count(count: str) -> str:
    return (
        f"found {show_value(count)} as a count; needed a whole number from 1 to {MAX_COUNT}, as in 16x8xA100-SXM-80GB"
    )


def _refuse_device(counts: list[str], rest: str) -> NoReturn:
    if not rest:
        raise InputError(f"no device is named; needed {GRAMMAR}. Devices: {', '.join(list_devices())}")
    trailing = _TRAILING_COUNT.fullmatch(rest)
    if trailing and (device := resolve_name("device", trailing["device"])):
        raise InputError(f"the count comes first; did you mean {'x'.join([*counts, trailing['count'], device])}?")
    node = resolve_name("node", rest)
    if node is not None:
        _refuse_node(counts, node)
    odd = _ANY_COUNT.fullmatch(rest)
    if odd and resolve_name("device", odd["rest"]):
        raise InputError(_bad_count(odd["count"]))
    raise InputError(f"{unknown_profile('device', rest)}. Needed {GRAMMAR}")


def _refuse_node(counts: list[str], node: str) -> NoReturn:
    """A node profile was named where its devices are needed."""
    size = load_node(node).size
    names = ["x".join([*counts[:1], str(size), device]) for device in list_devices() if node in default_nodes(device)]
    also = f"as in {' or '.join(names)}" if names else f"with node: {node} in a cluster file"
    raise InputError(f"{node} is a node, not a device; name its devices, up to {size} a node, {also}")


def _suggest_nodes(device: str, num_devices: int, size: int) -> str:
    num_nodes = -(-num_devices // size)
    per_node = num_devices // num_nodes
    names = [cluster_name(num_nodes, per_node, device)]
    if num_nodes * per_node != num_devices:
        names = [f"{names[0]} ({num_nodes * per_node} devices)"]
        names.append(f"{cluster_name(num_nodes, size, device)} ({num_nodes * size} devices)")
    return f"Did you mean {' or '.join(names)}?"

"""``nvidia-smi -q``: the devices of a machine as the driver reports them.

The report is an indented outline (four blanks a level) of ``name : value`` lines under ``GPU <bus id>`` headings. Drivers
differ in what is there and in wording: the power limit stands under ``Power Readings`` as ``Enforced Power Limit`` (up to
530) or under ``GPU Power Readings`` as ``Current Power Limit``; the values' column moved in 580.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hardware_profiles.detect.report import Note, Report

_DEVICE = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
_ENTRY = re.compile(r"(?P<blanks> *)(?P<key>[^:]+?)\s*:\s(?P<value>.*)")
_MIB = 2**20
_LARGEST = 1e9  # MiB or W: beyond any device
_POWER_LIMITS = (
    ("GPU Power Readings", "Current Power Limit"),
    ("Power Readings", "Enforced Power Limit"),
    ("Power Readings", "Power Limit"),
)
_OTHER_PROGRAMS = (
    ("<?xml", "this is nvidia-smi -q -x"),
    ("| NVIDIA-SMI", "this is the table of plain nvidia-smi"),
    ("GPU 0: ", "this is nvidia-smi -L"),
    ("couldn't communicate with the NVIDIA driver", "nvidia-smi could not reach its driver"),
    ("No devices were found", "nvidia-smi found no devices"),
)

_Outline = Mapping[tuple[str, ...], tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiDevice:
    """One GPU. ``line``: where its block begins; None where the report does not say."""

    bus_id: str
    line: int
    product_name: str
    architecture: str
    memory_bytes: int | None
    power_limit_watts: float | None
    pcie_generation: int | None
    pcie_width: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiQuery:
    """A whole report. ``num_undescribed``: devices that are attached according to the driver and have no block."""

    driver_version: str
    num_undescribed: int
    devices: tuple[SmiDevice, ...]
    notes: tuple[Note, ...]


def parse_smi_query(report: Report) -> SmiQuery:
    """Read ``nvidia-smi -q``.

    Args:
        report: the output, whole or of single sections.

    Returns:
        The devices that can be used; everything left out has a note. No devices, and a note that says why, where the text
        is something else.
    """
    notes: list[Note] = []
    outline, blocks = _outline(report)
    devices = [device for bus_id, line in blocks if (device := _device(report, outline, bus_id, line, notes))]
    if not blocks:
        notes.append(report.note(0, f"{_what_it_is(report.text)}; needed the output of: nvidia-smi -q"))
    num_undescribed = _num_undescribed(report, outline, len(blocks), notes)
    driver = outline.get(("Driver Version",), (0, "unknown"))[1]
    return SmiQuery(driver_version=driver, num_undescribed=num_undescribed, devices=tuple(devices), notes=tuple(notes))


def _outline(report: Report) -> tuple[_Outline, list[tuple[str, int]]]:
    """Path of keys -> (line, value), the first one of each path, and the (bus id, line) of each device."""
    entries: dict[tuple[str, ...], tuple[int, str]] = {}
    blocks: list[tuple[str, int]] = []
    path: list[tuple[int, str]] = []
    for number, line in report.lines():
        indent = len(line) - len(line.lstrip())
        heading = _DEVICE.fullmatch(line.strip())
        while path and path[-1][0] >= indent:
            path.pop()
        if heading and indent == 0:
            blocks.append((heading[1], number))
            path = [(0, heading[1])]
        elif entry := _ENTRY.fullmatch(line + " "):
            entries.setdefault((*(key for _, key in path), entry["key"].strip()), (number, entry["value"].strip()))
        elif line.strip():
            path.append((indent, line.strip()))
    return entries, blocks


def _device(report: Report, outline: _Outline, bus_id: str, line: int, notes: list[Note]) -> SmiDevice | None:
    """The block of one device, or None and a note where it cannot be used."""
    found = outline.get((bus_id, "Product Name"))
    if found is None or found[1] in ("", "N/A", "Unknown Error"):
        needed = "needed the whole report, without -d"
        notes.append(report.note(line, f"GPU {bus_id} has no Product Name; left out. For its kind {needed}"))
        return None
    mode = outline.get((bus_id, "MIG Mode", "Current"))
    if mode and mode[1] == "Enabled":
        notes.append(
            report.note(mode[0], f"GPU {bus_id} is divided (MIG mode is enabled), which is not modelled; left out")
        )
        return None
    link = (bus_id, "PCI", "GPU Link Info")
    return SmiDevice(
        bus_id=bus_id,
        line=line,
        product_name=found[1],
        architecture=outline.get((bus_id, "Product Architecture"), (0, ""))[1],
        memory_bytes=_memory(report, outline, bus_id, line, notes),
        power_limit_watts=_power_limit(report, outline, bus_id, notes),
        pcie_generation=_smallest(
            outline, [(*link, "PCIe Generation", name) for name in ("Device Max", "Host Max", "Max")]
        ),
        pcie_width=_smallest(outline, [(*link, "Link Width", name) for name in ("Current", "Max")]),
    )


def _memory(report: Report, outline: _Outline, bus_id: str, line: int, notes: list[Note]) -> int | None:
    """What programs can allocate: the total without what the driver reserves."""
    total = outline.get((bus_id, "FB Memory Usage", "Total"))
    if total is None:
        notes.append(report.note(line, f"GPU {bus_id} has no section FB Memory Usage; the catalogue's memory is taken"))
        return None
    number = _quantity(total[1], "MiB")
    if number is None:
        text = f"found the memory {total[1]!r}; needed a number of MiB. The catalogue's memory is taken"
        notes.append(report.note(total[0], text))
        return None
    reserved = _quantity(outline.get((bus_id, "FB Memory Usage", "Reserved"), (0, ""))[1], "MiB") or 0.0
    return int((number - reserved if reserved < number else number) * _MIB)


def _power_limit(report: Report, outline: _Outline, bus_id: str, notes: list[Note]) -> float | None:
    for section, name in _POWER_LIMITS:
        found = outline.get((bus_id, section, name))
        if found is None or found[1] in ("N/A", "[N/A]", "Not Supported"):
            continue
        watts = _quantity(found[1], "W")
        if watts is None:
            notes.append(report.note(found[0], f"found the power limit {found[1]!r}; needed a number of W. Left out"))
        return watts
    return None


def _num_undescribed(report: Report, outline: _Outline, num_blocks: int, notes: list[Note]) -> int:
    line, text = outline.get(("Attached GPUs",), (0, ""))
    attached = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else num_blocks
    if num_blocks and attached != num_blocks:
        text = f"{attached} GPUs are attached and {num_blocks} described"
        more = "; the others are taken for the same" if attached > num_blocks else f"; taken: {num_blocks}"
        notes.append(report.note(line, text + more))
    return max(0, attached - num_blocks) if num_blocks else 0


def _smallest(outline: _Outline, paths: list[tuple[str, ...]]) -> int | None:
    values = [outline[path][1].removesuffix("x") for path in paths if path in outline]
    return min(
        (int(value) for value in values if value.isascii() and value.isdecimal() and len(value) < 6 and int(value)),
        default=None,
    )


def _quantity(text: str, unit: str) -> float | None:
    """``81559 MiB`` -> 81559.0; None for anything that is not positive or beyond any device."""
    number, _, found = text.partition(" ")
    try:
        value = float(number)
    except ValueError:
        return None
    return value if found.strip() == unit and 0 < value <= _LARGEST else None


def _what_it_is(text: str) -> str:
    for mark, meaning in _OTHER_PROGRAMS:
        if mark in text[:20_000]:
            return meaning
    if "NVSMI LOG" in text:
        return "the report names no GPU (no line such as 'GPU 00000000:18:00.0')"
    return "this is not nvidia-smi's report in English" if text.strip() else "the file is empty"

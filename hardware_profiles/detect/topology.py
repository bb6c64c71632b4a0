"""``nvidia-smi topo -m``: how the devices of a machine reach each other and its network cards.

The report is a matrix of words. ``NV#`` is # bonded NVLinks; the others are PCIe paths, nearest first: PIX (one bridge),
PXB (several bridges), PHB (through the host bridge), NODE (between host bridges of a NUMA node), SYS (between NUMA nodes).
Network cards stand in it as ``NIC0`` with a legend, or in older drivers under their own names (``mlx5_0``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware_profiles.detect.report import Note, Report

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""PCIe paths, nearest first."""
_SAME = {"PSB": "PIX", "SOC": "SYS", "QPI": "SYS"}  # words of older drivers
_GPU = re.compile(r"GPU\d+")
_NVLINK = re.compile(r"NV(\d{1,3})")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The matrix: ``link[a, b]`` is ``NV#`` or one of PATHS. ``cards``: network cards as named in the matrix."""

    devices: tuple[str, ...]
    cards: tuple[str, ...]
    card_names: Mapping[str, str]
    link: Mapping[tuple[str, str], str]
    shows_nvlink: bool
    notes: tuple[Note, ...]

    def nvlinks(self, first: str, second: str) -> int:
        """Bonded NVLinks between two devices."""
        found = _NVLINK.fullmatch(self.link.get((first, second), ""))
        return int(found[1]) if found else 0


def parse_topology(report: Report) -> Topology:
    """Read ``nvidia-smi topo -m``.

    Args:
        report: the output, with tabs or blanks between its columns.

    Returns:
        The matrix; no devices, and a note that says why, where the text is something else.
    """
    notes: list[Note] = []
    names: list[str] = []
    rows: set[str] = set()
    link: dict[tuple[str, str], str] = {}
    legend: dict[str, str] = {}
    for number, line in report.lines():
        words = line.split()
        if not names and words and _GPU.fullmatch(words[0]) and "X" not in words:
            names = _column_names(words)
        elif words and words[0] in names and words[0] not in rows:
            rows.add(words[0])
            link |= _row(report, number, words, names, notes)
        elif found := _LEGEND.fullmatch(line):
            legend[found[1]] = found[2]
    devices = tuple(name for name in names if _GPU.fullmatch(name))
    _check(report, devices, rows, notes)
    kept = tuple(name for name in devices if name in rows)
    cards = tuple(name for name in names if name not in devices)
    shows_nvlink = "NV#" in report.text or "Legend" not in report.text
    if kept and not shows_nvlink:
        notes.append(report.note(0, "the legend has no NV#: topo -mp shows PCIe alone; needed topo -m to tell NVLink"))
    return Topology(
        devices=kept, cards=cards, card_names=legend, link=link, shows_nvlink=shows_nvlink, notes=tuple(notes)
    )


def _column_names(words: Sequence[str]) -> list[str]:
    """The heading up to ``CPU Affinity``."""
    return list(words[: words.index("CPU")] if "CPU" in words else words)


def _row(
    report: Report, number: int, words: Sequence[str], names: Sequence[str], notes: list[Note]
) -> dict[tuple[str, str], str]:
    cells = words[1 : len(names) + 1]
    if len(cells) < len(names):
        text = f"the row of {words[0]} has {len(cells)} of {len(names)} columns; the missing ones are left out"
        notes.append(report.note(number, text))
    found = {}
    for other, cell in zip(names, cells, strict=False):
        if cell == "X" or other == words[0]:
            continue
        word = _SAME.get(cell, cell)
        if word not in PATHS and not _NVLINK.fullmatch(word):
            text = f"found {cell!r} between {words[0]} and {other}; needed NV#, {', '.join(PATHS)}. Taken for SYS"
            notes.append(report.note(number, text))
            word = "SYS"
        found[words[0], other] = word
    return found


def _check(report: Report, devices: Sequence[str], rows: set[str], notes: list[Note]) -> None:
    if not devices:
        what = "there is no heading of GPU0, GPU1 ..." if report.text.strip() else "the file is empty"
        notes.append(report.note(0, f"{what}; needed the output of: nvidia-smi topo -m"))
    for name in devices:
        if name not in rows:
            notes.append(report.note(0, f"there is no row of {name}, the report was cut off; left out"))

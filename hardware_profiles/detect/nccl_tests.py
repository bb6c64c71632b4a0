"""Output of nccl-tests (``all_reduce_perf`` and its sisters): the time of a collective by size.

A run is a heading of comments, one row a size and a closing comment. Each row has the columns of an out-of-place and of
an in-place call. The columns changed over the years (``error`` became ``#wrong``, ``root`` was added), so the heading
that names them is read. Launchers put a task number before every line (``[1,0]<stdout>:``, `` 0: ``, ``[0] ``).

The bus bandwidth that the programs print is busbw = algbw x f with (their doc/PERFORMANCE.md)

    (1)  f = 2 (n - 1)/n for all_reduce, (n - 1)/n for all_gather, reduce_scatter and alltoall, 1 for sendrecv

which tells the collective where neither the text nor the name of the file says which program ran.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hardware_profiles.detect.report import Note, Report

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
_PREFIX = re.compile(r"\s*(?:\[\d+(?:,\d+)?\](?:<std(?:out|err)>:)?\s?|\d+:\s)")
_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf")
_FILE_NAME = re.compile("|".join(COLLECTIVES))
_OTHER_PROGRAM = re.compile(r"\b([a-z_]+)_perf")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[\S*\]\s*(.*)")
_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})")
_HIGHEST_RATE = 1e16  # no machine's
_MAX_DIGITS = 18  # of a size in bytes
_FACTOR_TOLERANCE = 0.03
_WELL_PRINTED = 1.0  # GB/s; rates have two decimals


@dataclass(frozen=True, slots=True)
class NcclPoint:
    """Seconds of one call on ``size_bytes``, in nccl-tests' meaning of the size (all ranks' parts together)."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRun:
    """One run; ``line``: where it begins. ``device_names`` of all ranks that were listed."""

    name: str
    line: int
    collective: str
    num_ranks: int
    num_nodes: int
    device_names: tuple[str, ...]
    points: tuple[NcclPoint, ...]


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A run while its lines are read."""

    line: int
    collective: str
    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)
    repeated_rank: bool = False
    columns: list[str] = field(default_factory=list)
    points: list[NcclPoint] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    operation: str = ""
    flagged: bool = False
    num_bad: int = 0
    closed: bool = False
    last_line: int = 0


def parse_nccl_tests(report: Report) -> tuple[tuple[NcclRun, ...], tuple[Note, ...]]:
    """Read the output of one or more runs of nccl-tests.

    Args:
        report: the output; other programs' lines between are ignored.

    Returns:
        The runs that have a usable row, and notes about everything that was left out.
    """
    notes: list[Note] = []
    drafts: list[_Draft] = []
    named = _FILE_NAME.search(PurePath(report.name).name)
    program = named[0] if named else ""
    for number, raw in report.lines():
        line = _PREFIX.sub("", raw, count=1)
        if found := _PROGRAM.search(line) or (line.startswith("# Collective") and _OTHER_PROGRAM.search(line)):
            program = found[1]
        if line.startswith("# nThread") or (line.startswith("# Using devices") and (not drafts or drafts[-1].columns)):
            drafts.append(_Draft(line=number, collective=program))
        elif drafts:
            _read(report, number, line, drafts[-1], notes)
    runs = [run for draft in drafts if (run := _finish(report, draft, notes))]
    if not drafts:
        what = "there is no heading '# nThread ...'" if report.text.strip() else "the file is empty"
        notes.append(report.note(0, f"{what}; needed the output of nccl-tests, such as all_gather_perf"))
    return tuple(runs), tuple(notes)


def _read(report: Report, number: int, line: str, draft: _Draft, notes: list[Note]) -> None:
    """One line of a run."""
    words = line.split()
    if found := _RANK.match(line):
        draft.repeated_rank |= int(found[1]) in draft.ranks
        draft.ranks[int(found[1])] = (found[2], found[3].strip())
    elif found := _BOUNDS.match(line):
        draft.closed, draft.num_bad = True, int(found[1])
    elif line.startswith("#") and "size" in words and "algbw" in words:
        draft.columns = words[words.index("size") :]
    elif draft.columns and words and words[0].isascii() and words[0].isdecimal():
        draft.last_line = number
        if len(words[0]) <= _MAX_DIGITS:
            _read_row(report, number, words, draft, notes)
        else:
            text = f"the row has a size of {len(words[0])} digits, which no buffer has; left out"
            notes.append(report.note(number, text))


def _read_row(report: Report, number: int, words: Sequence[str], draft: _Draft, notes: list[Note]) -> None:
    size = int(words[0])
    if size == 0:  # less than one element a rank
        return
    cells = [words[at : at + 4] for at, column in enumerate(draft.columns) if column == "time"]
    if any(len(cell) < 4 or not all(map(_is_number, cell)) for cell in cells):
        notes.append(report.note(number, f"the row of {size} bytes is cut off or mixed with other text; left out"))
        return
    if "redop" in draft.columns:
        draft.operation = words[draft.columns.index("redop")]
    for time, algorithm_rate, bus_rate, wrong in cells:
        if "#wrong" in draft.columns and wrong not in ("0", "N/A"):
            draft.flagged = True
            notes.append(report.note(number, f"the row of {size} bytes has {wrong} wrong values; left out"))
        elif (seconds := _seconds(time)) is not None and not 1 <= size / seconds <= _HIGHEST_RATE:
            text = f"the row of {size} bytes has the time {time}, a rate of {size / seconds:.2g} B/s; left out"
            notes.append(report.note(number, text))
        elif seconds is not None:
            draft.points.append(NcclPoint(size, seconds))
            if "N/A" not in (algorithm_rate, bus_rate) and float(algorithm_rate) >= _WELL_PRINTED:
                draft.factors.append(float(bus_rate) / float(algorithm_rate))
        elif time != "N/A":
            text = f"the row of {size} bytes has the time {time}; needed a positive, finite one. Left out"
            notes.append(report.note(number, text))


def _is_number(word: str) -> bool:
    if word == "N/A":
        return True
    try:
        float(word)
    except ValueError:
        return False
    return True


def _seconds(word: str) -> float | None:
    if word == "N/A":
        return None
    microseconds = float(word)
    return microseconds * 1e-6 if math.isfinite(microseconds) and microseconds > 0 else None


def _finish(report: Report, draft: _Draft, notes: list[Note]) -> NcclRun | None:
    """The run, or None and a note that says why it is left out."""
    if draft.columns and not draft.closed:
        last = draft.last_line or draft.line
        notes.append(
            report.note(last, "the run was cut off (no line '# Out of bounds values'); its whole rows are used")
        )
    if not draft.collective and draft.ranks and draft.factors:
        draft.collective = _by_factor(draft)
        if draft.collective:
            text = f"no program is named; by its bus bandwidth this is {draft.collective}_perf"
            notes.append(report.note(draft.line, text))
    reason = _reason_against(draft)
    if reason:
        notes.append(report.note(draft.line, f"this run is left out: {reason}"))
        return None
    hosts = [host for host, _ in draft.ranks.values()]
    return NcclRun(
        name=report.name,
        line=draft.line,
        collective=draft.collective,
        num_ranks=max(draft.ranks) + 1,
        num_nodes=len(set(hosts)),
        device_names=tuple(dict.fromkeys(name for _, name in draft.ranks.values() if name)),
        points=tuple(draft.points),
    )


def _by_factor(draft: _Draft) -> str:
    """The collective of equation (1); of two with one factor the one whose operation (sum or none) is printed."""
    size, factor = max(draft.ranks) + 1, draft.factors[-1]
    reduces = draft.operation != "none"
    candidates = (
        (2 * (size - 1) / size, "all_reduce" if reduces else "sendrecv"),
        ((size - 1) / size, "reduce_scatter" if reduces else "all_gather"),
        (1.0, "sendrecv"),
    )
    return next((name for needed, name in candidates if abs(factor - needed) < _FACTOR_TOLERANCE), "")


def _reason_against(draft: _Draft) -> str:
    if draft.collective not in COLLECTIVES:
        other = f"it is of {draft.collective}_perf" if draft.collective else "nothing says which program ran"
        return f"{other}; needed one of {', '.join(f'{name}_perf' for name in COLLECTIVES)}"
    if not draft.ranks:
        return "its ranks are not listed (lines '#  Rank  0 ...'), so its nodes are unknown"
    if draft.repeated_rank and len(draft.ranks) == 1:
        return "every process ran alone as rank 0; build nccl-tests with MPI=1"
    if max(draft.ranks) == 0:
        return "it ran on one device, which has nobody to talk to"
    if draft.num_bad and not draft.flagged:
        return f"{draft.num_bad} values were out of bounds, and its rows do not say which"
    if not draft.points:
        return "it has no usable row"
    return ""

"""A dry run beside its prediction: one table of memory, one of communication."""

from __future__ import annotations

import re

from rich.console import Console

from costmodel.specs import Comparison, FieldComparison, Observation
from meshwright import units
from meshwright.cli.render.tables import facts, heading, lines, rows

_RANK = re.compile(r"pipeline_rank\[(\d+)\]\.(.+)")
_LARGE_FLOPS = 1e13
_TRAFFIC = re.compile(r"(\w+)\.(\w+)\[(\w+)\]\.(count|bytes)")
Traffic = dict[tuple[str, str, str], dict[str, FieldComparison]]


def render_verification(console: Console, observation: Observation, comparison: Comparison) -> None:
    """Everything that was compared; ranks that communicate alike share their lines."""
    off = sum(not field.passed for field in comparison.fields)
    verdict = (
        "everything within tolerance" if comparison.passed else f"{off} figure{'s' * (off > 1)} NOT within tolerance"
    )
    heading(console, "Verification", f"{observation.source}: {verdict}")
    flops = next((field for field in comparison.fields if field.name == "flops.hardware"), None)
    if flops is not None:
        one, unit = (1e15, "PFLOP") if flops.observed >= _LARGE_FLOPS else (1e9, "GFLOP")
        facts(console, [("FLOP executed", _told(flops, f"{units.significant(flops.observed / one, 6)} {unit}"))])
    by_rank: dict[int, dict[str, FieldComparison]] = {}
    for field in comparison.fields:
        if (match := _RANK.fullmatch(field.name)) is not None:
            by_rank.setdefault(int(match[1]), {})[match[2]] = field
    _memory(console, by_rank)
    _communication(console, by_rank)
    lines(console, observation.notes)


def _memory(console: Console, by_rank: dict[int, dict[str, FieldComparison]]) -> None:
    fields = {rank: named["peak_bytes"] for rank, named in by_rank.items() if "peak_bytes" in named}
    if not fields:
        return
    heading(console, "Peak memory", "tensors of the fullest device of every pipeline rank")
    column = units.MemoryColumn([int(field.observed) for field in fields.values()])
    names = ("parameters_bytes", "gradients_bytes", "optimizer_state_bytes")
    body = [
        (
            str(rank),
            column(field.predicted),
            column(field.observed),
            _error(field),
            "ok" if field.passed else "OFF",
            *("equal" if by_rank[rank][name].passed else _error(by_rank[rank][name]) for name in names),
        )
        for rank, field in fields.items()
    ]
    rows(
        console,
        (
            "rank",
            f"predicted {column.unit}",
            f"dry run {column.unit}",
            "error",
            "",
            "parameters",
            "gradients",
            "optimizer",
        ),
        body,
        left=("",),
        gap=2 if console.width >= 100 else 1,
    )


def _communication(console: Console, by_rank: dict[int, dict[str, FieldComparison]]) -> None:
    heading(console, "Communication", "sent by one device in one step, under ring algorithms")
    groups: list[tuple[list[int], Traffic]] = []
    for rank, named in by_rank.items():
        traffic = _traffic(named)
        same = next((ranks for ranks, other in groups if _figures(other) == _figures(traffic)), None)
        if same is None:
            groups.append(([rank], traffic))
        else:
            same.append(rank)
    body = []
    for ranks, traffic in groups:
        shown = _spans(ranks)
        for (axis, op, size), pair in traffic.items():
            sent, calls = pair["bytes"].observed, pair["count"].observed
            body.append((shown, axis, op, size, f"{calls:,.0f}", f"{sent:,.0f}", _difference(pair)))
            shown = ""
    rows(
        console,
        ("ranks", "axis", "collective", "of", "calls", "bytes", "predicted"),
        body,
        left=("ranks", "axis", "collective", "predicted"),
    )


def _traffic(named: dict[str, FieldComparison]) -> Traffic:
    found: Traffic = {}
    for name, field in named.items():
        if (match := _TRAFFIC.fullmatch(name)) is not None:
            found.setdefault((match[1], match[2], match[3]), {})[match[4]] = field
    return found


def _figures(traffic: Traffic) -> list[tuple[object, ...]]:
    return [
        (key, name, field.predicted, field.observed) for key, pair in traffic.items() for name, field in pair.items()
    ]


def _spans(ranks: list[int]) -> str:
    """``0``, ``1-6`` or ``0,2-4``."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def _difference(pair: dict[str, FieldComparison]) -> str:
    if pair["count"].passed and pair["bytes"].passed:
        return "equal"
    return f"{pair['count'].predicted:,.0f} calls, {pair['bytes'].predicted:,.0f} B"


def _error(field: FieldComparison) -> str:
    return "-" if field.relative_error is None else f"{field.relative_error:+.2%}"


def _told(field: FieldComparison, observed: str) -> str:
    verdict = "" if field.passed else f", beyond {field.tolerance:.1%}"
    return f"{observed}, predicted {_error(field)}{verdict}"

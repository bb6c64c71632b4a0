"""What was measured, beside what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich.console import Console

from costmodel.specs import Comparison, Observation
from meshwright import units
from meshwright.cli.render.tables import facts, heading, rows

_MAX_STEPS = 10
_T = TypeVar("_T")


def render_observation(console: Console, observation: Observation) -> None:
    """Losses, speed and memory of a run."""
    heading(console, "Run", observation.source)
    losses, seconds, speed = observation.losses, observation.step_time_seconds, observation.tokens_per_second
    tensors = [peak.tensor_bytes for peak in observation.peaks]
    resident = [peak.resident_bytes for peak in observation.peaks if peak.resident_bytes is not None]
    facts(
        console,
        [
            ("loss", f"{losses[0]:.6f} to {losses[-1]:.6f} in {len(losses)} steps" if losses else ""),
            ("step time", "" if seconds is None else units.seconds(seconds)),
            ("throughput", "" if speed is None else f"{units.significant(speed, 4)} tokens/s"),
            ("peak tensors", f"{units.memory(max(tensors))} on the fullest rank" if tensors else ""),
            ("peak resident", f"{units.memory(max(resident))} with the process itself" if resident else ""),
        ],
    )


def render_comparison(console: Console, comparison: Comparison) -> None:
    """Predicted beside measured; the error is (predicted - measured) / measured."""
    verdict = "all within tolerance" if comparison.passed else "NOT all within tolerance"
    heading(console, "Predicted and measured", verdict)
    body = [
        (
            field.name,
            _number(field.name, field.predicted),
            _number(field.name, field.observed),
            "-" if field.relative_error is None else f"{field.relative_error:+.1%}",
            f"{field.tolerance:.0%}",
            "ok" if field.passed else "off",
        )
        for field in comparison.fields
    ]
    rows(console, ("", "predicted", "measured", "error", "tolerance", ""), body, left=("",))


def render_reference(console: Console, observation: Observation, reference: Observation, difference: float) -> None:
    """The losses of the plan and of one process, step by step."""
    heading(console, "One process", f"largest loss difference {difference:.3g}")
    pairs = list(enumerate(zip(observation.losses, reference.losses, strict=True), start=1))
    body = [(str(step), f"{loss:.7f}", f"{single:.7f}") for step, (loss, single) in _thin(pairs)]
    rows(console, ("step", "plan", "one process"), body)


def _thin(items: Sequence[_T]) -> Sequence[_T]:
    """The first and last items when there are many."""
    if len(items) <= _MAX_STEPS:
        return items
    return [*items[: _MAX_STEPS // 2], *items[-_MAX_STEPS // 2 :]]


def _number(name: str, value: float) -> str:
    if "bytes" in name:
        return units.memory(value)
    if "seconds" in name:
        return units.seconds(value)
    return units.significant(value, 4)

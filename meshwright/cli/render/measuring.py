"""Plans worth measuring, and the commands that do it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from meshwright import units
from meshwright.cli.render.tables import INDENT, heading, rows
from meshwright.measuring import Measurement
from planner.evaluation import estimate_of
from planner.summary import summarize


def render_measurements(console: Console, found: Sequence[Measurement], calibrate: str, *, asked: int) -> None:
    """One row a plan, then the commands of each, never broken, and the one that calibrates with the results."""
    fewer = "" if len(found) == asked else f" ({asked} asked for, {len(found)} such layouts)"
    heading(console, "Worth measuring", f"layouts that the model's own error cannot tell from the best{fewer}")
    body = []
    for number, each in enumerate(found, start=1):
        made = estimate_of(each.plan)
        seconds = made.step_time_seconds
        interval = f"{units.seconds(seconds.low)} to {units.seconds(seconds.high)}"
        memory = units.memory(made.peak_memory_bytes.device)
        body.append((str(number), units.seconds(seconds.value), interval, memory, summarize(each.plan)))
    columns = ("", "step", f"{estimate_of(found[0].plan).step_time_seconds.level:.0%} interval", "memory", "plan")
    rows(console, columns, body, wrap="plan")
    for number, each in enumerate(found, start=1):
        console.print()
        _commands(console, f"# {number}", each.commands)
    console.print()
    _commands(console, "# then", (calibrate,))


def _commands(console: Console, title: str, texts: Sequence[str]) -> None:
    console.print(Text(f"{' ' * INDENT}{title}", style="dim"))
    for text in texts:
        console.print(Text(f"{' ' * INDENT}{text}"), soft_wrap=True)

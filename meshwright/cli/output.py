"""Where text goes: the answer to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer
from pydantic import BaseModel

from meshwright.visible_text import visible

if TYPE_CHECKING:
    from rich.console import Console

_PATIENCE_SECONDS = 1.0
_NARROWEST = 72  # below, numbers would be cut; the terminal wraps the lines instead


def answer_console() -> Console:
    """Tables and text that were asked for, never so narrow that a number is cut."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, _NARROWEST)
    return console


def notice_console() -> Console:
    """Progress that moves."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def print_json(content: BaseModel | Sequence[BaseModel]) -> None:
    """The model's own dump, or a list of them, alone on stdout."""
    if isinstance(content, BaseModel):
        text = content.model_dump_json(indent=2)
    else:
        text = json.dumps([item.model_dump(mode="json") for item in content], indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")


def print_warnings(warnings: Iterable[str]) -> None:
    """One line each on stderr."""
    for warning in warnings:
        _say(f"{typer.style('warning:', fg='yellow', bold=True)} {visible(warning)}")


class SlowProgress:
    """Says on stderr what is being done, from a second after it was made and at most once a second."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        """Say it, if it is time."""
        now = time.monotonic()
        if now - self._last >= _PATIENCE_SECONDS:
            self._last = now
            print_notice(f"{text} ...")


def print_notice(text: str) -> None:
    """One line on stderr."""
    _say(visible(text))


def _say(line: str) -> None:
    """On stderr, in colour where a terminal shows it; rich takes too long to load for that. The answer does not depend on it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    with contextlib.suppress(OSError):
        typer.echo(line, file=sys.stderr, color=False if plain else None)

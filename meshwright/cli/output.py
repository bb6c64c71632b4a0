"""Where text goes: the answer to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence

from pydantic import BaseModel
from rich.console import Console

from meshwright.visible_text import visible

_PATIENCE_SECONDS = 1.0
_NARROWEST = 72  # below, numbers would be cut; the terminal wraps the lines instead


def answer_console() -> Console:
    """Tables and text that were asked for, never so narrow that a number is cut."""
    console = Console(highlight=False)
    console.width = max(console.width, _NARROWEST)
    return console


def notice_console() -> Console:
    """Progress, notices and warnings."""
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
    console = notice_console()
    for warning in warnings:
        console.print(f"[bold yellow]warning:[/] {_plain(warning)}", soft_wrap=True)


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
    notice_console().print(_plain(text), soft_wrap=True)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text))

"""A program's output with a name, and what was odd about it, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that was left out, taken from elsewhere or assumed; ``line`` 0 means the whole report."""

    name: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"{self.name}:{self.line}" if self.line else self.name
        return f"{where}: {self.text}" if where else self.text


@dataclass(frozen=True, slots=True)
class Report:
    """Text that a program wrote. ``name``: its file, or the command that was run."""

    name: str
    text: str

    def lines(self) -> Iterator[tuple[int, str]]:
        """(line number from 1, the line without its end and without terminal codes)."""
        for number, line in enumerate(self.text.splitlines(), start=1):
            yield number, _TERMINAL_CODES.sub("", line).rstrip()

    def note(self, line: int, text: str) -> Note:
        """A note about one of its lines."""
        return Note(self.name, line, text)

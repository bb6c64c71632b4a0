"""The few pieces of Markdown that reports are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = ()) -> str:
    """A table; columns named in ``left`` are flush left, as is the first, all others flush right."""
    marks = ["---" if index == 0 or name in left else "---:" for index, name in enumerate(header)]
    lines = [header, marks, *rows]
    return "\n".join(f"| {' | '.join(cell(text) for text in line)} |" for line in lines)


def cell(text: str) -> str:
    """Text that stays inside its cell."""
    return " ".join(text.replace("|", "\\|").split())


def shorten(text: str, length: int) -> str:
    """The beginning of a text, cut at a word."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    return f"{text[: length - 3].rsplit(' ', 1)[0]} ..."


def details(summary: str, content: str) -> str:
    """A part that opens on a click."""
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n\n</details>"


def percent(value: float | None, form: str = ".1%") -> str:
    """A share or relative error; a dash where there is none."""
    return "-" if value is None else format(value, form)


def seconds(value: float | None) -> str:
    """A time with three significant digits."""
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"

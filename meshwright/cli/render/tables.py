"""The few shapes that every answer is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

INDENT = 2


def heading(console: Console, title: str, note: str = "") -> None:
    """A blank line, a bold title and a dim note."""
    console.print()
    console.print(Text(title, style="bold") + Text(f"  {note}" if note else "", style="dim"))


def facts(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns; pairs with an empty value are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            table.add_row(name, Text(value))
    _print(console, table)


def rows(
    console: Console,
    columns: Sequence[str],
    body: Iterable[Sequence[str]],
    *,
    left: Sequence[str] = (),
    wrap: str | None = None,
    gap: int = 2,
) -> None:
    """A table: numbers to the right, the columns named in ``left`` to the left, only ``wrap`` may break lines."""
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False)
    for name in columns:
        is_text = name in left or name == wrap
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=name != wrap,
            overflow="fold" if name == wrap else "ellipsis",
        )
    for cells in body:
        table.add_row(*(Text(cell) for cell in cells))
    _print(console, table)


def lines(console: Console, texts: Iterable[str], *, bullet: str = "-") -> None:
    """One item a line, wrapped under its own indent."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for text in texts:
        table.add_row(bullet, Text(text))
    _print(console, table)


def commands(console: Console, texts: Iterable[str]) -> None:
    """Commands to type next, one a line and never broken."""
    heading(console, "Next")
    for text in texts:
        console.print(Text(f"{' ' * INDENT}{text}"), soft_wrap=True)


def _print(console: Console, renderable: RenderableType) -> None:
    console.print(Padding(renderable, (0, 0, 0, INDENT), expand=False))

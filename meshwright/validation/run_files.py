"""Files of measured runs, one run a line -> checked rows, and what is wrong with the lines that are none.

In a CSV file the fields of `run_rows` are columns with dotted names (``parallel.tp``); an empty cell is an absent field.
Nothing that is wrong with a line reaches another one: not even a quote that is never closed.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from costmodel.specs import InputError
from hardware_profiles.errors import explain_validation_error, find_model
from hardware_profiles.files import read_at_most
from hardware_profiles.json_text import json_kind
from meshwright.files import to_path
from meshwright.validation.run_rows import RunRow
from meshwright.visible_text import visible, visible_values

MAX_RUNS_BYTES = 2**28
_MAX_SHOWN = 200
_MAX_CELL_LINES = 50
_PARTS = ("model", "hardware", "parallel", "measured")
# Columns that are text even where a cell looks like a number.
_TEXTS = (
    "id", "name", "gpu", "dataset", "source", "runtime", "rank_group", "fsdp", "schedule", "recompute", "offload", "dtype",
    "optimizer", "error", "notes",
)  # fmt: skip
_LIKENESS = 0.8


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: its row, or the reason why it is none. ``where`` is ``file:line``."""

    where: str
    row: RunRow | None
    reason: str = ""


def read_runs(paths: Sequence[str | Path]) -> Iterator[Line]:
    """Every line of every file that is not blank, in order.

    Args:
        paths: JSON Lines files, and CSV files by their suffix. A row without ``dataset`` gets the file's name without its
            suffix.

    Raises:
        InputError: when a file cannot be read or is too large.
    """
    for given in paths:
        path = to_path(given, what="runs file")
        try:
            content = read_at_most(path, MAX_RUNS_BYTES)
        except OSError as error:
            raise InputError(f"cannot read the runs file {path}: {error.strerror}") from error
        if len(content) > MAX_RUNS_BYTES:
            raise InputError(
                f"the runs file {path} holds more than {MAX_RUNS_BYTES:,} bytes; split it into smaller ones"
            )
        read = _read_csv if path.suffix.casefold() == ".csv" else _read_json_lines
        yield from read(content, path)


def _read_json_lines(content: bytes, path: Path) -> Iterator[Line]:
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            yield _read_json(line, f"{visible(path.name)}:{number}", visible(path.stem))


def _read_json(content: bytes, where: str, dataset: str) -> Line:
    try:
        found = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        return Line(where, None, "the line is not UTF-8 text")
    except (ValueError, RecursionError) as error:
        return Line(where, None, f"the line is not JSON: {error}; needed one whole object a line"[:_MAX_SHOWN])
    if not isinstance(found, dict):
        return Line(where, None, f"found {json_kind(found)}; needed a JSON object with the fields of a run")
    return _check(found, where, dataset)


def _read_csv(content: bytes, path: Path) -> Iterator[Line]:
    """The header tells the columns; what is wrong with it, or looks misspelt, is told as its line's."""
    text = content.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")
    records = _records(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    header = next(records, _Record(1, []))
    columns = [visible(column.strip()) for column in header.cells]
    wrong = header.wrong or _check_columns(columns)
    name, dataset = visible(path.name), visible(path.stem)
    hints = [wrong] if wrong else [hint for column in columns if (hint := _misspelt(column, columns))]
    for hint in hints:
        yield Line(f"{name}:{header.number}", None, hint)
    for record in () if wrong else records:
        yield _read_record(record, columns, f"{name}:{record.number}", dataset)


@dataclass(frozen=True, slots=True)
class _Record:
    """One record of a CSV file: the number of its first line, its cells, or what is wrong with it."""

    number: int
    cells: list[str]
    wrong: str = ""


def _records(lines: Sequence[str]) -> Iterator[_Record]:
    """Every record that is not blank.

    A cell may hold line ends inside quotes. Quotes come in pairs, so a record ends at the first line up to which their
    number is even; where that makes no record, the quote was left open by mistake and its line is bad alone.
    """
    start = 0
    while start < len(lines):
        end, quotes = start, lines[start].count('"')
        while quotes % 2 and end + 1 < len(lines) and end - start < _MAX_CELL_LINES:
            end += 1
            quotes += lines[end].count('"')
        record = _parse("\n".join(lines[start : end + 1]), start + 1)
        if end > start and (quotes % 2 or record.wrong):
            record, end = _Record(start + 1, [], "the line is not CSV: a quote is not closed"), start
        if record.wrong or any(cell.strip() for cell in record.cells):
            yield record
        start = end + 1


def _parse(text: str, number: int) -> _Record:
    try:
        text.encode()
        return _Record(number, next(csv.reader(io.StringIO(text, newline=""), strict=True), []))
    except UnicodeEncodeError:  # bytes that were no text
        return _Record(number, [], "the line is not UTF-8 text")
    except csv.Error as error:
        return _Record(number, [], f"the line is not CSV: {error}")


def _check_columns(columns: Sequence[str]) -> str:
    if "id" not in columns:
        found = ", ".join(columns)[:_MAX_SHOWN] or "none"
        return f"found the columns {found}; needed 'id', 'model.hidden', ... with commas between them"
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    return f"found the column {twice[0]!r} twice; needed every column once" if twice else ""


def _misspelt(column: str, columns: Sequence[str]) -> str:
    """A hint where a column is no field but nearly one that no other column has."""
    known = _field_names(RunRow)
    if column in known:
        return ""
    close = difflib.get_close_matches(column, [name for name in known if name not in columns], n=1, cutoff=_LIKENESS)
    return f"the column {column!r} is no field and ignored; did you mean {close[0]!r}?" if close else ""


def _field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        inner = find_model(field.annotation)
        shown = f"{prefix}{field.alias or name}"
        names += [shown] if inner is None else _field_names(inner, f"{shown}.")
    return names


def _read_record(record: _Record, columns: Sequence[str], where: str, dataset: str) -> Line:
    cells, wrong = record.cells, record.wrong
    if any(cell.strip() for cell in cells[len(columns) :]):
        wrong = f"found {len(cells)} cells; needed {len(columns)}, one a column (quote a cell that holds a comma)"
    if wrong:
        return Line(where, None, wrong)
    return _check(_nested(zip(columns, cells, strict=False)), where, dataset)


def _nested(cells: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """``("parallel.tp", "2")`` -> ``{"parallel": {"tp": 2}}``; a cell that is no JSON value is text."""
    found: dict[str, Any] = {part: {} for part in _PARTS}
    for column, cell in cells:
        if not cell.strip():
            continue
        *parents, name = column.split(".")
        place = found
        for parent in parents:
            inner = place.setdefault(parent, {})
            place = inner if isinstance(inner, dict) else place
        place[name] = cell.strip() if name in _TEXTS else _value(cell.strip())
    return found


def _value(cell: str) -> Any:
    try:
        return json.loads(cell.lower() if cell.casefold() in ("true", "false") else cell)
    except (ValueError, RecursionError):
        return cell


def _check(found: dict[str, Any], where: str, dataset: str) -> Line:
    try:
        row = RunRow.model_validate(visible_values(found))
    except ValidationError as error:
        return Line(where, None, explain_validation_error(error, "run", RunRow))
    except RecursionError:
        return Line(where, None, "lists or mappings are nested too deeply; needed the fields of a run")
    return Line(where, row if row.dataset else row.model_copy(update={"dataset": dataset}))

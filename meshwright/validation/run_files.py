"""Files of measured runs, one run a line -> checked rows, and what is wrong with the lines that are none.

In a CSV file the fields of `run_rows` are columns with dotted names (``parallel.tp``); an empty cell is an absent field.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from costmodel.specs import InputError
from hardware_profiles.errors import explain_validation_error
from hardware_profiles.files import read_at_most
from hardware_profiles.json_text import json_kind
from meshwright.files import to_path
from meshwright.validation.run_rows import RunRow

MAX_RUNS_BYTES = 2**28
_MAX_SHOWN = 200
_PARTS = ("model", "hardware", "parallel", "measured")
_TEXTS = ("id", "name", "gpu", "dataset", "source", "runtime")


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
        InputError: when a file cannot be read, or a CSV file has no ``id`` column.
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
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield _read_json(line, f"{path.name}:{number}", path.stem)


def _read_json(content: bytes, where: str, dataset: str) -> Line:
    try:
        found = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        return Line(where, None, "the line is not UTF-8 text")
    except (ValueError, RecursionError) as error:
        return Line(where, None, f"the line is not JSON: {error}"[:_MAX_SHOWN])
    if not isinstance(found, dict):
        return Line(where, None, f"found {json_kind(found)}; needed a JSON object with the fields of a run")
    return _check(found, where, dataset)


def _read_csv(content: bytes, path: Path) -> Iterator[Line]:
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        columns = reader.fieldnames or ()
        if "id" not in columns:
            raise InputError(
                f"{path}: found the columns {', '.join(columns) or 'none'}; needed 'id', 'model.hidden', ..."
            )
        for cells in reader:
            yield _check(_nested(cells), f"{path.name}:{reader.line_num}", path.stem)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text") from error
    except csv.Error as error:
        yield Line(f"{path.name}:{reader.line_num}", None, f"the line is not CSV: {error}")


def _nested(cells: dict[str | Any, str | Any]) -> dict[str, Any]:
    """``{"parallel.tp": "2"}`` -> ``{"parallel": {"tp": 2}}``; a cell that is no JSON value is text."""
    found: dict[str, Any] = {part: {} for part in _PARTS}
    for column, cell in cells.items():
        if not isinstance(column, str) or not isinstance(cell, str) or not cell.strip():
            continue
        *parents, name = column.strip().split(".")
        place = found
        for parent in parents:
            inner = place.setdefault(parent, {})
            place = inner if isinstance(inner, dict) else place
        place[name] = cell.strip() if name in _TEXTS else _value(cell.strip())
    return found


def _value(cell: str) -> Any:
    try:
        return json.loads(cell.lower() if cell.casefold() in ("true", "false") else cell)
    except ValueError:
        return cell


def _check(found: dict[str, Any], where: str, dataset: str) -> Line:
    try:
        row = RunRow.model_validate(found)
    except ValidationError as error:
        return Line(where, None, explain_validation_error(error, "run", RunRow))
    return Line(where, row if row.dataset else row.model_copy(update={"dataset": dataset}))

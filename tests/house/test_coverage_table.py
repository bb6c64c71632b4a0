"""docs/coverage.md says where every system of the source documents lives; every cell must be true.

A cell is a dotted Python name that imports, `axis NAME=VALUE` (a searched axis), `rule NAME`, `guide NAME` (a strategy of the
decision guide), `export NAME`, a test id that exists, a citation, "later" (not built yet) or "refused because ...".
"""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = ("cost model", "planner", "explanation", "executor", "export", "test", "citation")


def read_rows() -> list[tuple[str, dict[str, str]]]:
    rows = []
    for line in (ROOT / "docs/coverage.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if (
            line.startswith("|")
            and len(cells) == len(COLUMNS) + 1
            and cells[0] not in ("system",)
            and not line.startswith("|-")
        ):
            rows.append((cells[0], dict(zip(COLUMNS, cells[1:], strict=True))))
    return rows


def resolve(dotted: str) -> object:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            target: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            target = getattr(target, attribute)
        return target
    raise ModuleNotFoundError(dotted)


def check_axis(text: str) -> None:
    from costmodel.runtimes.grid import RECOMPUTE_KINDS
    from costmodel.specs import ParallelConfig

    name, _, value = text.partition("=")
    if name == "recompute":
        assert value in RECOMPUTE_KINDS
        return
    assert name in ParallelConfig.model_fields
    if value:
        parsed: object = int(value) if value.isdigit() else {"true": True}.get(value, value)
        ParallelConfig.model_validate({name: parsed})


def check_cell(cell: str) -> None:
    if cell == "later" or cell.startswith("refused because "):
        return
    for text in re.findall(r"`([^`]+)`", cell) or [cell]:
        kind, _, rest = text.partition(" ")
        if kind == "axis":
            check_axis(rest)
        elif kind == "rule":
            from costmodel.runtimes.rules import RULES

            assert rest in {rule.name for rule in RULES}
        elif kind == "guide":
            assert f'"{rest}"' in (ROOT / "planner").joinpath("guide_options.py").read_text()
        elif kind == "export":
            from meshwright.exporters import EXPORTERS

            assert rest in EXPORTERS
        elif text.startswith("tests/"):
            path, _, name = text.partition("::")
            assert re.search(rf"def {re.escape(name)}\b", (ROOT / path).read_text()), text
        else:
            resolve(text)


ROWS = read_rows()


def test_every_system_of_the_documents_has_a_row() -> None:
    names = {name for name, _ in ROWS}
    assert len(ROWS) >= 40
    for system in (
        "Parameter server",
        "GPipe",
        "Megatron-LM tensor parallelism",
        "ZeRO stage 3",
        "ZeRO-Infinity",
        "OneFlow SBP",
    ):
        assert system in names


@pytest.mark.parametrize(("system", "cells"), ROWS, ids=[name for name, _ in ROWS])
def test_cells_resolve(system: str, cells: dict[str, str]) -> None:
    assert re.search(r"https?://|arXiv|OSDI|doi", cells.pop("citation")), f"{system} needs a citation"
    for column, cell in cells.items():
        assert cell, f"{system}: the cell of {column} is empty"
        check_cell(cell)

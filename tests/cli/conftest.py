"""Run the command line in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from meshwright.cli.app import main


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """`cli("plan", "--model", ...)` in an empty folder, 100 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object, columns: int = 100) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run

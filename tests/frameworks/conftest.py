"""The frameworks live in an environment of their own; each is asked in one process, since their imports take seconds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright.folders import write_folder

ORACLES = Path(__file__).parent / "oracles"
# Prints its words, its environment, and the file that --hostfile names, which is gone when the script has ended.
_STAND_IN = """\
#!/bin/sh
printf '%s\\0' "$@" ''
env -0
printf '\\0'
last=
for word; do
    if [ "$last" = --hostfile ]; then cat "$word"; fi
    last="$word"
done
"""
Ask = Callable[[str, Any], Any]


@pytest.fixture(scope="session")
def frameworks_python() -> str:
    """The interpreter that has the frameworks; without it the run fails, since a check that is skipped proves nothing."""
    python = os.environ.get("FRAMEWORKS_PYTHON", "")
    assert python, "FRAMEWORKS_PYTHON is not set: run these with `make frameworks-check`"
    return python


@pytest.fixture(scope="session")
def ask(frameworks_python: str) -> Ask:
    """ask(name, question): the JSON answer of one oracle, which runs under the frameworks' interpreter."""

    def run(name: str, question: Any) -> Any:
        done = subprocess.run(
            [frameworks_python, "-W", "ignore", str(ORACLES / f"{name}_oracle.py")],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "DS_ACCELERATOR": "cpu",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": "",
            },
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """start(files, program): writes an export, starts its script with a stand-in for the program and returns its words."""
    tools = tmp_path_factory.mktemp("tools")

    def run(files: dict[str, str], program: str, **environment: str) -> dict[str, Any]:
        stand_in = tools / program
        if not stand_in.exists():
            stand_in.write_text(_STAND_IN)
            stand_in.chmod(0o755)
        folder = tmp_path_factory.mktemp("export")
        write_folder(folder, files)
        done = subprocess.run(
            ["bash", str(folder / "launch.sh")],
            env={"PATH": f"{tools}:{os.environ['PATH']}", "RDZV_ENDPOINT": "node0:29500", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        words = done.stdout.split("\0")
        end = words.index("")  # no argument of ours is empty
        variables = words.index("", end + 1)
        made = dict(pair.split("=", 1) for pair in words[end + 1 : variables])
        return {"folder": str(folder), "arguments": words[:end], "environment": made, "hosts": words[variables + 1]}

    return run

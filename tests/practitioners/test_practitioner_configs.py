"""Configs of practitioners' reports, read with ``estimate --from``: the verdict must be the one that the thread reported.

A case is a folder of ``configs``: the config as its framework takes it, a model where the catalogue has none, and ``case.yaml``:

    case      id in practitioner_cases.jsonl; the folder's name where it is left out
    file      the config
    model     a catalogue name or a file of the folder
    cluster   as on the command line
    runtime   where the target's own is not the stack of the report
    given     what the config leaves open: option -> value
    verdict   fits | borderline | out_of_memory | refused
    device_gb lowest and highest prediction of a device's memory, in GB, where the thread measured it
    message   of a refusal, a pattern
    complete  false where the report leaves something out that decides; it is then ours, and `note` says what
    note      what the report says, and what it does not
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from practitioner_cases import load_cases

from meshwright.cli.app import main
from planner.cautions import BORDERLINE_FRACTION

CONFIGS = Path(__file__).with_name("configs")
FOLDERS = sorted(path.parent for path in CONFIGS.glob("*/case.yaml"))
VERDICTS = {"fits", "borderline", "out_of_memory", "refused"}
KEYS = {"case", "file", "model", "cluster", "runtime", "given", "verdict", "device_gb", "message", "complete", "note"}


def case_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8"))
    return {"case": folder.name, "complete": True, "given": {}, **content}


def arguments_of(folder: Path, case: dict[str, Any]) -> list[str]:
    model = folder / case["model"] if (folder / case["model"]).exists() else case["model"]
    words = ["estimate", "--from", str(folder / case["file"]), "--model", str(model), "--cluster", case["cluster"]]
    words += ["--runtime", case["runtime"]] if "runtime" in case else []
    return words + [word for name, value in case["given"].items() for word in (f"--{name}", str(value))]


def verdict_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, float | None, str]:
    """The verdict, the predicted memory of a device in GB, and what stands on stderr."""
    code = main([*arguments, "--json", "--ignore-memory"])
    shown = capsys.readouterr()
    if code == 2:
        return "refused", None, shown.err
    estimate = json.loads(shown.out)
    memory, capacity = estimate["peak_memory_bytes"]["device"], estimate["memory_capacity_bytes"]
    share = memory / capacity
    word = "out_of_memory" if share > 1 else "borderline" if share > BORDERLINE_FRACTION else "fits"
    assert estimate["fits"] == (share <= 1)
    assert main(arguments) == (3 if share > 1 else 0)
    again = capsys.readouterr()
    assert ("memory is borderline" in again.err) == (word == "borderline")
    return word, memory / 1e9, shown.err


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_verdict_is_the_thread_s(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = case_of(folder)
    word, memory, told = verdict_of(arguments_of(folder, case), capsys)
    assert word == case["verdict"], told
    if word == "refused":
        assert re.search(case["message"], told), told
        assert told.splitlines()[-1].startswith("error: ")
        assert told.count("error: ") == 1
    if "device_gb" in case:
        assert memory is not None
        assert case["device_gb"][0] <= memory <= case["device_gb"][1]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_a_case_says(folder: Path) -> None:
    case, cases = case_of(folder), load_cases()
    assert set(case) <= KEYS
    assert case["case"] in cases
    assert case["verdict"] in VERDICTS
    assert ("message" in case) == (case["verdict"] == "refused")
    assert len(case["note"].split()) >= 5
    assert (folder / case["file"]).exists()


def test_the_pipeline_that_was_slower_is_predicted_slower(capsys: pytest.CaptureFixture[str]) -> None:
    """neox903: 20B with pp=4 reached a fifth of the rate that it has with pp=1; where it fits, pp=1 is the faster one."""
    assert _seconds(CONFIGS / "neox903-b", capsys) < _seconds(CONFIGS / "neox903-a", capsys)


def _seconds(folder: Path, capsys: pytest.CaptureFixture[str]) -> float:
    assert main([*arguments_of(folder, case_of(folder)), "--json"]) == 0
    seconds: float = json.loads(capsys.readouterr().out)["step_time_seconds"]["value"]
    return seconds

"""Stages on the command line: recomputation stage by stage, even splits, and an interrupted proof."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SIZES = ("--model", "llama-3-8b", "--cluster", "8xH100-SXM", "--global-batch-size", "64", "--sequence-length", "4096")
LAYOUT = ("--pipeline-parallel-size", "2", "--data-parallel-shard-size", "4", "--zero-stage", "3")


def test_estimate_takes_recomputation_stage_by_stage(cli: Callable[..., Any]) -> None:
    done = cli("estimate", *SIZES, *LAYOUT, "--recompute", "full:2,none", "-o", "plan.json")
    assert done.code == 0
    stages = json.loads(Path("plan.json").read_text())["stages"]
    assert [(stage["recompute"]["kind"], stage["recompute"]["num_layers"]) for stage in stages] == [
        ("full", 2),
        ("none", None),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("full:2,none,none", "recompute lists 3 stages; needed 2"),
        ("full:17,none", "num_layers 17 of its 16 layers"),
        (
            "full:0,none",
            "recompute 'full:0' has '0' as its number of layers; needed KIND:N with a whole number of at least 1",
        ),
        ("full:,none", "recompute 'full:' has '' as its number of layers"),
        ("none:2,none", "needed is no number with recompute none; set recompute.num_layers of stage 0 to null"),
    ],
)
def test_recomputation_that_no_stage_has_is_refused(words: str, said: str, cli: Callable[..., Any]) -> None:
    done = cli("estimate", *SIZES, *LAYOUT, "--recompute", words)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--fix", "recompute_layers=some"), "valid: all (layers of a stage), any (number of them)"),
        (("--allow", "recompute_layers=all,any"), "takes one value"),
        (("--fix", "layers_per_stage=16,15"), "sums to 31 layers"),
        (
            ("--fix", "layers_per_stage=odd"),
            "layers_per_stage is 'odd'; needed whole numbers of at least 1, one for each stage",
        ),
        (("--fix", "layers_per_stage=16,0"), "such as 10,12,12,10, or the word even"),
        (("--fix", "recompute=none", "--fix", "recompute_layers=any"), "recompute none leaves no layers"),
        (("--fix", "layers_per_stage=16,16", "--runtime", "deepspeed"), "runtime deepspeed has no pipelines"),
        (("--time-limit", "0"), "needed a whole number of at least 1"),
    ],
)
def test_wrong_statements_about_stages_are_refused(option: tuple[str, ...], said: str, cli: Callable[..., Any]) -> None:
    done = cli("plan", *SIZES, *option)
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_ctrl_c_prints_the_best_plan_known_with_its_gap() -> None:
    """Llama-3.1-405B on 16,384 devices takes half a minute to prove; it is interrupted at the first word of progress."""
    code = "from meshwright.cli.app import main; raise SystemExit(main())"
    sizes = ("--model", "llama-3.1-405b", "--cluster", "2048x8xH100-SXM", "--global-batch-size", "2048")
    command = [sys.executable, "-c", code, "plan", *sizes, "--sequence-length", "8192", "--exact", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "candidates open" in line
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=120)
    certificate = json.loads(stdout)["certificate"]
    assert process.returncode == 0
    assert certificate["gap"] > 0
    assert certificate["statement"].endswith("it was interrupted")

"""An output that is also an input is refused, with --force too, by whatever name it is called."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_documents import sample_plan, sample_site

from hardware_profiles.loader import load_cluster, save_cluster
from meshwright import save_plan, save_site
from meshwright.validation.report import BEGIN, END

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "benchmarks/data/hardware_reports/nvidia_smi/h100-sxm-8_driver-565.txt"
PLAN = ("plan", "--model", "llama-3-8b", "--global-batch-size", "64", "--sequence-length", "2048")
ESTIMATE = ("estimate", *PLAN[1:])
CLUSTER = ("--cluster", "2x8xA100-SXM-80GB", "--runtime", "megatron")

CASES: tuple[tuple[str, ...], ...] = (
    ("replay", "runs.md", "--report", "runs.md"),
    ("replay", "runs.md", "--report", "link.md"),
    ("replay", "runs.svg", "--report", "runs_2.md", "--readme", "runs.md", "--notes", "runs.md"),
    ("replay", "plot.svg", "--report", "plot.md"),
    ("replay", "runs.jsonl", "--report", "notes.md", "--notes", "notes.md"),
    ("replay", "runs.jsonl", "--report", "new.md", "--readme", "notes.md", "--notes", "notes.md"),
    ("replay", "runs.md", "--report", "new.md", "--readme", "runs.md"),
    (*PLAN, *CLUSTER, "--site", "site.yaml", "-o", "site.yaml"),
    (*PLAN, *CLUSTER, "--site", "site.yaml", "-o", "./hard_link.yaml"),
    (*PLAN, "--cluster", "cluster.yaml", "-o", "cluster.yaml"),
    (*ESTIMATE, "--cluster", "cluster.yaml", "-o", "cluster.yaml"),
    ("estimate", "plan.json", "-o", "plan.json"),
    ("export", "plan.json", "--to", "json", "-o", "plan.json"),
    ("run", "plan.json", "-o", "plan.json"),
    ("calibrate", "plan.yaml", "runs.jsonl", "-o", "plan.yaml"),
    ("calibrate", "runs.jsonl", "--cluster", "cluster.yaml", "-o", "cluster.yaml"),
    ("hardware", "detect", "--nvidia-smi", "smi.yaml", "-o", "smi.yaml"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Every kind of input, under names that outputs may have too."""
    shutil.copy(ROOT / "examples/runs.jsonl", tmp_path / "runs.jsonl")
    for name in ("runs.md", "runs.svg", "plot.svg", "notes.md"):
        (tmp_path / name).write_text(f"{(tmp_path / 'runs.jsonl').read_text()}\n{BEGIN}\n{END}\n")
    (tmp_path / "link.md").symlink_to("runs.md")
    save_site(sample_site(), tmp_path / "site.yaml")
    os.link(tmp_path / "site.yaml", tmp_path / "hard_link.yaml")
    save_cluster(load_cluster("8xA100-SXM-80GB"), tmp_path / "cluster.yaml")
    for name in ("plan.json", "plan.yaml"):
        save_plan(sample_plan(), tmp_path / name)
    shutil.copy(REPORT, tmp_path / "smi.yaml")
    return tmp_path


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_no_input_is_replaced(arguments: tuple[str, ...], folder: Path, cli: Callable[..., Any]) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = cli(*arguments, "--force")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: output ")
    assert "is read as an input here; choose another name" in result.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_readme_that_is_a_link_stays_one(folder: Path, cli: Callable[..., Any]) -> None:
    (folder / "readme.md").symlink_to("notes.md")
    assert cli("replay", "runs.jsonl", "--report", "new.md", "--readme", "readme.md").code == 0
    assert (folder / "readme.md").is_symlink()
    assert "| dataset" in (folder / "notes.md").read_text()

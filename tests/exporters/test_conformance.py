"""Every target keeps the same promises; a new one is tested the day it is registered."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_plans import SBATCH_OPTIONS, TARGETS, plan_for

from costmodel.specs import InputError, ParallelConfig, Plan, Rejection
from meshwright import export, load_plan
from meshwright.exporters import LAUNCHERS, find_exporter, render
from meshwright.exporters.base import Exporter

EVERY = pytest.mark.parametrize("target", TARGETS)
ODD_NAMES = ("plain", "it's mine", "a $(touch pwned) b", 'quote"', "-n", "é ü")


def exporter_of(target: str) -> Exporter:
    return find_exporter(target, runtime=plan_for(target).runtime.name)


def output_of(target: str, folder: Path, name: str = "out") -> Path:
    suffix = exporter_of(target).suffix
    return folder / (name if suffix is None else f"{name}{suffix}")


def export_of(target: str, folder: Path, name: str = "out", **options: bool) -> tuple[Path, ...]:
    written = export(plan_for(target), target, output_of(target, folder, name), **options)  # type: ignore[arg-type]
    assert isinstance(written, tuple)
    return written


@EVERY
def test_what_a_target_declares(target: str) -> None:
    exporter = exporter_of(target)
    assert exporter.name == target
    assert exporter.tested_versions
    assert exporter.fields <= set(ParallelConfig.model_fields)
    assert (exporter.read is None) == (exporter.recognises is None)


@EVERY
def test_the_main_file_comes_first(target: str) -> None:
    files = render(plan_for(target), target)
    assert isinstance(files, dict)
    exporter = exporter_of(target)
    assert next(iter(files)) == (exporter.main if exporter.suffix is None else f"plan{exporter.suffix}")
    assert all("/" not in name and text.endswith("\n") for name, text in files.items())


@EVERY
def test_exports_are_the_same_every_time(target: str) -> None:
    assert render(plan_for(target), target) == render(plan_for(target), target)


@EVERY
def test_files_say_what_they_are(target: str, tmp_path: Path) -> None:
    """Target version, hash, prediction and command: in the header of scripts, else in the manifest or the plan itself."""
    plan = plan_for(target)
    files = render(plan, target, command="meshwright export p.json")
    assert isinstance(files, dict)
    exporter = exporter_of(target)
    for name, text in files.items():
        if name.endswith((".sh", ".sbatch")):
            header = text.split("set -euo pipefail")[0]
            assert plan.plan_hash in header
            assert exporter.tested_versions[0] in header
            assert "# predicted: step time 8 s" in header
            assert "# written by: meshwright export p.json" in header
    if exporter.suffix is None and any(name.endswith((".json", ".yaml")) for name in files if "plan.json" not in name):
        manifest = json.loads(files["plan.manifest.json"])
        assert (manifest["target"], manifest["plan_hash"]) == (target, plan.plan_hash)
        assert manifest["target_version"] == exporter.tested_versions[0]
        assert manifest["prediction"]["step_time_seconds"]["value"] == 8.0
        assert manifest["command"] == "meshwright export p.json"


@EVERY
@pytest.mark.parametrize("name", ODD_NAMES)
def test_scripts_are_sound_whatever_the_folder_is_called(
    target: str, name: str, tmp_path: Path, check_script: Callable[[Path], None]
) -> None:
    written = export_of(target, tmp_path, name)
    scripts = [path for path in written if path.suffix in (".sh", ".sbatch")]
    assert bool(scripts) == (exporter_of(target).suffix is None)
    for script in scripts:
        check_script(script)
        assert os.access(script, os.X_OK)
    assert not list(tmp_path.rglob("pwned"))


@EVERY
def test_a_plan_that_breaks_a_rule_is_not_written(target: str, tmp_path: Path) -> None:
    plan = plan_for(target)
    parallel = plan.parallel.model_copy(update={"micro_batch_size": 7})
    broken = plan.model_copy(update={"parallel": parallel})
    try:
        refused: object = export(broken, target, output_of(target, tmp_path))
    except InputError as error:
        refused = error
    assert isinstance(refused, Rejection | InputError)
    assert "7" in str(refused)
    assert list(tmp_path.iterdir()) == []


@EVERY
def test_existing_files_stay_without_force(target: str, tmp_path: Path) -> None:
    written = export_of(target, tmp_path)
    for path in written:
        for other in written:
            other.unlink(missing_ok=True)
        path.write_text("mine")
        with pytest.raises(InputError, match="exists already"):
            export_of(target, tmp_path)
        assert path.read_text() == "mine"
        assert [other for other in written if other.exists()] == [path]
    assert export_of(target, tmp_path, force=True) == written
    assert written[-1].read_text() != "mine"


@EVERY
def test_places_that_cannot_be_written(target: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("mine")
    with pytest.raises(InputError, match="a file"):
        export(plan_for(target), target, output_of(target, tmp_path / "a file"))
    with pytest.raises(InputError, match=r"folder|file"):
        export(plan_for(target), target, tmp_path / "a file" if exporter_of(target).suffix is None else tmp_path)
    assert (tmp_path / "a file").read_text() == "mine"
    (tmp_path / "link").symlink_to("nowhere")
    for folder in (tmp_path / "link", tmp_path / "link/below"):
        with pytest.raises(InputError, match=r"link to nothing|does not exist|exists already"):
            export(
                plan_for(target), target, folder if exporter_of(target).suffix is None else output_of(target, folder)
            )
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(InputError, match=r"cannot be written|no permission|does not exist"):
        export(plan_for(target), target, output_of(target, Path("/proc/nowhere")))


@EVERY
def test_a_plan_file_is_never_replaced_by_its_own_export(target: str, tmp_path: Path) -> None:
    """Whatever the file of the plan is called, even ``--force`` does not lose it."""
    files = render(plan_for(target), target)
    assert isinstance(files, dict)
    exporter = exporter_of(target)
    for name in (name for name in files if name.endswith((".json", ".yaml"))):
        source = tmp_path / name
        source.write_text(plan_for(target).model_dump_json())  # JSON is YAML too
        output = tmp_path if exporter.suffix is None else source
        with pytest.raises(InputError, match="read as an input"):
            export(source, target, output, force=True)
        assert load_plan(source) == plan_for(target)
        source.unlink()


@EVERY
def test_a_version_that_was_not_tested_is_refused(target: str) -> None:
    with pytest.raises(InputError, match="was not tested with version 0; tested: "):
        render(plan_for(target), target, version="0")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_slurm_wraps_every_launcher(launcher: str, tmp_path: Path, check_script: Callable[[Path], None]) -> None:
    plan = plan_for(launcher)
    written = export(plan, "slurm", tmp_path / "job", launcher=launcher)
    assert isinstance(written, tuple)
    assert {path.name for path in written} >= {"job.sbatch", "launch.sh"}
    check_script(written[0])
    keys = re.findall(r"^#SBATCH --([a-z-]+)", written[0].read_text(), re.MULTILINE)
    assert {"nodes", "ntasks-per-node", "gpus-per-node", "time"} <= set(keys) <= SBATCH_OPTIONS
    assert len(keys) == len(re.findall(r"^#SBATCH", written[0].read_text(), re.MULTILINE))


def test_slurm_starts_the_launcher_of_the_runtime() -> None:
    for name in LAUNCHERS:
        plan = plan_for(name)
        files = render(plan, "slurm")
        own = render(plan, name)
        if isinstance(files, dict) and isinstance(own, dict):
            assert "launch.sh" in files


def test_slurm_around_no_launcher() -> None:
    with pytest.raises(InputError, match="unknown launcher 'json'"):
        find_exporter("slurm", launcher="json")
    with pytest.raises(InputError, match="--launcher is for --to slurm"):
        find_exporter("torchrun", launcher="torchrun")
    with pytest.raises(InputError, match="runtime aleph has no launcher here; name one with --launcher: torchrun"):
        find_exporter("slurm", runtime="aleph")


def with_plan(plan: Plan, command: str) -> Plan:
    assert plan.provenance is not None
    return plan.model_copy(update={"provenance": plan.provenance.model_copy(update={"command": command})})


@pytest.mark.parametrize("target", [*LAUNCHERS, "slurm"])
def test_commands_with_line_breaks_stay_comments(target: str) -> None:
    files = render(with_plan(plan_for(target), "meshwright plan 'a\nrm -rf /\n'"), target, command="x\nrm -rf /")
    assert isinstance(files, dict)
    for name, text in files.items():
        if name.endswith((".sh", ".sbatch")):
            assert not re.search(r"^rm", text, re.MULTILINE)

"""Folders of files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from costmodel.specs import InputError
from meshwright import folders
from meshwright.folders import check_folder, folder_files, write_folder

FILES = {"launch.sh": "a\n", "inner/plan.json": "b\n"}


def test_files_and_folders_are_made(tmp_path: Path) -> None:
    written = write_folder(tmp_path / "a" / "b", FILES)
    assert [path.relative_to(tmp_path).as_posix() for path in written] == ["a/b/launch.sh", "a/b/inner/plan.json"]
    assert [path.read_text() for path in written] == ["a\n", "b\n"]
    assert [os.access(path, os.X_OK) for path in written] == [True, False]


@pytest.mark.parametrize("existing", [False, True])
def test_a_write_that_fails_leaves_nothing_new(existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second file meets a full disk; what stood there before stays."""
    folder = tmp_path / "out"
    if existing:
        folder.mkdir()
        (folder / "mine").write_text("mine")
    write = folders.write_text

    def fail(path: Path, text: str, **options: bool) -> Path:
        if path.name == "plan.json":
            raise InputError("no space left")
        return write(path, text, **options)

    monkeypatch.setattr(folders, "write_text", fail)
    with pytest.raises(InputError, match="no space left"):
        write_folder(folder, FILES)
    assert folder.exists() == existing
    if existing:
        assert folder_files(folder) == ("mine",)


def test_checks_leave_no_trace(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "new" / "er", ("x",), force=False) == tmp_path / "new" / "er"
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "out" / "launch.sh").mkdir(parents=True)
    for path, message in (
        (tmp_path / "file", "is a file; needed the name of a folder"),
        (tmp_path / "file" / "in", "is a file"),
        (tmp_path / "out", "is a folder; give the name of a file"),
        (Path("\0"), "needed the name of a file"),
    ):
        with pytest.raises(InputError, match=message):
            write_folder(path, FILES)
    assert (tmp_path / "file").read_text() == "mine"


def test_names_of_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert folder_files(tmp_path) == ("a", "b")
    with pytest.raises(InputError, match="cannot be read"):
        folder_files(tmp_path / "nowhere")

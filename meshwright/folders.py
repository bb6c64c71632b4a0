"""Write a folder of text files: all of them or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from costmodel.specs import InputError
from hardware_profiles.files import is_special
from meshwright.files import check_output, refuse_inputs, to_path, write_text

EXECUTABLE_SUFFIXES = (".sh", ".sbatch")


def check_folder(path: str | Path, names: Iterable[str], *, force: bool, inputs: Iterable[object] = ()) -> Path:
    """The folder, after making sure that these files may be written there; nothing is left behind.

    Args:
        path: the folder; it and the folders above it are created where they are missing.
        names: files in it.
        force: replace those that exist.
        inputs: files that are read, which are never replaced.

    Raises:
        InputError: when it is a file, one of the files exists (without ``force``) or is an input, or nothing may be written.
    """
    path = to_path(path, what="output folder")
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"output {path} is a file; needed the name of a folder")
        for folder in (path, *path.parents):
            if folder.is_symlink() and not folder.exists():
                raise InputError(f"output {path} cannot be made: {folder} is a link to nothing; needed a folder")
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        if not nearest.is_dir():
            raise InputError(f"output {path} cannot be made: {nearest} is a file; needed a folder")
        if nearest != path:
            with tempfile.TemporaryDirectory(dir=nearest):  # asks the file system itself; leaves no trace
                return path
    except PermissionError:
        raise InputError(f"output {path}: no permission to write in the folder {nearest}") from None
    except OSError as error:
        raise InputError(f"output {path} cannot be written: {error.strerror or error}") from None
    sources = tuple(inputs)
    for name in names:
        refuse_inputs(check_output(path / name, force=force), sources)
    return path


def write_folder(
    path: str | Path, files: Mapping[str, str], *, force: bool = False, inputs: Iterable[object] = ()
) -> tuple[Path, ...]:
    """Write all files into the folder or none; scripts may be run by whoever may read them.

    Args:
        path: as in `check_folder`.
        files: name -> text; a name may hold folders ("1/launch.sh").
        force: as in `check_folder`.
        inputs: as in `check_folder`.

    Returns:
        The files, in their order.

    Raises:
        InputError: see `check_folder`.
    """
    path = to_path(path, what="output folder")
    by_folder: dict[Path, list[str]] = {}
    for name in files:
        by_folder.setdefault((path / name).parent, []).append(Path(name).name)
    sources = tuple(inputs)
    for folder, names in by_folder.items():
        check_folder(folder, names, force=force, inputs=sources)
    made = _first_missing(path)
    written: list[Path] = []
    try:
        for name, text in files.items():
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            new = not target.exists()
            write_text(target, text, force=force, executable=target.suffix in EXECUTABLE_SUFFIXES)
            if new:
                written.append(target)
    except BaseException:
        _undo(made, written)
        raise
    return tuple(path / name for name in files)


def _first_missing(path: Path) -> Path | None:
    """The outermost folder that will have to be made, or None."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    return missing[-1] if missing else None


def _undo(made: Path | None, written: list[Path]) -> None:
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)
    for file in written:
        file.unlink(missing_ok=True)


def folder_files(path: Path) -> tuple[str, ...]:
    """Names of the regular files directly in a folder, sorted, hidden ones left out.

    Raises:
        InputError: when it cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            return tuple(
                sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_plain(entry.path))
            )
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _is_plain(path: str) -> bool:
    return Path(path).is_file() and not is_special(Path(path))

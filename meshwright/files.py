"""Read and write the documents people keep: JSON and YAML in, whole files out or nothing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from costmodel.specs import InputError
from hardware_profiles.errors import show_value
from hardware_profiles.files import is_special, read_at_most, read_yaml_mapping, write_text_atomically
from hardware_profiles.json_text import json_kind, parse_json

MAX_DOCUMENT_BYTES = 64 * 1024**2
YAML_SUFFIXES = (".yaml", ".yml")
DOCUMENT_SUFFIXES = (".json", *YAML_SUFFIXES)


def read_document(path: str | Path, *, what: str) -> dict[str, Any]:
    """The mapping that a JSON or YAML file holds.

    A ``.json`` file is read as JSON, ``.yaml`` and ``.yml`` as YAML; any other file as JSON when it
    begins with a brace, else as YAML.

    Args:
        path: the file.
        what: what the file should be, for messages ("plan file").

    Raises:
        InputError: when the file is missing, a folder, unreadable, too large, not text, or not a mapping.
    """
    path = to_path(path, what=what)
    text = read_text(path, what=what)
    if path.suffix in YAML_SUFFIXES or (path.suffix != ".json" and not text.lstrip().startswith("{")):
        return _only_json_values(read_yaml_mapping(path, what), path, what)
    content = parse_json(text, f"{what} {path}")
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a {what}: found {json_kind(content)}; needed an object with named fields")
    return content


def check_output(path: str | Path, *, force: bool, suffixes: tuple[str, ...] = ()) -> Path:
    """The path, after making sure that a file may be written there.

    Raises:
        InputError: when the file exists (without ``force``), is a folder or a device, lies in a folder that is
            missing or not writable, or its suffix is none of ``suffixes``.
    """
    path = to_path(path, what="output")
    if suffixes and path.suffix not in suffixes:
        found = f"the suffix {path.suffix}" if path.suffix else "no suffix"
        needed = f"one of {', '.join(suffixes)}" if len(suffixes) > 1 else suffixes[0]
        raise InputError(f"output {path} has {found}; use {needed}")
    try:
        if path.is_dir():
            raise InputError(f"output {path} is a folder; give the name of a file")
        if is_special(path):
            raise InputError(f"output {path} is a device or a pipe; give the name of a file")
        if os.path.lexists(path) and not force:  # a link to nothing, too, is somebody's
            raise InputError(f"output {path} exists already; choose another name or pass --force to replace it")
        if not path.parent.is_dir():
            raise InputError(f"output {path}: the folder {path.parent} does not exist; create it first")
        with tempfile.TemporaryFile(dir=path.parent):  # asks the file system itself; leaves no trace
            pass
    except PermissionError:
        raise InputError(f"output {path}: no permission to write in the folder {path.parent}") from None
    except OSError as error:
        raise InputError(f"output {path} cannot be written: {error.strerror or error}") from None
    return path


def refuse_inputs(output: str | Path, inputs: Iterable[object]) -> None:
    """Refuse an output that is one of the files it is made from: even ``force`` is no wish to lose those.

    Args:
        output: the file to write.
        inputs: what is read; whatever names no file (a spec, a catalogue name, None) is passed over.

    Raises:
        InputError: when the output is one of them, by whatever name or link.
    """
    target = Path(output)
    for name in inputs:
        if isinstance(name, str | os.PathLike) and str(name) and _is_same_file(target, Path(name)):
            raise InputError(f"output {target} is read as an input here; choose another name, so that nothing is lost")


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except (OSError, ValueError):  # one does not exist yet, or is no path at all
        return False


def to_path(path: str | Path, *, what: str) -> Path:
    """The path itself.

    Raises:
        InputError: when it is no path.
    """
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise InputError(f"{what} is {show_value(path)}; needed the name of a file")
    return Path(path)


def write_text(path: str | Path, text: str, *, force: bool = False, executable: bool = False) -> Path:
    """Write a whole file or nothing; ``executable`` files may be run by whoever may read them.

    Raises:
        InputError: see `check_output`.
    """
    path = check_output(path, force=force)
    write_text_atomically(path, text, force=force)
    if executable:
        mode = path.stat().st_mode
        path.chmod(mode | ((mode & 0o444) >> 2))
    return path


def dump_document(content: dict[str, Any], *, suffix: str) -> str:
    """The content as text: YAML for ``.yaml`` and ``.yml``, else JSON. Both keep every float exactly."""
    if suffix in YAML_SUFFIXES:
        return _dump_yaml(content)
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_text(path: Path, *, what: str, needed: str = "JSON or YAML text") -> str:
    """The whole text of a file; ``what`` and ``needed`` name it in messages.

    Raises:
        InputError: when the file is missing, a folder, unreadable, too large, empty, or not text.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; needed a {what}")
        size = path.stat().st_size
        content = b"" if size > MAX_DOCUMENT_BYTES else read_at_most(path, MAX_DOCUMENT_BYTES)
        if max(size, len(content)) > MAX_DOCUMENT_BYTES:
            found = f"{size:,} bytes" if size > MAX_DOCUMENT_BYTES else "more bytes than that"
            raise InputError(f"{path} is not a {what}: at most {MAX_DOCUMENT_BYTES:,} bytes are read; found {found}")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(f"{path} is not a {what}: found binary data; needed {needed}")
    if not text.strip():
        raise InputError(f"{path} is not a {what}: the file is empty")
    return text


def _only_json_values(content: dict[str, Any], path: Path, what: str) -> dict[str, Any]:
    """YAML can hold dates, bytes and infinities, which no document of ours has."""
    try:
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        reason = "text that is no Unicode"
    except ValueError:
        reason = ".nan or .inf, which is no finite number"
    except TypeError:
        reason = "a date or another value that JSON does not have"
    else:
        return content
    raise InputError(f"{path} is not a {what}: it holds {reason}")


def _dump_yaml(content: dict[str, Any]) -> str:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)

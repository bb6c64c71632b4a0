"""Read and write the documents people keep: JSON and YAML in, whole files out or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

from costmodel.specs import InputError
from hardware_profiles.files import read_yaml_mapping, write_text_atomically

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
    path = Path(path)
    text = _read_text(path, what=what)
    if path.suffix in YAML_SUFFIXES or (path.suffix != ".json" and not text.lstrip().startswith("{")):
        return read_yaml_mapping(path, what)
    content = _parse_json(text, path, what)
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a {what}: found a {type(content).__name__}; needed a mapping of fields")
    return content


def check_output(path: str | Path, *, force: bool, suffixes: tuple[str, ...] = ()) -> Path:
    """The path, after making sure that a file may be written there.

    Raises:
        InputError: when the file exists (without ``force``), is a folder, lies in a missing folder, or
            its suffix is none of ``suffixes``.
    """
    path = Path(path)
    if suffixes and path.suffix not in suffixes:
        found = f"the suffix {path.suffix}" if path.suffix else "no suffix"
        raise InputError(f"output {path} has {found}; use one of {', '.join(suffixes)}")
    try:
        if path.is_dir():
            raise InputError(f"output {path} is a folder; give the name of a file")
        if path.exists() and not force:
            raise InputError(f"output {path} exists already; choose another name or pass --force to replace it")
        if not path.parent.is_dir():
            raise InputError(f"output {path}: the folder {path.parent} does not exist; create it first")
    except OSError as error:
        raise InputError(f"output {path} cannot be written: {error.strerror or error}") from None
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"output {path}: no permission to write in the folder {path.parent}")
    return path


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


def _read_text(path: Path, *, what: str) -> str:
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; needed a {what}")
        size = path.stat().st_size
        if size > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path} is not a {what}: found {size} bytes; at most {MAX_DOCUMENT_BYTES} are read")
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(f"{path} is not a {what}: found binary data; needed JSON or YAML text")
    if not text.strip():
        raise InputError(f"{path} is not a {what}: the file is empty")
    return text


def _parse_json(text: str, path: Path, what: str) -> Any:
    def refuse_constant(name: str) -> NoReturn:
        raise InputError(f"{path} is not a {what}: found {name}, which is not a number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{path} is not a {what}: the key {twice!r} stands twice")
        return content

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        where = "the file ends too early" if error.pos >= len(text.rstrip()) else error.msg
        raise InputError(f"{path} is not valid JSON: {where} (line {error.lineno}, column {error.colno})") from None
    except InputError:
        raise
    except (RecursionError, ValueError) as error:  # a number with thousands of digits, for instance
        raise InputError(f"{path} is not a {what}: {error}") from None


def _dump_yaml(content: dict[str, Any]) -> str:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)

"""Reading YAML that a user wrote, and writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from hardware_profiles.errors import show_path, show_value
from hardware_profiles.spec import InputError

_MAX_FILE_BYTES = 4 * 2**20
_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times faster, where built


class _StrictLoader(_BaseLoader):  # type: ignore[misc]
    """Refuses a key that stands twice in one mapping; YAML itself would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key_node.value} stands twice", problem_mark=key_node.start_mark
                    )
                seen.add(key_node.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml_mapping(path: Path, what: str) -> dict[str, Any]:
    """The mapping at the top of a YAML (or JSON) file.

    Args:
        path: the file.
        what: what the file should be, for the message, for example ``cluster file``.

    Raises:
        InputError: the file is missing, a directory, unreadable, too large, not text, not YAML, empty, not a
            mapping, or repeats a key.
    """
    name = f"{what} {show_path(path)}"
    text = _read_text(path, name)
    try:
        content: Any = yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{name}: not valid YAML{place}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name}: not valid YAML: {' '.join(str(error).split())[:200]}") from error
    if content is None:
        raise InputError(f"{name}: the file is empty; needed a mapping of keys to values")
    if not isinstance(content, dict):
        raise InputError(f"{name}: found {show_value(content)}; needed a mapping of keys to values")
    return content


def write_text_atomically(path: Path, text: str, *, force: bool = False) -> None:
    """Write a file so that a reader sees the old content or the whole new one.

    Raises:
        InputError: the file exists and ``force`` is not given, or it cannot be written there.
    """
    if path.is_dir():
        raise InputError(f"{show_path(path)} is a directory; needed the name of a file")
    if path.exists() and not force:
        raise InputError(f"{show_path(path)} exists already; choose another name, or overwrite it with --force")
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write {show_path(path)}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read_text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"{name}: there is no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{name}: this is a directory; needed a YAML file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{name}: cannot read it: {reason}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise InputError(f"{name}: larger than {_MAX_FILE_BYTES} bytes; needed a YAML file of a few kilobytes")
    if b"\0" in content:
        raise InputError(f"{name}: this is a binary file; needed YAML text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; needed YAML text") from error


def _umask() -> int:
    """The rights mask of this process: mkstemp makes private files, the result should be an ordinary new file."""
    current = os.umask(0)
    os.umask(current)
    return current

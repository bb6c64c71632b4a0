"""Reading YAML that a user wrote, and writing a file whole or not at all."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from hardware_profiles.errors import show_path, show_value
from hardware_profiles.spec import InputError

_MAX_FILE_BYTES = 4 * 2**20
_MAX_NODES = 1_000_000  # aliases written out; a file of the largest size holds about as many
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


# YAML 1.1 takes 1e-08 and 1.5e8 for text; JSON, which people paste into YAML, and YAML 1.2 take them for numbers.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)


def read_own_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file of this package, which nobody else writes."""
    content: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_BaseLoader)
    return content


def read_yaml_mapping(path: Path, what: str, *, check: Callable[[Any], None] | None = None) -> dict[str, Any]:
    """The mapping at the top of a YAML (or JSON) file.

    Args:
        path: the file.
        what: what the file should be, for the message, for example ``cluster file``.
        check: looks at the content, mapping or not, and may raise `InputError`.

    Raises:
        InputError: the file is missing, a directory, unreadable, too large (with its aliases written out too), not
            text, not YAML, empty, not a mapping, or repeats a key; and what ``check`` raises.
    """
    name = f"{what} {show_path(path)}"
    return parse_yaml_mapping(_read_text(path, name), name, check=check)


def parse_yaml_mapping(text: str, name: str, *, check: Callable[[Any], None] | None = None) -> dict[str, Any]:
    """The mapping at the top of a YAML text; ``name`` starts the sentence of errors, the rest is as in `read_yaml_mapping`."""
    try:
        content = _parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{name}: not valid YAML{place}: {reason}") from error
    except RecursionError as error:
        raise InputError(f"{name}: not valid YAML: lists or mappings are nested too deeply") from error
    except yaml.YAMLError as error:
        raise InputError(f"{name}: not valid YAML: {' '.join(str(error).split())[:200]}") from error
    except ValueError as error:  # a number of thousands of digits, a date such as 2024-13-40
        raise InputError(f"{name}: not valid YAML: it holds a number or date that cannot be read") from error
    if content is None:
        raise InputError(f"{name}: the file is empty; needed a mapping of keys to values")
    if check is not None:
        try:
            check(content)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{name}: found {show_value(content)}; needed a mapping of keys to values")
    return content


def read_at_most(path: Path, most_bytes: int) -> bytes:
    """The first ``most_bytes`` + 1 bytes of a file, so that a longer one can be told.

    A named pipe that nobody writes to reads as empty; waiting for a writer would hang.

    Raises:
        OSError: the file is missing, a directory or unreadable.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        os.set_blocking(file.fileno(), True)
        return file.read(most_bytes + 1)


def is_special(path: Path) -> bool:
    """Whether the path is there and neither a regular file nor a directory: a device, a pipe, a socket."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_text_atomically(path: Path, text: str, *, force: bool = False) -> None:
    """Write a file so that a reader sees the old content or the whole new one.

    Raises:
        InputError: the file exists and ``force`` is not given, it is a device or a pipe, or it cannot be written
            there.
    """
    if is_special(path):
        raise InputError(f"{show_path(path)} is a device or a pipe; needed the name of a file")
    if path.is_dir():
        raise InputError(f"{show_path(path)} is a directory; needed the name of a file")
    if os.path.lexists(path) and not force:
        raise InputError(f"{show_path(path)} exists already; choose another name, or overwrite it with --force")
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".meshwright-")
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
        content = read_at_most(path, _MAX_FILE_BYTES)
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


def _parse_yaml(text: str) -> Any:
    loader = _StrictLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _count_nodes(root, {}) > _MAX_NODES:
            raise yaml.YAMLError("its aliases (*name) multiply to millions of values; write the values out")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _count_nodes(node: yaml.Node, counts: dict[int, int]) -> int:
    """Nodes below and including ``node`` with every alias written out; ``counts`` remembers those already counted."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in counts:
        if not counts[id(node)]:
            raise yaml.YAMLError("an alias (*name) stands inside what it names; write the values out")
        return counts[id(node)]
    counts[id(node)] = 0
    pairs = isinstance(node, yaml.MappingNode)
    inner = [part for pair in node.value for part in pair] if pairs else node.value
    counts[id(node)] = total = 1 + sum(_count_nodes(part, counts) for part in inner)
    return total


def _umask() -> int:
    """The rights mask of this process: mkstemp makes private files, the result should be an ordinary new file."""
    current = os.umask(0)
    os.umask(current)
    return current

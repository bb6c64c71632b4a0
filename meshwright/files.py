"""Read and write the documents people keep: JSON and YAML in, whole files out or nothing."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NoReturn

from costmodel.specs import InputError

MAX_DOCUMENT_BYTES = 256 * 1024**2
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
    is_json = path.suffix == ".json" or (path.suffix not in YAML_SUFFIXES and text.lstrip().startswith("{"))
    content = _parse_json(text, path, what) if is_json else _parse_yaml(text, path, what)
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise InputError(f"{path} is not a {what}: found {found}; needed a mapping of fields")
    return content


def check_output(path: str | Path, *, force: bool, suffixes: tuple[str, ...] = ()) -> Path:
    """The path, after making sure that a file may be written there.

    Raises:
        InputError: when the file exists (without ``force``), is a folder, lies in a missing folder, or
            its suffix is none of ``suffixes``.
    """
    path = Path(path)
    if suffixes and path.suffix not in suffixes:
        raise InputError(f"output {path}: suffix {path.suffix!r} is not supported; use one of {', '.join(suffixes)}")
    if path.is_dir():
        raise InputError(f"output {path} is a folder; give the name of a file")
    if path.exists() and not force:
        raise InputError(f"output {path} exists already; choose another name or pass --force to replace it")
    if not path.parent.is_dir():
        raise InputError(f"output {path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"output {path}: no permission to write in the folder {path.parent}")
    return path


def write_text(path: str | Path, text: str, *, force: bool = False, executable: bool = False) -> Path:
    """Write a whole file or nothing: a temporary neighbour is renamed into place.

    Raises:
        InputError: see `check_output`.
    """
    path = check_output(path, force=force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    mode = 0o777 if executable else 0o666
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return path


def dump_document(content: dict[str, Any], *, suffix: str) -> str:
    """The content as text: YAML for ``.yaml`` and ``.yml``, else JSON. Both keep every float exactly."""
    if suffix in YAML_SUFFIXES:
        return _dump_yaml(content)
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _read_text(path: Path, *, what: str) -> str:
    if path.is_dir():
        raise InputError(f"{path} is a folder; needed a {what}")
    try:
        size = path.stat().st_size
        if size > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path} is not a {what}: found {size} bytes; at most {MAX_DOCUMENT_BYTES} are read")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a {what}: found binary data; needed JSON or YAML text") from None
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
            raise InputError(f"{path} is not a {what}: the key {twice!r} is stated twice")
        return content

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        where = "the file ends too early" if error.pos >= len(text.rstrip()) else error.msg
        raise InputError(f"{path} is not valid JSON: {where} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise InputError(f"{path} is not a {what}: it is nested too deeply") from None


def _parse_yaml(text: str, path: Path, what: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise InputError(f"{path} is not valid YAML: {problem}{where}") from None
    except RecursionError:
        raise InputError(f"{path} is not a {what}: it is nested too deeply") from None
    except ValueError as error:  # an impossible date, for instance
        raise InputError(f"{path} is not valid YAML: {error}") from None


def _dump_yaml(content: dict[str, Any]) -> str:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)

"""Read a config.json from disk."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from costmodel.specs import InputError
from hardware_profiles.json_text import json_kind, parse_json

MAX_CONFIG_BYTES = 4 * 1024**2


def read_config(path: Path) -> dict[str, JsonValue]:
    """The fields of a config.json.

    Raises:
        InputError: when the file is missing, unreadable, too large, not text, not one JSON object, or `parse_json`
            refuses it.
    """
    text = _read_text(path)
    if not text.strip():
        raise InputError(f"{path} is empty; needed a JSON object with the fields of a config.json")
    content = parse_json(text, str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {json_kind(content)}; needed an object with the fields of a config.json")
    return content


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            kind = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(f"{path} {kind}; needed a config.json")
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise InputError(
                f"{path} has {size:,} bytes; a config.json has at most {MAX_CONFIG_BYTES:,} (is it a weights file?)"
            )
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (byte {error.start} is not UTF-8); needed a JSON config.json") from error

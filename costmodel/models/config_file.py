"""Read a config.json from disk."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NoReturn

from pydantic import JsonValue

from costmodel.specs import InputError

MAX_CONFIG_BYTES = 4 * 1024**2


def read_config(path: Path) -> dict[str, JsonValue]:
    """The fields of a config.json.

    Raises:
        InputError: when the file is missing, unreadable, too large, not text, truncated, not JSON, holds NaN or an
            infinity, or is not one JSON object.
    """
    text = _read_text(path)
    if not text.strip():
        raise InputError(f"{path} is empty; needed a JSON object with the fields of a config.json")
    try:
        content = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
        json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair could not be written into a plan
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        reason = "the text ends in the middle (is the file truncated?)" if cut else error.msg
        raise InputError(f"{path} is not JSON: line {error.lineno}, column {error.colno}: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a usable config.json: {error}") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{path} holds a JSON {type(content).__name__}; needed an object with the fields of a config.json"
        )
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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}, which is not a number of JSON; needed a finite number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text[:30]}, which overflows; needed a finite number")
    return value

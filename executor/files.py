"""The files a run reads and writes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from costmodel.specs import InputError, Plan, compute_plan_hash


def read_plan(path: Path) -> Plan:
    """The plan in a JSON file, or the best plan of a recommendation.

    Raises:
        InputError: when the file is missing, not JSON, not a plan, or its content does not match its hash.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"plan {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"plan {path} is not JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("best"), dict):
        content = content["best"]
    try:
        plan = Plan.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise InputError(f"plan {path} is not a plan of schema version 1: {place}: {first['msg']}") from error
    if plan.plan_hash != compute_plan_hash(plan):
        raise InputError(f"plan {path} was changed after it was made: its hash does not match; plan again")
    return plan


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing; folders are made, an existing file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".meshwright-{secrets.token_hex(8)}.tmp")  # a long name has no room for more
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()

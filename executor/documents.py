"""JSON Lines: one document a line, as text or as token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from costmodel.specs import InputError

Document = str | list[int]
JSON_LINES = ".jsonl"
_ID_FIELDS = ("tokens", "input_ids")


def parse_documents(text: str, path: Path) -> Iterator[Document]:
    """The documents of a file's text; empty lines and empty documents are passed over.

    Raises:
        InputError: names the first line that is no object with ``text`` or ``tokens`` (or ``input_ids``), and why.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            document = _document(_parse(line))
        except ValueError as error:
            raise InputError(
                f"data {path}, line {number}: {error}; needed: a JSON object with a text, or with a list of token ids as tokens "
                "or input_ids"
            ) from error
        if document:
            yield document


def _parse(line: str) -> object:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def _document(content: object) -> Document:
    if not isinstance(content, dict):
        raise ValueError(f"found {type(content).__name__}")
    if "text" in content:
        if not isinstance(content["text"], str):
            raise ValueError(f"text is {type(content['text']).__name__}")
        text: str = content["text"]
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can write one half of a character, UTF-8 cannot
            raise ValueError(f"text holds {text[error.start]!r}, which is no character") from None
        return text
    for name in _ID_FIELDS:
        if name in content:
            ids = content[name]
            if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 2**31 for each in ids):
                raise ValueError(f"{name} is not a list of token ids")
            return ids
    raise ValueError(f"found the fields {', '.join(sorted(content)) or 'none'}")

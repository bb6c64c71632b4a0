"""Data to token ids: token files as they are; text by the tokenizer in the model's folder, else as UTF-8 bytes."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.specs import InputError, ModelSpec
from executor.data import Tokens, check_sample
from executor.documents import JSON_LINES, Document, parse_documents
from executor.token_files import is_token_file, map_tokens
from hardware_profiles.files import read_at_most

CARRIED_TEXT = "opticks_book_one.txt"
NUM_BYTES = 256
MAX_DATA_BYTES = 2**30
NEEDED_TEXT = "one UTF-8 text file, JSON Lines (.jsonl) or a token file (.npy, .bin)"


def load_tokens(model: ModelSpec, path: Path | None = None) -> Tokens:
    """Token ids of a file, or of the text that the project carries.

    A token file (`executor.token_files`) is mapped. Text is tokenised whole, a ``.jsonl`` file document by document with the
    model's end-of-sequence token between them, where it has one.

    Returns:
        integers [num_tokens]; those that were looked at (all of text, a sample of a token file) are below
        ``model.vocab_size``.

    Raises:
        InputError: when the file is not what its name says, or an id does not fit the vocabulary.
    """
    if path is not None and is_token_file(path):
        tokens = map_tokens(path, vocab_size=model.vocab_size)
        check_sample(tokens, model.vocab_size)
        return tokens
    documents = read_documents(path)
    tokenizer = None if model.tokenizer_path is None else _load_tokenizer(model.tokenizer_path)
    encoded = [_encode(each, model, tokenizer) for each in documents]
    in_bytes = tokenizer is None and any(isinstance(each, str) for each in documents)
    tokens = _join([ids for ids in encoded if ids.size], _end_of_text(model, tokenizer, in_bytes=in_bytes))
    check_sample(tokens, model.vocab_size)
    return tokens


def read_documents(path: Path | None = None) -> list[Document]:
    """The documents of a text or JSON Lines file: a text is one.

    Raises:
        InputError: see `read_text` and `parse_documents`.
    """
    text = read_text(path)
    if path is None or path.suffix != JSON_LINES:
        return [text]
    documents = list(parse_documents(text, path))
    if not documents:
        raise InputError(f"data {path} holds no document that is not empty")
    return documents


def read_text(path: Path | None = None) -> str:
    """The text of a UTF-8 file; None is the text that the project carries.

    Raises:
        InputError: when the file is missing, a directory, unreadable, empty or not UTF-8 text.
    """
    if path is None:
        return files("executor").joinpath("text", CARRIED_TEXT).read_text(encoding="utf-8")
    try:
        if path.is_dir():
            raise InputError(f"data {path} is a directory; needed: {NEEDED_TEXT}")
        content = read_at_most(path, MAX_DATA_BYTES)
    except OSError as error:
        raise InputError(f"data {path} cannot be read: {error.strerror}; needed: {NEEDED_TEXT}") from error
    if len(content) > MAX_DATA_BYTES:
        raise InputError(
            f"data {path} holds more than {MAX_DATA_BYTES:,} bytes, which every process reads whole; "
            "needed: a smaller text, or its tokens as a file (.npy, .bin), which is not read whole"
        )
    if not content.strip():
        raise InputError(f"data {path} holds no text ({len(content)} bytes); needed: {NEEDED_TEXT}")
    if b"\0" in content:
        raise InputError(f"data {path} is binary (a zero byte at {content.index(0)}); needed: {NEEDED_TEXT}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"data {path} is not UTF-8: byte 0x{content[error.start]:02x} at {error.start}; "
            "convert it first, for example with iconv -t UTF-8"
        ) from error


def _encode(document: Document, model: ModelSpec, tokenizer: Any) -> Tokens:
    if not isinstance(document, str):
        return np.asarray(document, dtype=np.int32)
    if tokenizer is None:
        if model.vocab_size < NUM_BYTES:
            raise InputError(
                f"{model.name} has a vocabulary of {model.vocab_size}; byte tokens need at least {NUM_BYTES}: "
                "give the model a folder with a tokenizer, or a larger vocab_size"
            )
        return np.frombuffer(document.encode("utf-8"), dtype=np.uint8)
    ids = np.asarray(tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int32)
    if ids.size and int(ids.max()) >= model.vocab_size:
        raise InputError(
            f"the tokenizer in {model.tokenizer_path} gives token id {int(ids.max())}, but {model.name} has a vocab_size of "
            f"{model.vocab_size}: use the tokenizer that belongs to the model"
        )
    return ids


def _end_of_text(model: ModelSpec, tokenizer: Any, *, in_bytes: bool) -> int | None:
    """The token that ends a document: the tokenizer's, else the config's; None where there is none.

    With bytes as tokens an id below 256 is a byte, not an end.
    """
    stated: Any = model.hf_config.get("eos_token_id")
    stated = stated[0] if isinstance(stated, list) and stated else stated
    found = stated if tokenizer is None or tokenizer.eos_token_id is None else tokenizer.eos_token_id
    lowest = NUM_BYTES if in_bytes else 0
    return found if isinstance(found, int) and lowest <= found < model.vocab_size else None


def _join(documents: list[Tokens], end: int | None) -> Tokens:
    """All documents in a row, an end token after each of several that does not bring its own."""
    if len(documents) == 1:
        return documents[0]
    parts: list[Tokens] = []
    for ids in documents:
        parts.append(ids)
        if end is not None and ids[-1] != end:
            parts.append(np.asarray([end], dtype=np.int32))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def _load_tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    if not os.path.isdir(folder):
        raise InputError(
            f"the plan's tokenizer folder {folder} does not exist on this machine: put it there, or plan again with "
            "the model's folder as it is here"
        )
    try:
        # Code that a folder brings along is neither run nor asked about.
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the loader raises whatever its many formats raise
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {reason}): needed a "
            "tokenizer.json or tokenizer_config.json that transformers reads without code of the folder's own"
        ) from error

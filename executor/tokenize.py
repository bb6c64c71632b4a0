"""Text to token ids: UTF-8 bytes, or the tokenizer in the model's folder."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import numpy as np

from costmodel.specs import InputError, ModelSpec
from executor.data import Tokens
from hardware_profiles.files import read_at_most

CARRIED_TEXT = "opticks_book_one.txt"
NUM_BYTES = 256
MAX_DATA_BYTES = 2**30


def load_tokens(model: ModelSpec, path: Path | None = None) -> Tokens:
    """Token ids of a text file, or of the text that the project carries.

    Ids are bytes of UTF-8, unless the model names a tokenizer.

    Returns:
        int64 [num_tokens], every id below ``model.vocab_size``.

    Raises:
        InputError: when the file is not readable text, or an id does not fit the vocabulary.
    """
    text = read_text(path)
    if model.tokenizer_path is not None:
        return _tokenize(text, model, model.tokenizer_path)
    if model.vocab_size < NUM_BYTES:
        raise InputError(
            f"{model.name} has a vocabulary of {model.vocab_size}; byte tokens need at least {NUM_BYTES}: "
            "give the model a folder with a tokenizer, or a larger vocab_size"
        )
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64)


def read_text(path: Path | None = None) -> str:
    """The text of a UTF-8 file; None is the text that the project carries.

    Raises:
        InputError: when the file is missing, a directory, unreadable, empty or not UTF-8 text.
    """
    if path is None:
        return files("executor").joinpath("text", CARRIED_TEXT).read_text(encoding="utf-8")
    try:
        if path.is_dir():
            raise InputError(f"data {path} is a directory; needed: one UTF-8 text file")
        content = read_at_most(path, MAX_DATA_BYTES)
    except OSError as error:
        raise InputError(f"data {path} cannot be read: {error.strerror}; needed: one UTF-8 text file") from error
    if len(content) > MAX_DATA_BYTES:
        raise InputError(
            f"data {path} holds more than {MAX_DATA_BYTES:,} bytes, which every process reads whole; "
            "needed: a smaller text, such as its beginning"
        )
    if not content.strip():
        raise InputError(f"data {path} holds no text ({len(content)} bytes); needed: one UTF-8 text file")
    if b"\0" in content:
        raise InputError(f"data {path} is binary (a zero byte at {content.index(0)}); needed: UTF-8 text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"data {path} is not UTF-8: byte 0x{content[error.start]:02x} at {error.start}; "
            "convert it first, for example with iconv -t UTF-8"
        ) from error


def _tokenize(text: str, model: ModelSpec, tokenizer_path: str) -> Tokens:
    from transformers import AutoTokenizer

    if not os.path.isdir(tokenizer_path):
        raise InputError(
            f"the plan's tokenizer folder {tokenizer_path} does not exist on this machine: put it there, or plan again with "
            "the model's folder as it is here"
        )
    try:
        # Code that a folder brings along is neither run nor asked about.
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the loader raises whatever its many formats raise
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"the tokenizer in {tokenizer_path} cannot be loaded ({type(error).__name__}: {reason}): needed a "
            "tokenizer.json or tokenizer_config.json that transformers reads without code of the folder's own"
        ) from error
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    if ids.size and int(ids.max()) >= model.vocab_size:
        raise InputError(
            f"the tokenizer in {tokenizer_path} gives token id {int(ids.max())}, but {model.name} has a vocab_size of "
            f"{model.vocab_size}: use the tokenizer that belongs to the model"
        )
    return ids

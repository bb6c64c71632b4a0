"""Files of token ids, mapped into memory: only what a batch needs is read.

NAME.npy           numpy array of integers, one dim
NAME.bin           16-bit little-endian ids without a header, as nanoGPT writes them
NAME.uint16.bin    the same, said by the name; NAME.uint32.bin: 32-bit ids
NAME.bin, NAME.idx Megatron's pair; the index states the format (Megatron-LM, megatron/core/datasets/indexed_dataset.py:
                   magic, version, type code, numbers of sequences and documents, lengths, byte offsets)
"""

from __future__ import annotations

import struct
from pathlib import Path
from tokenize import TokenError

import numpy as np

from costmodel.specs import InputError
from executor.data import Tokens

TOKEN_SUFFIXES = (".npy", ".bin", ".idx")
_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_IDS_OF_16_BITS = 2**16


def is_token_file(path: Path) -> bool:
    """Whether a file holds token ids, by its name."""
    return path.suffix in TOKEN_SUFFIXES


def map_tokens(path: Path, *, vocab_size: int) -> Tokens:
    """The ids in a token file, one dim, mapped and read-only.

    Args:
        path: by whose name the format is told; of Megatron's pair either file.
        vocab_size: of the model: a ``.bin`` that does not say its width cannot be of a vocabulary beyond 16 bits.

    Raises:
        InputError: when a file is missing, empty or not what its name says.
    """
    try:
        if not path.is_file():
            raise InputError(f"data {path} is not a file; needed: a token file")
        if path.suffix == ".npy":
            return _map_array(path)
        if path.with_suffix(".idx").is_file():
            return _map_megatron(path.with_suffix(".bin"), path.with_suffix(".idx"))
        return _map_plain(path, _width(path, vocab_size))
    except OSError as error:
        raise InputError(f"data {path} cannot be read: {error.strerror or error}") from error


def _map_array(path: Path) -> Tokens:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError, SyntaxError, TokenError, OverflowError) as error:
        raise InputError(f"data {path} is not a numpy array of integers: {error}") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        shape = " x ".join(str(extent) for extent in array.shape) or "no dim"
        raise InputError(f"data {path} is an array of {array.dtype} ({shape}); needed: integers in one dim")
    return array


def _map_plain(path: Path, kind: str) -> Tokens:
    size, width = path.stat().st_size, np.dtype(kind).itemsize
    if size == 0 or size % width:
        raise InputError(f"data {path} has {size} bytes; needed: ids of {width} bytes each ({kind})")
    return np.memmap(path, dtype=kind, mode="r")


def _width(path: Path, vocab_size: int) -> str:
    stated = path.stem.rpartition(".")[2]
    if stated in ("uint16", "uint32"):
        return f"<u{int(stated[4:]) // 8}"
    if vocab_size > _IDS_OF_16_BITS:
        raise InputError(
            f"data {path} does not say how wide its ids are, and the model's vocab_size of {vocab_size} needs more than 16 "
            f"bits: rename it to {path.stem}.uint32.bin, or {path.stem}.uint16.bin if its ids are that small"
        )
    return "<u2"


def _map_megatron(data: Path, index: Path) -> Tokens:
    with index.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise InputError(f"data {index} is not a Megatron index: it does not begin with MMIDIDX")
        _, version, code, num_sequences, _ = _HEADER.unpack(header)
        if version != 1 or code not in _MEGATRON_TYPES:
            raise InputError(
                f"data {index} has version {version} and type code {code}; needed: version 1 and one of the integer codes "
                f"{', '.join(str(known) for known in _MEGATRON_TYPES)}"
            )
        if num_sequences == 0 or index.stat().st_size < _HEADER.size + (4 + 8) * num_sequences:
            raise InputError(f"data {index} is cut short: it names {num_sequences} sequences and lacks their places")
        # The sequences lie one after the other, so the last one's end is the file's.
        file.seek(_HEADER.size + 4 * (num_sequences - 1))
        last_length = file.read(4)
        file.seek(_HEADER.size + 4 * num_sequences + 8 * (num_sequences - 1))
        last_offset = file.read(8)
    tokens = _map_plain(data, _MEGATRON_TYPES[code])
    needed = struct.unpack("<q", last_offset)[0] + struct.unpack("<i", last_length)[0] * tokens.itemsize
    if needed != tokens.nbytes:
        raise InputError(f"data {data} has {tokens.nbytes} bytes, but its index {index.name} speaks of {needed}")
    return tokens

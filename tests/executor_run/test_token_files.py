"""Files of token ids: what each name means, written here by hand, and that nothing is read but what a batch needs."""

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_plans import tiny_model

from costmodel.specs import InputError
from executor.data import GlobalBatches
from executor.token_files import map_tokens
from executor.tokenize import load_tokens

IDS = np.random.default_rng(0).integers(0, 256, 1000)


def write_megatron(path: Path, documents: list[np.ndarray], kind: str, code: int) -> None:
    """As Megatron-LM's IndexedDatasetBuilder does (megatron/core/datasets/indexed_dataset.py)."""
    lengths = [len(document) for document in documents]
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * np.dtype(kind).itemsize
    path.with_suffix(".bin").write_bytes(b"".join(document.astype(kind).tobytes() for document in documents))
    with path.with_suffix(".idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1))
        file.write(np.asarray(lengths, dtype="<i4").tobytes() + offsets.astype("<i8").tobytes())
        file.write(np.arange(len(documents) + 1, dtype="<i8").tobytes())


def write(folder: Path, name: str) -> Path:
    """`IDS` as a file of that name."""
    path = folder / name
    if name.startswith("megatron"):
        kind, code = {"megatron-int32": ("<i4", 4), "megatron-uint16": ("<u2", 8)}[Path(name).stem]
        write_megatron(path, np.split(IDS, [10, 500, 501]), kind, code)
    elif path.suffix == ".npy":
        np.save(path, IDS.astype(name.split("-", maxsplit=1)[0]))
    elif path.suffix == ".jsonl":
        path.write_text(f'{{"tokens": {IDS.tolist()}}}\n')
    elif path.suffix == ".txt":
        path.write_bytes(IDS.astype(np.uint8).tobytes())
    else:
        path.write_bytes(IDS.astype("<u4" if ".uint32" in name else "<u2").tobytes())
    return path


FORMATS = [
    "int64-ids.npy",
    "uint8-ids.npy",
    "uint16-ids.npy",
    "nano.bin",
    "nano.uint16.bin",
    "nano.uint32.bin",
    "megatron-int32.bin",
    "megatron-uint16.idx",
]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_tokens(tmp_path: Path, name: str) -> None:
    tokens = load_tokens(tiny_model(), write(tmp_path, name))
    assert np.array_equal(tokens, IDS)
    base: Any = tokens
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert isinstance(base, mmap.mmap)  # mapped, not read
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


@pytest.mark.parametrize("name", [*FORMATS, "ids.jsonl"])
def test_every_format_gives_every_plan_the_same_samples(tmp_path: Path, name: str) -> None:
    """The sequence of global batches is that of the ids in memory, whole or shared out over data-parallel ranks."""
    expected = GlobalBatches(IDS, 16, 8, seed=3)
    found = GlobalBatches(load_tokens(tiny_model(), write(tmp_path, name)), 16, 8, seed=3, vocab_size=256)
    for number in (0, 1, 6, 7, 20):  # several passes
        whole = expected.batch(number).numpy()
        for size in (1, 2, 4):
            parts = [found.batch(number, rank=rank, size=size).numpy() for rank in range(size)]
            assert np.array_equal(np.concatenate(parts), whole)


def test_a_bin_of_a_large_vocabulary_must_say_its_width(tmp_path: Path) -> None:
    path = write(tmp_path, "nano.bin")
    with pytest.raises(
        InputError, match=r"vocab_size of 128256 needs more than 16 bits: rename it to nano\.uint32\.bin"
    ):
        map_tokens(path, vocab_size=128_256)
    assert len(map_tokens(path, vocab_size=2**16)) == 1000
    assert len(map_tokens(write(tmp_path, "nano.uint16.bin"), vocab_size=128_256)) == 1000


def test_a_sample_of_the_vocabulary_is_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"the data hold token id \d+ at position \d+, but the model's vocab_size is 200"
    ):
        load_tokens(tiny_model(vocab_size=200), write(tmp_path, "nano.bin"))


def bad_index(folder: Path, change: Any) -> Path:
    path = write(folder, "megatron-int32.bin")
    index = path.with_suffix(".idx")
    index.write_bytes(change(index.read_bytes()))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"PK" + content[2:], "does not begin with MMIDIDX"),
        (lambda content: content[:20], "does not begin with MMIDIDX"),
        (lambda content: content[:9] + struct.pack("<Q", 2) + content[17:], "has version 2 and type code 4"),
        (lambda content: content[:17] + b"\x07" + content[18:], "has version 1 and type code 7"),
        (lambda content: content[:17] + b"\x08" + content[18:], "has 4000 bytes, but its index .* speaks of"),
        (lambda content: content[:60], "is cut short"),
        (lambda content: content[:18] + struct.pack("<Q", 0) + content[26:], "it names 0 sequences"),
        (
            lambda content: content[:18] + struct.pack("<Q", 2**60) + content[26:],
            "it names 1152921504606846976 sequences",
        ),
        (
            lambda content: content[:18] + struct.pack("<Q", 2**63) + content[26:],
            "it names 9223372036854775808 sequences",
        ),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        map_tokens(bad_index(tmp_path, change), vocab_size=256)


def test_a_megatron_file_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path, "megatron-int32.bin")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"has 3996 bytes, but its index megatron-int32\.idx speaks of 4000"):
        map_tokens(path, vocab_size=256)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"no array", "is not a numpy array of integers"),
        ("a.npy", b"", "is not a numpy array of integers"),
        ("a.npy", b"PK\x03\x04 an archive of arrays", "is not a numpy array of integers"),
        ("a.npy", b"\x93NUMPY\x01\x00\x08\x00(((((((\nabc", "is not a numpy array of integers"),
        ("a.bin", b"", "has 0 bytes; needed: ids of 2 bytes each"),
        ("a.bin", b"abc", "has 3 bytes; needed: ids of 2 bytes each"),
        ("a.uint32.bin", b"abcdef", "has 6 bytes; needed: ids of 4 bytes each"),
    ],
)
def test_what_is_no_token_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        map_tokens(path, vocab_size=256)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), r"array of int64 \(2 x 3\); needed: integers in one dim"),
        (np.zeros(3), r"array of float64 \(3\)"),
        (np.array(["a"], dtype=object), "is not a numpy array of integers"),  # pickles are not opened
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=message):
        map_tokens(tmp_path / "a.npy", vocab_size=256)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    for name in ("nowhere.bin", "folder.npy"):
        with pytest.raises(InputError, match="is not a file; needed: a token file"):
            map_tokens(tmp_path / name, vocab_size=256)

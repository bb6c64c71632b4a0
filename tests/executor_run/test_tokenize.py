"""Text to token ids."""

import hashlib
import os
from pathlib import Path

import pytest
from tiny_plans import tiny_model

from costmodel.specs import InputError
from executor import tokenize
from executor.tokenize import load_tokens, read_text


def test_the_carried_text_is_the_one_its_readme_describes() -> None:
    content = read_text().encode()
    assert len(content) == 252_862
    assert hashlib.sha256(content).hexdigest() == "ef6e26b1010af8582d743ff33211a3e5f3c78c16b1c63a7fe29b98fbd606d83b"
    assert content.startswith(b"OPTICKS:\n\nOR, A\n\nTREATISE\n")


def test_tokens_are_utf8_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Æ a\n", encoding="utf-8")
    assert load_tokens(tiny_model(), path).tolist() == [0xC3, 0x86, 0x20, 0x61, 0x0A]


def test_bytes_need_a_vocabulary_of_256() -> None:
    with pytest.raises(InputError, match="vocabulary of 255; byte tokens need at least 256"):
        load_tokens(tiny_model(vocab_size=255))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no text"),
        (b" \n\n", "holds no text"),
        (b"abc\0def", "binary .a zero byte at 3"),
        (b"abc\xff\xfe", "not UTF-8: byte 0xff at 3"),
    ],
)
def test_what_is_not_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_text(path)


def test_what_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "MAX_DATA_BYTES", 100)
    path = tmp_path / "data.txt"
    path.write_text("a" * 101)
    with pytest.raises(InputError, match="more than 100 bytes"):
        read_text(path)
    path.write_text("a" * 100)
    assert len(read_text(path)) == 100
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match="holds no text"):  # instead of waiting for somebody to write
        read_text(tmp_path / "pipe.txt")


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_text(tmp_path / "nowhere.txt")
    with pytest.raises(InputError, match="is a directory"):
        read_text(tmp_path)


def test_a_model_folder_brings_its_tokenizer(tmp_path: Path, tokenizer_folder: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the light of the light")
    model = tiny_model(tokenizer_path=str(tokenizer_folder))
    assert load_tokens(model, path).tolist() == [0, 2, 1, 0, 2]


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the dark")
    with pytest.raises(InputError, match="token id 300, but llama-test has a vocab_size of 256"):
        load_tokens(tiny_model(tokenizer_path=str(tokenizer_folder)), path)


def test_a_folder_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer folder .*gone does not exist on this machine"):
        load_tokens(tiny_model(tokenizer_path=str(tmp_path / "gone")))


def test_code_in_the_folder_is_neither_run_nor_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", null]}}'
    )
    with pytest.raises(InputError, match=r"cannot be loaded .* without code of the folder's own"):
        load_tokens(tiny_model(tokenizer_path=str(tmp_path)))
    assert not (tmp_path / "ran").exists()
    assert "[y/N]" not in "".join(capfd.readouterr())


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer in .* cannot be loaded"):
        load_tokens(tiny_model(tokenizer_path=str(tmp_path)))

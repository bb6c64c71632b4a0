"""JSON Lines: documents of text or ids, one after the other with the model's end token between them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_plans import tiny_model

from costmodel.specs import InputError
from executor.checks import check_data
from executor.documents import parse_documents
from executor.tokenize import load_tokens


def write(path: Path, *documents: Any) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    return path


def with_end(token: Any, **fields: Any) -> Any:
    model = tiny_model(**fields)
    return model.model_copy(update={"hf_config": {**model.hf_config, "eos_token_id": token}})


def test_ids_are_joined_by_the_end_token(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"tokens": [5, 6]}, {"input_ids": [7, 2]}, {"tokens": []}, {"tokens": [8]})
    assert load_tokens(with_end(2), path).tolist() == [
        5,
        6,
        2,
        7,
        2,
        8,
        2,
    ]  # a document that brings its end gets no second
    assert load_tokens(with_end([2, 3]), path).tolist() == [5, 6, 2, 7, 2, 8, 2]
    assert load_tokens(with_end(None), path).tolist() == [5, 6, 7, 2, 8]


def test_one_document_is_taken_as_it_is(tmp_path: Path) -> None:
    assert load_tokens(with_end(2), write(tmp_path / "a.jsonl", {"tokens": [5, 6]})).tolist() == [5, 6]


def test_bytes_are_joined_by_an_end_token_that_is_no_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "ab"}, {"text": "é"})
    assert load_tokens(with_end(256, vocab_size=257), path).tolist() == [97, 98, 256, 0xC3, 0xA9, 256]
    assert load_tokens(with_end(2), path).tolist() == [97, 98, 0xC3, 0xA9]


def test_text_goes_through_the_tokenizer(tmp_path: Path, tokenizer_folder: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "the light", "id": 7}, {"text": "of"}, {"tokens": [1]})
    model = with_end(9, tokenizer_path=str(tokenizer_folder))
    assert load_tokens(model, path).tolist() == [0, 2, 9, 1, 9, 1, 9]  # the tokenizer names no end: the config's


def test_empty_lines_and_line_separators_in_strings_are_no_documents() -> None:
    text = '{"text": "a\u2028b"}\n\n{"text": ""}\n{"text": "c"}\n'
    assert list(parse_documents(text, Path("x.jsonl"))) == ["a\u2028b", "c"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a"', "Expecting"),
        ('["a"]', "found list"),
        ("3", "found int"),
        ('{"body": "a"}', "found the fields body"),
        ("{}", "found the fields none"),
        ('{"text": 3}', "text is int"),
        ('{"tokens": "1 2"}', "tokens is not a list of token ids"),
        ('{"input_ids": [1, -2]}', "input_ids is not a list of token ids"),
        ('{"tokens": [1, true]}', "tokens is not a list of token ids"),
        ('{"tokens": [1.0]}', "tokens is not a list of token ids"),
        ('{"text": "half \\ud83d"}', r"text holds '\\ud83d', which is no character"),
        (100_000 * "[", "lists or objects are nested too deeply"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n\n{line}\n{{"text": "fine"}}\n')
    with pytest.raises(InputError, match=rf"data .*a\.jsonl, line 3: {reason}"):
        load_tokens(tiny_model(), path)


def test_the_launcher_finds_a_bad_line_before_it_loads_a_tokenizer(tmp_path: Path) -> None:
    from tiny_plans import tiny_plan

    path = tmp_path / "a.jsonl"
    path.write_text("nothing\n")
    plan = tiny_plan(model=tiny_model(tokenizer_path=str(tmp_path / "gone")))
    with pytest.raises(InputError, match="line 1"):
        check_data(plan, path)


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="token id 256 at position 1, but the model's vocab_size is 256"):
        load_tokens(tiny_model(), write(tmp_path / "a.jsonl", {"tokens": [255, 256]}))


def test_nothing_but_empty_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no document"):
        load_tokens(tiny_model(), write(tmp_path / "a.jsonl", {"text": ""}))

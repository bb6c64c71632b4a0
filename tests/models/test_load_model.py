"""load_model from files: what it takes from a folder, and one clear error for every kind of wrong input."""

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.models import build_model, load_model, num_parameters, supported_model_types
from costmodel.specs import InputError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 32,
    "vocab_size": 128,
}
MEGATRON: dict[str, Any] = {
    "model_type": "megatron-gpt",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "vocab_size": 100,
}


def write(path: Path, config: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    return path


def test_config_json_keeps_the_config_verbatim(tmp_path: Path) -> None:
    config = {**LLAMA, "attention_dropout": 0.1, "something_else": [1, {"a": None}]}
    model = load_model(write(tmp_path / "my-llama" / "config.json", config))
    assert model.hf_config == config
    assert (model.name, model.family, model.weights_path, model.tokenizer_path) == ("my-llama", "llama", None, None)
    assert model == load_model(str(tmp_path / "my-llama" / "config.json"))
    # 2 tables, 2 layers of q, o (64x64), k, v (16x64), 3 x 64x96, 2 norms, and the final norm
    assert num_parameters(model) == 2 * 128 * 64 + 2 * (2 * 64 * 64 + 2 * 16 * 64 + 3 * 64 * 96 + 2 * 64) + 64


def test_another_file_name_names_the_model(tmp_path: Path) -> None:
    assert load_model(write(tmp_path / "wide.json", GPT2)).name == "wide"


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "tokenizer_config.json"])
def test_folder_notes_weights_and_tokenizer(tmp_path: Path, tokenizer: str) -> None:
    folder = tmp_path / "model"
    write(folder / "config.json", LLAMA)
    assert load_model(folder).weights_path is None
    (folder / "model-00001-of-00002.safetensors").touch()
    model = load_model(str(folder) + "/")
    assert (model.name, model.weights_path, model.tokenizer_path) == ("model", str(folder), None)
    (folder / tokenizer).touch()
    assert load_model(folder).tokenizer_path == str(folder)


def test_a_name_wins_over_a_file_unless_it_is_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "gpt2" / "config.json", GPT2)
    write(tmp_path / "mistralai" / "Mistral-7B-v0.1" / "config.json", LLAMA)
    assert load_model("gpt2").hidden_size == 768
    assert load_model("./gpt2").hidden_size == load_model(Path("gpt2")).hidden_size == 64
    assert load_model("mistralai/Mistral-7B-v0.1").hidden_size == 64
    assert load_model("mistralai/Mistral-7B-v0.3").hidden_size == 4096
    monkeypatch.chdir(tmp_path / "gpt2")
    assert load_model("config.json").name == load_model(".").name == "gpt2"


def test_utf8_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert load_model(path).hidden_size == 64


BAD_FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n ", "is empty"),
    "truncated": (json.dumps(LLAMA).encode()[:60], "truncated"),
    "truncated in a key": (b'{"model_type": "llama", "hid', "truncated"),
    "not JSON": (b"model_type: llama\n", "not valid JSON: line 1, column 1"),
    "trailing comma": (b'{"model_type": "llama",}', "not valid JSON"),
    "array": (b'[{"model_type": "llama"}]', "holds a list; needed an object"),
    "number": (b"7", "holds a number; needed an object"),
    "null": (b"null", "holds null; needed an object"),
    "binary": (b"\x80\x02}q\x00\xff", "not text"),
    "NaN": (b'{"model_type": "llama", "hidden_size": NaN}', "found NaN"),
    "infinity": (b'{"model_type": "llama", "rope_theta": Infinity}', "found Infinity"),
    "overflow": (b'{"model_type": "llama", "rope_theta": 1e999}', "overflows"),
    "huge integer": (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "number of thousands of digits"),
    "deep": (b"[" * 200_000, "nested too deeply"),
    "too large": (b'{"a": "' + b"x" * (5 * 1024**2) + b'"}', "is it a weights file"),
    "half a character": (
        json.dumps({**LLAMA, "note": "\ud800"}).encode(),
        "half of a surrogate pair",
    ),
    "a key twice": (b'{"model_type": "llama", "hidden_size": 64, "hidden_size": 65}', "'hidden_size' stands twice"),
    "more behind": (b'{"model_type": "llama"} {}', "something follows the end"),
    "no model type": (b'{"hidden_size": 64}', "lacks the field 'model_type'.*fields found: hidden_size"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    for source in (path, tmp_path):
        with pytest.raises(InputError, match=message) as caught:
            load_model(source)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 500


def test_missing_places_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such name in the catalogue, and no such file or folder"):
        load_model(tmp_path / "absent" / "config.json")
    with pytest.raises(InputError, match=r"has no config\.json; found: nothing"):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(InputError, match=r"has no config\.json; found: pytorch_model\.bin"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        load_model(tmp_path)


@pytest.mark.parametrize("source", ["", "  ", "\0", "x" * 5000, "~nobody-by-this-name/model", "llama-9-70b"])
def test_strange_names_are_clear_errors(source: str) -> None:
    with pytest.raises(InputError):
        load_model(source)


def test_a_pipe_is_refused_without_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    caught: list[BaseException] = []

    def load() -> None:
        try:
            load_model(tmp_path / "config.json")
        except InputError as error:
            caught.append(error)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert "not a regular file" in str(caught[0])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_a_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", LLAMA)
    path.chmod(0)
    with pytest.raises(InputError, match="cannot read"):
        load_model(path)


@pytest.mark.parametrize(
    "model_type", ["mixtral", "gemma3", "phi3small", "bert", "deepseek_v3", "t5", "Llama", "", None, 7, ["llama"]]
)
def test_unsupported_model_types_list_the_supported(model_type: Any) -> None:
    with pytest.raises(InputError, match="is not supported") as caught:
        build_model({**LLAMA, "model_type": model_type}, name="x")
    assert all(supported in str(caught.value) for supported in supported_model_types())
    assert json.dumps(model_type) in str(caught.value)


FOREIGN = {
    "quantization_config": {"quant_method": "gptq", "bits": 4},
    "vision_config": {},
    "audio_config": {"a": 1},
    "text_config": {"hidden_size": 8},
    "per_layer_config": {"1": {"intermediate_size": 8}},
    "is_encoder_decoder": True,
    "num_local_experts": 8,
    "num_experts": 64,
    "n_routed_experts": 256,
}


@pytest.mark.parametrize(("field", "value"), FOREIGN.items())
@pytest.mark.parametrize("base", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_fields_that_make_another_model_are_refused(base: dict[str, Any], field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        build_model({**base, field: value}, name="x")


@pytest.mark.parametrize(
    ("base", "field"),
    [
        (base, field)
        for base in (LLAMA, GPT2, MEGATRON)
        for field in base
        if field not in ("model_type", "num_key_value_heads")
    ],
)
def test_a_lacking_field_is_named_with_those_present(base: dict[str, Any], field: str) -> None:
    rest = {key: value for key, value in base.items() if key != field}
    with pytest.raises(InputError, match=f"lacks the field '{field}'") as caught:
        build_model(rest, name="x")
    assert all(key in str(caught.value) for key in rest)


WRONG_SIZES = [0, -1, 64.0, 1.5, "64", True, False, None, [64], {}, 10**12]


@pytest.mark.parametrize("value", WRONG_SIZES, ids=repr)
@pytest.mark.parametrize(
    ("base", "field"),
    [
        (base, field)
        for base in (LLAMA, GPT2, MEGATRON)
        for field in base
        if field not in ("model_type", "num_key_value_heads")
    ],
)
def test_a_wrong_size_names_field_value_and_need(base: dict[str, Any], field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"my file: {field}: found .*; needed an integer from 1 to") as caught:
        build_model({**base, field: value}, name="x", where="my file")
    assert json.dumps(value) in str(caught.value)


QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN3 = {**LLAMA, "model_type": "qwen3"}
MISTRAL = {**LLAMA, "model_type": "mistral"}
SLIDING = ["sliding_attention", "full_attention"]
CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (LLAMA, {"num_key_value_heads": 3}, "num_attention_heads 8 is not a multiple of num_key_value_heads 3"),
    (LLAMA, {"num_key_value_heads": 0}, "num_key_value_heads: found 0"),
    (MISTRAL, {"num_key_value_heads": None}, "num_key_value_heads: found null"),
    (LLAMA, {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 8.*such as 64"),
    (LLAMA, {"hidden_size": 66, "head_dim": 8}, "hidden_size 66 is not a multiple"),
    (MISTRAL, {"hidden_size": 66}, "hidden_size 66 is not a multiple"),
    (QWEN2, {"hidden_size": 66}, "hidden_size 66 is not a multiple"),
    (LLAMA, {"hidden_size": 4}, "hidden_size 4 is not a multiple of num_attention_heads 8.*such as 8"),
    (LLAMA, {"head_dim": 7}, "head_dim is 7; rotary position embeddings need an even one"),
    (LLAMA, {"hidden_size": 8}, "head_dim is 1; rotary"),
    (QWEN2, {"head_dim": None}, "head_dim: found null"),
    (QWEN3, {"head_dim": None}, "head_dim: found null"),
    (LLAMA, {"head_dim": 0}, "head_dim: found 0"),
    (LLAMA, {"hidden_act": "swiglu"}, 'hidden_act: found "swiglu"; needed one of .*silu'),
    (LLAMA, {"hidden_act": None}, "hidden_act: found null"),
    (GPT2, {"activation_function": "prelu"}, "activation_function: found"),
    (LLAMA, {"attention_bias": 1}, "attention_bias: found 1; needed true or false"),
    (LLAMA, {"mlp_bias": "false"}, 'mlp_bias: found "false"; needed true or false'),
    (LLAMA, {"tie_word_embeddings": None}, "tie_word_embeddings: found null"),
    (LLAMA, {"rms_norm_eps": 0.0}, "rms_norm_eps: found 0.0"),
    (LLAMA, {"rms_norm_eps": "1e-6"}, "rms_norm_eps: found"),
    (LLAMA, {"rms_norm_eps": 1}, "rms_norm_eps: found 1; needed a positive decimal number"),
    (LLAMA, {"initializer_range": -0.02}, "initializer_range: found -0.02"),
    (LLAMA, {"attention_dropout": 1.5}, "attention_dropout: found 1.5; needed a number from 0 to 1"),
    (MISTRAL, {"attention_dropout": None}, "attention_dropout: found null"),
    (LLAMA, {"rope_theta": -1}, "rope_theta: found -1"),
    (LLAMA, {"rope_theta": "1e4"}, "rope_theta: found"),
    (LLAMA, {"rope_scaling": {"rope_type": "magic"}}, "rope_scaling: found .*llama3"),
    (LLAMA, {"rope_scaling": 8.0}, "rope_scaling: found 8.0; needed null or an object"),
    (LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, r"rope_parameters\.rope_theta: found 0"),
    (LLAMA, {"pad_token_id": 128}, "pad_token_id: found 128; needed null or a token of the vocabulary"),
    (LLAMA, {"max_position_embeddings": None}, "max_position_embeddings: found null"),
    (MISTRAL, {"sliding_window": 0}, "sliding_window: found 0"),
    (MISTRAL, {"sliding_window": -4}, "sliding_window: found -4"),
    (QWEN2, {"layer_types": ["full_attention"]}, "layer_types has 1 entries; needed num_hidden_layers 2"),
    (QWEN2, {"layer_types": ["full_attention", "mamba"]}, "layer_types: found .*full_attention, sliding_attention"),
    (QWEN2, {"layer_types": "full_attention"}, "layer_types: found"),
    (QWEN3, {"layer_types": SLIDING}, "names sliding_attention, but no window is set"),
    (QWEN3, {"max_window_layers": -1}, "max_window_layers: found -1"),
    (QWEN3, {"use_sliding_window": "yes"}, 'use_sliding_window: found "yes"'),
    (
        GPT2,
        {"n_head": 5},
        r"hidden size \(n_embd\) 64 is not a multiple of the attention heads \(n_head\) 5.*such as 60",
    ),
    (GPT2, {"hidden_size": 32}, "n_embd is 64 and hidden_size, its other spelling, is 32"),
    (GPT2, {"n_inner": 0}, "n_inner: found 0"),
    (GPT2, {"add_cross_attention": True}, "add_cross_attention: found true"),
    (GPT2, {"resid_pdrop": "0.1"}, "resid_pdrop: found"),
    (GPT2, {"layer_norm_epsilon": -1e-5}, "layer_norm_epsilon: found -1e-05"),
    (MEGATRON, {"padded_vocab_size": 99}, "padded_vocab_size: found 99; needed at least vocab_size 100"),
    (MEGATRON, {"num_layers": 2}, "unknown field 'num_layers'; valid: .*num_hidden_layers"),
    (MEGATRON, {"num_attention_heads": 5}, "64 is not a multiple"),
    (MEGATRON, {"hidden_dropout": 2}, "hidden_dropout: found 2"),
]


@pytest.mark.parametrize(("base", "change", "message"), CONTRADICTIONS, ids=lambda value: str(value)[:40])
def test_contradictions_name_the_numbers(base: dict[str, Any], change: dict[str, Any], message: str) -> None:
    build_model(base, name="the base is good")
    with pytest.raises(InputError, match=message):
        build_model({**base, **change}, name="x", where="my file")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)


@given(
    base=st.sampled_from([LLAMA, GPT2, QWEN2, QWEN3, MISTRAL, MEGATRON]),
    field=st.sampled_from(sorted({*LLAMA, *GPT2, *QWEN2, "layer_types", "head_dim", "rope_scaling", "hidden_act"})),
    value=JSON_VALUES,
)
def test_any_json_value_is_a_model_or_an_input_error(base: dict[str, Any], field: str, value: Any) -> None:
    with contextlib.suppress(InputError):
        assert num_parameters(build_model({**base, field: value}, name="x")) > 0

"""gemma2, phi3, gpt_neox and opt: read as transformers reads them, and what is refused."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_models import assert_equal_to_reference, build_reference
from transformers import CONFIG_MAPPING

from costmodel.models import build_model, config_notices, num_parameters
from costmodel.specs import InputError

SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 70}
GEMMA2 = {"model_type": "gemma2", **SIZES, "intermediate_size": 96}
PHI3 = {"model_type": "phi3", **SIZES, "intermediate_size": 96, "pad_token_id": None}
NEOX = {"model_type": "gpt_neox", **SIZES, "intermediate_size": 96}
OPT = {"model_type": "opt", **SIZES, "ffn_dim": 96}
BASES = {"gemma2": GEMMA2, "phi3": PHI3, "gpt_neox": NEOX, "opt": OPT}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}

OPTIONAL: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "gemma2": {
        "num_key_value_heads": st.sampled_from([1, 2, 4]),
        "head_dim": st.sampled_from([2, 6, 10]),
        "attention_bias": st.booleans(),
        "tie_word_embeddings": st.booleans(),
        "attn_logit_softcapping": st.sampled_from([None, 5.0]),
        "final_logit_softcapping": st.sampled_from([None, 5.0]),
        "hidden_activation": st.sampled_from(["gelu_pytorch_tanh", "silu"]),
        "hidden_act": st.just("relu"),
    },
    "phi3": {
        "num_key_value_heads": st.sampled_from([None, 1, 2, 4]),
        "head_dim": st.sampled_from([2, 6, 10]),
        "attention_bias": st.booleans(),
        "tie_word_embeddings": st.booleans(),
        "sliding_window": st.sampled_from([None, 3]),
        "partial_rotary_factor": st.sampled_from([0.5, 1.0]),
    },
    "gpt_neox": {
        "attention_bias": st.booleans(),
        "tie_word_embeddings": st.booleans(),
        "use_parallel_residual": st.booleans(),
        "rotary_pct": st.sampled_from([0.25, 1.0]),
    },
    "opt": {
        "enable_bias": st.booleans(),
        "tie_word_embeddings": st.booleans(),
        "max_position_embeddings": st.integers(1, 40),
        "word_embed_proj_dim": st.sampled_from([None, 64]),
        "activation_function": st.sampled_from(["relu", "gelu"]),
    },
}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    model_type = draw(st.sampled_from(sorted(BASES)))
    config = {**BASES[model_type], "num_hidden_layers": draw(st.integers(1, 4)), "bos_token_id": 0, "eos_token_id": 0}
    for name, values in OPTIONAL[model_type].items():
        if draw(st.booleans()):
            config[name] = draw(values)
    return config


@settings(max_examples=80, deadline=None)
@given(configs())
def test_any_small_config_equals_transformers(config: dict[str, Any]) -> None:
    model = build_model(config, name="drawn")
    assert model.hf_config == config
    assert_equal_to_reference(model)


@pytest.mark.parametrize("model_type", BASES)
def test_absent_fields_take_the_defaults_of_transformers(model_type: str) -> None:
    model = build_model(BASES[model_type], name="defaults")
    assert_equal_to_reference(model)
    fields = {key: value for key, value in model.hf_config.items() if key != "model_type"}
    reference = CONFIG_MAPPING[model_type].from_dict(deepcopy(fields))
    attention, feed_forward = model.layers[0].attention, model.layers[0].feed_forward
    names = ("hidden_activation", "activation_function", "hidden_act")
    assert feed_forward.activation == next(getattr(reference, name) for name in names if hasattr(reference, name))
    assert attention.num_key_value_heads == getattr(reference, "num_key_value_heads", 4)
    assert attention.head_dim == getattr(reference, "head_dim", 16)
    assert attention.window == getattr(reference, "sliding_window", None)
    assert attention.attn_logit_softcapping == getattr(reference, "attn_logit_softcapping", None)
    rope = getattr(reference, "rope_parameters", None) or {}
    assert attention.partial_rotary_factor == rope.get("partial_rotary_factor", 1.0)
    assert model.final_logit_softcapping == getattr(reference, "final_logit_softcapping", None)
    assert model.use_parallel_residual == getattr(reference, "use_parallel_residual", False)
    assert model.max_position_embeddings == reference.max_position_embeddings
    assert model.tie_word_embeddings == reference.tie_word_embeddings


@pytest.mark.parametrize(
    ("base", "change"),
    [
        (PHI3, {"partial_rotary_factor": 0.5}),
        (PHI3, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        (PHI3, {"rope_scaling": LONGROPE, "original_max_position_embeddings": 32}),
        (NEOX, {"rotary_pct": 0.5}),
        (NEOX, {"rotary_pct": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        (NEOX, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        (NEOX, {"partial_rotary_factor": 0.5}),
    ],
    ids=str,
)
def test_the_turned_share_of_a_head_equals_transformers(base: dict[str, Any], change: dict[str, Any]) -> None:
    model = build_model({**base, **change}, name="rotary")
    rope = build_reference(model.hf_config).config.rope_parameters
    assert model.layers[0].attention.partial_rotary_factor == rope["partial_rotary_factor"]


@pytest.mark.parametrize("kinds", [None, ["full_attention", "sliding_attention", "sliding_attention"]], ids=str)
@pytest.mark.parametrize("window", [4, 4096])
def test_windows_of_gemma2_equal_transformers(window: int, kinds: list[str] | None) -> None:
    model = build_model({**GEMMA2, "sliding_window": window, "layer_types": kinds}, name="windows")
    layers = build_reference(model.hf_config).model.layers
    windows = [layer.self_attn.sliding_window for layer in layers]
    assert [model.layer(index).attention.window for index in range(3)] == windows
    assert all(left != right for left, right in pairwise(model.layers))
    assert window in windows
    assert None in windows


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (GEMMA2, {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    (GEMMA2, {"num_key_value_heads": None}, "num_key_value_heads: found null"),
    (GEMMA2, {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4.*such as 64"),
    (GEMMA2, {"head_dim": 7}, "head_dim is 7; rotary position embeddings need an even one"),
    (GEMMA2, {"head_dim": None}, "head_dim: found null"),
    (GEMMA2, {"hidden_activation": None}, "hidden_activation: found null; needed one of .*gelu_pytorch_tanh"),
    (GEMMA2, {"attn_logit_softcapping": 50}, "attn_logit_softcapping: found 50; needed null or a positive decimal"),
    (GEMMA2, {"final_logit_softcapping": 0.0}, "final_logit_softcapping: found 0.0; needed null or a positive"),
    (GEMMA2, {"query_pre_attn_scalar": 144.0}, "query_pre_attn_scalar: found 144.0; needed an integer"),
    (GEMMA2, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: found 0"),
    (GEMMA2, {"sliding_window": None}, "sliding_window is null, but layers slide"),
    (GEMMA2, {"layer_types": ["attention"] * 3}, "layer_types: found .*full_attention, sliding_attention"),
    (GEMMA2, {"layer_types": ["full_attention"]}, "layer_types has 1 entries; needed num_hidden_layers 3"),
    (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention: found true; needed null or false"),
    (GEMMA2, {"attention_bias": 1}, "attention_bias: found 1; needed true or false"),
    (GEMMA2, {"pad_token_id": 70}, "pad_token_id: found 70"),
    (PHI3, {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    (PHI3, {"hidden_size": 60}, "head_dim is 15, of which rotary position embeddings turn 15; needed an even number"),
    (PHI3, {"partial_rotary_factor": 1.5}, "partial_rotary_factor: found 1.5; needed a number from 0 to 1"),
    (PHI3, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: found .*default, longrope, su, yarn"),
    (PHI3, {"rope_scaling": {"type": "longrope"}}, r"rope_scaling\.short_factor: found no list; needed a list of 8"),
    (PHI3, {"rope_scaling": {**LONGROPE, "long_factor": [1.0]}}, "long_factor: found 1 entries; needed a list of 8"),
    (PHI3, {"resid_pdrop": None}, "resid_pdrop: found null"),
    (PHI3, {"model_type": "phi3small"}, 'model_type "phi3small" is not supported; supported: .*phi3'),
    (PHI3, {"num_local_experts": 16}, "num_local_experts is set: mixture-of-experts"),
    (NEOX, {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4.*such as 64"),
    (NEOX, {"rotary_pct": -0.25}, "rotary_pct: found -0.25; needed a number from 0 to 1"),
    (NEOX, {"rotary_pct": 1.0, "hidden_size": 60}, "head_dim is 15, of which rotary position embeddings turn 15"),
    (NEOX, {"rotary_emb_base": 0}, "rotary_emb_base: found 0"),
    (NEOX, {"layer_norm_eps": 1}, "layer_norm_eps: found 1; needed a positive decimal number"),
    (NEOX, {"use_parallel_residual": None}, "use_parallel_residual: found null"),
    (NEOX, {"hidden_dropout": 2}, "hidden_dropout: found 2"),
    (OPT, {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4.*such as 64"),
    (OPT, {"word_embed_proj_dim": 32}, "word_embed_proj_dim: found 32; needed null or hidden_size 64.*opt-350m.*1.3b"),
    (OPT, {"do_layer_norm_before": False}, "do_layer_norm_before: found false; needed true: .*opt-350m.*opt-125m"),
    (OPT, {"_remove_final_layer_norm": True}, "_remove_final_layer_norm: found true; needed false"),
    (OPT, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine: found false; needed true"),
    (OPT, {"enable_bias": None}, "enable_bias: found null"),
    (OPT, {"layerdrop": 1.5}, "layerdrop: found 1.5"),
    (OPT, {"activation_function": "prelu"}, "activation_function: found"),
]


@pytest.mark.parametrize(("base", "change", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_names_the_value_found_and_needed(
    base: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    build_model(base, name="the base is good")
    with pytest.raises(InputError, match=message):
        build_model({**base, **change}, name="x", where="my file")


SIZE_FIELDS = [
    (name, field) for name, base in BASES.items() for field in base if field not in ("model_type", "pad_token_id")
]


@pytest.mark.parametrize(("name", "field"), SIZE_FIELDS)
def test_sizes_are_required(name: str, field: str) -> None:
    rest = {key: value for key, value in BASES[name].items() if key != field}
    with pytest.raises(InputError, match=f"lacks the field '{field}'"):
        build_model(rest, name="x")
    for value in (0, "64", 64.0, True, None, 10**12):
        with pytest.raises(InputError, match=f"{field}: found .*; needed an integer from 1 to") as caught:
            build_model({**rest, field: value}, name="x")
        assert json.dumps(value) in str(caught.value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)
FIELDS = sorted({field for base in BASES.values() for field in base} | {f for some in OPTIONAL.values() for f in some})


@given(
    base=st.sampled_from(list(BASES.values())),
    field=st.sampled_from([*FIELDS, "layer_types", "rope_scaling", "rope_parameters", "dropout"]),
    value=JSON_VALUES,
)
def test_any_json_value_is_a_model_or_an_input_error(base: dict[str, Any], field: str, value: Any) -> None:
    with contextlib.suppress(InputError):
        assert num_parameters(build_model({**base, field: value}, name="x")) > 0


def test_dropout_that_training_leaves_out_is_said() -> None:
    assert config_notices(OPT) == ("dropout 0.1 in the config (dropout) is set to 0",)
    assert config_notices({**OPT, "dropout": 0.0, "layerdrop": 0.2}) == (
        "dropout 0.2 in the config (layerdrop) is set to 0",
    )
    assert config_notices({**NEOX, "hidden_dropout": 0.1}) == (
        "dropout 0.1 in the config (hidden_dropout) is set to 0",
    )
    assert config_notices({**PHI3, "resid_pdrop": 0.1}) == ("dropout 0.1 in the config (resid_pdrop) is set to 0",)
    assert config_notices(GEMMA2) == config_notices(PHI3) == config_notices(NEOX) == ()

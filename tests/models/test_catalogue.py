"""The catalogue against the figures that its sources publish."""

import json
import math

import pytest
import yaml

from costmodel.models import (
    build_model,
    catalogue,
    config_notices,
    describe_models,
    layer_tensors,
    list_models,
    load_model,
    num_layer_parameters,
    num_parameters,
)
from costmodel.specs import InputError, ModelSpec

# arXiv 2104.04473, table 1: billions of parameters, attention heads, hidden size, layers.
MEGATRON_TABLE_1 = {
    "megatron-gpt-1.7b": (1.7, 24, 2304, 24),
    "megatron-gpt-3.6b": (3.6, 32, 3072, 30),
    "megatron-gpt-7.5b": (7.5, 32, 4096, 36),
    "megatron-gpt-18.4b": (18.4, 48, 6144, 40),
    "megatron-gpt-39.1b": (39.1, 64, 8192, 48),
    "megatron-gpt-76.1b": (76.1, 80, 10240, 60),
    "megatron-gpt-145.6b": (145.6, 96, 12288, 80),
    "megatron-gpt-310.1b": (310.1, 128, 16384, 96),
    "megatron-gpt-529.6b": (529.6, 128, 20480, 105),
    "megatron-gpt-1008b": (1008.0, 160, 25600, 128),
}
# arXiv 2205.05198, table 3: attention heads, hidden size, layers.
MEGATRON_TABLE_3 = {
    "megatron-gpt-22b": (22, 64, 6144, 48),
    "megatron-gpt-175b": (175, 96, 12288, 96),
    "megatron-gpt-530b": (530, 128, 20480, 105),
    "megatron-gpt-1t": (1008, 160, 25600, 128),
}
# Parameters stored in the published safetensors files, as the hub's model pages count them.
PUBLISHED_COUNTS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3-medium-4k": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    # The pythia repository's README counts total parameters, arXiv 2204.06745 those of GPT-NeoX-20B.
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
}


def equation_2(model: ModelSpec) -> float:
    """arXiv 2104.04473, equation 2: parameters of a GPT with l layers, hidden size h, vocabulary V, s positions."""
    layers, hidden = model.num_hidden_layers, model.hidden_size
    rows = model.padded_vocab_size + model.max_position_embeddings
    return 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + rows / (12 * layers * hidden))


@pytest.mark.parametrize(("name", "row"), MEGATRON_TABLE_1.items())
def test_megatron_series_has_the_published_sizes(name: str, row: tuple[float, int, int, int]) -> None:
    billions, heads, hidden_size, layers = row
    model = load_model(name)
    assert (model.layers[0].attention.num_attention_heads, model.hidden_size, model.num_hidden_layers) == row[1:]
    assert (model.padded_vocab_size, model.max_position_embeddings) == (51200, 2048)
    assert round(num_parameters(model) / 1e9, 1) == billions
    # Equation 2 leaves out the final norm's weight and bias.
    assert math.isclose(num_parameters(model), equation_2(model) + 2 * hidden_size, rel_tol=1e-15)
    assert num_layer_parameters(model, layers - 1) == 12 * hidden_size**2 + 13 * hidden_size
    assert hidden_size % heads == 0


@pytest.mark.parametrize(("name", "row"), MEGATRON_TABLE_3.items())
def test_sequence_parallel_paper_has_the_published_sizes(name: str, row: tuple[int, int, int, int]) -> None:
    model = load_model(name)
    assert (model.layers[0].attention.num_attention_heads, model.hidden_size, model.num_hidden_layers) == row[1:]
    assert round(num_parameters(model) / 1e9) == row[0]


@pytest.mark.parametrize(("name", "count"), PUBLISHED_COUNTS.items())
def test_open_weights_have_the_published_counts(name: str, count: int) -> None:
    assert num_parameters(load_model(name)) == count


def test_gpt3_has_padded_rows_and_its_own_tokens() -> None:
    model = load_model("gpt3-175b")
    assert (model.vocab_size, model.padded_vocab_size) == (50257, 51200)
    assert model.hf_config["vocab_size"] == 51200
    assert num_parameters(model) == pytest.approx(174.6e9, rel=1e-3)  # arXiv 2104.04473, section 5.1


def test_every_name_loads_and_has_a_source() -> None:
    entries = describe_models()
    assert tuple(entry.name for entry in entries) == list_models()
    assert len(entries) >= 64
    for entry in entries:
        model = load_model(entry.name)
        assert model.name == entry.name
        assert model.hf_config["vocab_size"] == model.padded_vocab_size >= model.vocab_size
        assert entry.num_parameters == num_parameters(model)
        assert entry.source.startswith(("https://huggingface.co/", "arXiv ", "meshwright's own"))
        assert ModelSpec.model_validate_json(model.model_dump_json()) == model


def test_names_and_aliases_ignore_case_and_never_clash() -> None:
    names = [name for entry in describe_models() for name in (entry.name, *entry.aliases)]
    assert len({name.casefold() for name in names}) == len(names)
    assert load_model("LLaMA-3-70B") == load_model("llama-3-70b") == load_model("meta-llama/Meta-Llama-3-70B")
    assert load_model(" gpt2-small ") == load_model("gpt2")


def test_demo_models_are_small_and_divide() -> None:
    for name in ("llama-tiny-demo", "gpt2-tiny-demo"):
        model = load_model(name)
        attention, feed_forward = model.layers[0].attention, model.layers[0].feed_forward
        assert 5e6 < num_parameters(model) < 7e6
        assert model.vocab_size >= 256
        for size in (model.num_hidden_layers, attention.num_key_value_heads, feed_forward.intermediate_size):
            assert size % 4 == 0


def test_a_loaded_config_is_the_callers_own() -> None:
    first = load_model("llama-3.1-405b")
    scaling = first.hf_config["rope_scaling"]
    assert isinstance(scaling, dict)
    scaling["factor"] = 99.0
    assert load_model("llama-3.1-405b").hf_config["rope_scaling"]["factor"] == 8.0  # type: ignore[index,call-overload]


def test_layers_are_counted_from_zero() -> None:
    model = load_model("gpt2")
    assert layer_tensors(model, 11)[0].name == "transformer.h.11.ln_1.weight"
    for index in (-1, 12):
        with pytest.raises(IndexError):
            layer_tensors(model, index)
        with pytest.raises(IndexError):
            num_layer_parameters(model, index)


def test_megatron_gpt_by_dimensions() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 32}
    model = build_model({"model_type": "megatron-gpt", **sizes, "vocab_size": 100, "padded_vocab_size": 128}, name="m")
    assert num_parameters(model) == equation_2(model) + 2 * 64
    assert (model.model_type, model.hf_config["model_type"], model.hf_config["n_inner"]) == ("gpt2", "gpt2", None)
    untied = build_model(
        {
            "model_type": "megatron-gpt",
            **sizes,
            "vocab_size": 100,
            "tie_word_embeddings": False,
            "intermediate_size": 10,
        },
        name="m",
    )
    assert untied.hf_config["n_inner"] == untied.layers[0].feed_forward.intermediate_size == 10
    assert num_parameters(untied) == (
        3 * (4 * 64**2 + 4 * 64 + 2 * 64 * 10 + 10 + 64 + 4 * 64) + 2 * 100 * 64 + 32 * 64 + 2 * 64
    )


def test_notices_name_dropout_heads_and_custom_code() -> None:
    gpt2 = {"model_type": "gpt2"}
    assert config_notices(gpt2) == ("dropout 0.1 in the config (attn_pdrop, embd_pdrop, resid_pdrop) is set to 0",)
    assert config_notices({**gpt2, "attn_pdrop": 0.0, "embd_pdrop": 0, "resid_pdrop": 0.2}) == (
        "dropout 0.2 in the config (resid_pdrop) is set to 0",
    )
    assert config_notices({"model_type": "llama", "attention_dropout": 0.5}) == (
        "dropout 0.5 in the config (attention_dropout) is set to 0",
    )
    assert config_notices({"model_type": "llama", "attention_dropout": None}) == ()
    odd = {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"], "auto_map": {"AutoModel": "x.Y"}}
    architecture, code = config_notices(odd)
    assert "LlamaForSequenceClassification" in architecture
    assert "auto_map" in code
    assert config_notices(load_model("llama-3-70b").hf_config) == ()


def test_unknown_name_suggests_and_lists() -> None:
    with pytest.raises(InputError, match="did you mean llama-3-70b") as caught:
        load_model("lama-3-70b")
    assert all(name in str(caught.value) for name in list_models())


def test_catalogue_is_the_yaml_on_disk() -> None:
    """The merge keys of the YAML give whole configs: what is stored is what a plain YAML reader sees."""
    found: dict[str, object] = {}
    for path in catalogue._FOLDER.glob("*.yaml"):
        found |= yaml.safe_load(path.read_text())["models"]
    assert sorted(found) == sorted(list_models())
    assert json.loads(json.dumps(found["llama-2-7b"]["config"])) == load_model("llama-2-7b").hf_config  # type: ignore[index]

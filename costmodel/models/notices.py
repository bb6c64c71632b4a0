"""What a config.json asks for that a plan leaves out; said to the user, never silently dropped."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from costmodel.models.gpt_family import GPT2_DEFAULT_DROPOUT, GPT2_DROPOUTS
from costmodel.models.neox_family import NEOX_DROPOUTS
from costmodel.models.opt_family import OPT_DROPOUTS
from costmodel.models.phi_family import PHI3_DROPOUTS

# Rates by model type and field, with what transformers sets where a config.json says nothing.
_DEFAULT_RATES: Mapping[str, Mapping[str, float]] = {
    "gpt2": dict.fromkeys(GPT2_DROPOUTS, GPT2_DEFAULT_DROPOUT),
    "gpt_neox": dict.fromkeys(NEOX_DROPOUTS, 0.0),
    "opt": OPT_DROPOUTS,
    "phi3": dict.fromkeys(PHI3_DROPOUTS, 0.0),
}


def config_notices(hf_config: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Sentences about fields of a config.json that training with meshwright does not follow.

    Args:
        hf_config: a config.json; `ModelSpec.hf_config` keeps it verbatim, whatever is said here.

    Returns:
        Dropout that is set to 0 (the defaults of gpt2 and opt of 0.1 count), a head other than the language model's, custom code.
    """
    return (*_dropout(hf_config), *_architecture(hf_config), *_custom_code(hf_config))


def _dropout(hf_config: Mapping[str, JsonValue]) -> tuple[str, ...]:
    defaults = _DEFAULT_RATES.get(str(hf_config.get("model_type")), {"attention_dropout": 0.0})
    rates = {name: hf_config.get(name, default) for name, default in defaults.items()}
    by_rate: dict[JsonValue, list[str]] = {}
    for name, rate in rates.items():
        if rate:
            by_rate.setdefault(rate, []).append(name)
    return tuple(f"dropout {rate} in the config ({', '.join(names)}) is set to 0" for rate, names in by_rate.items())


def _architecture(hf_config: Mapping[str, JsonValue]) -> tuple[str, ...]:
    architectures = hf_config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return ()
    name = str(architectures[0])
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return ()
    return (f"architectures in the config names {name}; the causal language model with its head is planned",)


def _custom_code(hf_config: Mapping[str, JsonValue]) -> tuple[str, ...]:
    if not hf_config.get("auto_map"):
        return ()
    return (f"auto_map in the config (custom code) is ignored; transformers' own {hf_config['model_type']} is planned",)

"""transformers' own models, to compare with."""

from __future__ import annotations

import os
from copy import deepcopy
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from costmodel.models import model_tensors, num_layer_parameters, num_parameters
from costmodel.models.families import FAMILIES
from costmodel.specs import ModelSpec


def build_reference(hf_config: dict[str, Any], device: str = "meta") -> torch.nn.Module:
    """transformers' causal language model of a config.json."""
    fields = deepcopy(hf_config)
    config = CONFIG_MAPPING[fields.pop("model_type")].from_dict(fields)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config)


def assert_equal_to_reference(model: ModelSpec) -> None:
    """Names, shapes and order of every tensor, and the counts of every layer."""
    reference = [(name, tuple(p.shape)) for name, p in build_reference(model.hf_config).named_parameters()]
    assert [(tensor.name, tensor.shape) for tensor in model_tensors(model)] == reference
    sizes = {name: torch.Size(shape).numel() for name, shape in reference}
    assert num_parameters(model) == sum(sizes.values())
    family = FAMILIES[model.family]
    prefix = f"{family.base}.{family.layers}"
    for index in range(model.num_hidden_layers):
        in_layer = sum(size for name, size in sizes.items() if name.startswith(f"{prefix}.{index}."))
        assert num_layer_parameters(model, index) == in_layer > 0

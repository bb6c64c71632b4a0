"""gemma2, phi3, gpt_neox and opt keep for backward what the real modules save, and move what they move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from saved_tensors import BATCH, SEQUENCE, grid_of, one_device, run_transformers
from traffic_counter import count_layer

from costmodel.activation_memory import torch_end_bytes, torch_layer_bytes
from costmodel.layer_traffic import moved_bytes
from costmodel.layers import MicroBatch
from costmodel.models.config_reader import ACTIVATIONS
from costmodel.models.loader import build_model
from costmodel.runtimes.loader import load_runtime
from costmodel.stack import read_stack

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 515,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
WIDE = {**SIZES, "intermediate_size": 352}
GEMMA2 = {**WIDE, "model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 16}
PHI3 = {**WIDE, "model_type": "phi3", "num_key_value_heads": 2, "pad_token_id": None}
NEOX = {**WIDE, "model_type": "gpt_neox"}
OPT = {**SIZES, "model_type": "opt", "ffn_dim": 352}
UNCAPPED = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
SLIDES_SECOND = {"layer_types": ["full_attention", "sliding_attention"]}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA2,
    "gemma2-window": {**GEMMA2, **SLIDES_SECOND},
    "gemma2-uncapped": {**GEMMA2, **UNCAPPED},
    "gemma2-uncapped-window": {**GEMMA2, **UNCAPPED, **SLIDES_SECOND},
    "phi3": PHI3,
    "phi3-mha": {**PHI3, "num_key_value_heads": 8},
    "phi3-window": {**PHI3, "sliding_window": 16},
    "phi3-mha-window": {**PHI3, "num_key_value_heads": 8, "sliding_window": 16},
    "phi3-partly-rotary": {**PHI3, "partial_rotary_factor": 0.5},
    "gpt-neox": NEOX,
    "gpt-neox-sequential": {**NEOX, "use_parallel_residual": False},
    "gpt-neox-rotary": {**NEOX, "rotary_pct": 1.0},
    "opt": OPT,
    "opt-no-bias": {**OPT, "enable_bias": False},
}


@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_layer_keeps_what_transformers_saves(name: str, attention: str) -> None:
    """Exactly, byte for byte, in every format; the head side but for the scalar of the loss."""
    model = build_model(CONFIGS[name], name=name)
    for precision, scalar in (("bf16", 4), ("fp32", 4), ("fp64", 8)):
        saved = run_transformers(CONFIGS[name], precision, attention)
        training, grid = one_device("torch", precision, attention=attention), grid_of(micro_batch_size=BATCH)
        layer, end = (
            torch_layer_bytes(model, model.layers[-1], training, grid),
            torch_end_bytes(model, training, grid),
        )
        assert int(layer.kept[0]) == saved["layer 1"], precision
        assert int((end.kept + end.probabilities)[0]) + scalar == saved["after"], precision


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_fused_gate_is_kept_with_every_activation_function(activation: str) -> None:
    config = {**PHI3, "hidden_act": activation}
    model = build_model(config, name=activation)
    layer = torch_layer_bytes(model, model.layers[0], one_device("torch", "fp32"), grid_of(micro_batch_size=BATCH))
    assert int(layer.kept[0]) == run_transformers(config, "fp32", "fused")["layer 1"]


@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize("name", CONFIGS)
def test_core_attention_recomputation_keeps_what_attention_is_given_and_its_output(name: str, attention: str) -> None:
    """The mask of a window belongs to the stage: the first layer that has the window saves it for all."""
    model, training = build_model(CONFIGS[name], name=name), one_device("torch", "bf16", attention=attention)
    layer = torch_layer_bytes(model, model.layers[-1], training, grid_of(micro_batch_size=BATCH))
    saved = run_transformers(CONFIGS[name], "bf16", attention, recompute="core_attention")["layer 1"]
    mask = SEQUENCE**2 if "layer_types" in CONFIGS[name] else 0
    assert int((layer.kept - layer.attention_internals)[0]) + mask == saved


@pytest.mark.parametrize("name", [name for name in CONFIGS if "window" not in name and name != "gemma2"])
def test_a_layer_moves_what_its_operations_read_and_write(name: str) -> None:
    """All but products and attention, within 6%: norms and rotary positions are counted in whole accesses."""
    one = np.ones(1)
    model = build_model(CONFIGS[name], name=name)
    batch = MicroBatch(
        sequences=BATCH * one,
        sequence_length=SEQUENCE,
        tensor_parallel=one,
        sequence_parallel=0 * one,
        loss_parallel=0 * one,
        wrapped=0 * one,
        forward_collectives=0 * one,
        backward_collectives=0 * one,
    )
    stack = read_stack(load_runtime("torch"))
    fp32: Any = SimpleNamespace(element_bytes=4)
    moved = moved_bytes(model, model.layers[-1], batch=batch, ceiling=fp32, stack=stack)
    counted = count_layer(CONFIGS[name])
    assert [float(part[0]) for part in moved] == [pytest.approx(4 * each.elements, rel=0.06) for each in counted]
    operations = stack.layer_operations(model.family)
    if name in ("phi3", "gpt-neox", "opt"):
        assert [each.operations for each in counted] == list(operations)


def test_operations_of_a_layer_with_capped_scores() -> None:
    counted = count_layer(CONFIGS["gemma2"])
    assert tuple(each.operations for each in counted) == read_stack(load_runtime("torch")).layer_operations("gemma")

"""What is kept for backward: real transformers layers, the equations of arXiv 2205.05198, and schedules counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory_worlds import gpt, make_plan
from saved_tensors import BATCH, SEQUENCE, grid_of, one_device, run_transformers
from transformers.activations import ACT2FN

from costmodel.activation_memory import ACTIVATION_TENSORS, GRADIENT_TENSORS, torch_end_bytes, torch_layer_bytes
from costmodel.in_flight import in_flight, in_flight_of_chunk
from costmodel.megatron_activation_memory import megatron_layer_bytes
from costmodel.models.config_reader import ACTIVATIONS
from costmodel.models.loader import build_model
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.schedules import rank_operations
from costmodel.specs import MemoryAccounting, ModelSpec, TrainingSpec
from executor.storage import StorageTracker

GIB = 2**30

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 515,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 8,
    "n_positions": 128,
    "vocab_size": 515,
    "activation_function": "gelu_new",
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-mha": {**LLAMA, "num_key_value_heads": 8},
    "llama-gelu": {**LLAMA, "hidden_act": "gelu_pytorch_tanh"},
    "mistral-window": {**LLAMA, "model_type": "mistral", "sliding_window": 16},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "gpt2": GPT2,
    "gpt2-relu": {**GPT2, "activation_function": "relu"},
}


@pytest.mark.parametrize(
    ("name", "attention", "precision"),
    [
        *((name, attention, "bf16") for name in CONFIGS for attention in ("fused", "unfused")),
        *((name, "fused", precision) for name in ("llama", "gpt2", "qwen3") for precision in ("fp32", "fp64")),
    ],
)
def test_a_layer_keeps_what_transformers_saves(name: str, attention: str, precision: str) -> None:
    """Exactly, byte for byte: the storages that autograd saves while one layer of a real model runs."""
    saved = run_transformers(CONFIGS[name], precision, attention)
    model = build_model(CONFIGS[name], name=name)
    training, grid = one_device("torch", precision, attention=attention), grid_of(micro_batch_size=BATCH)
    layer = torch_layer_bytes(model, model.layers[0], training, grid)
    assert int(layer.kept[0]) == saved["layer 1"]
    end = torch_end_bytes(model, training, grid)
    assert int((end.kept + end.probabilities)[0]) == pytest.approx(saved["after"], rel=0.01)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_function_keeps_what_it_saves(activation: str) -> None:
    config = {**GPT2, "activation_function": activation}
    saved = run_transformers(config, "fp32", "fused")
    model = build_model(config, name=activation)
    layer = torch_layer_bytes(model, model.layers[0], one_device("torch", "fp32"), grid_of(micro_batch_size=BATCH))
    assert int(layer.kept[0]) == saved["layer 1"]


@pytest.mark.parametrize("activation", [*ACTIVATION_TENSORS, "silu", "gelu", "relu2"])
def test_every_activation_function_needs_its_gradients_between_two_products(activation: str) -> None:
    """At the widest point of backward, in tensors of its width beyond those that were kept; followed operation by operation."""
    given = torch.randn(1024, 8, dtype=torch.bfloat16)
    weights = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((8, 1024), (1024, 8))]
    with StorageTracker(torch.device("cpu")) as tracker:
        output = ACT2FN[activation](given @ weights[0]) @ weights[1]
        gradient, kept = torch.ones_like(output), tracker.live_bytes
        tracker.peak_bytes = kept
        output.backward(gradient)
    assert round((tracker.peak_bytes - kept) / (2 * 1024 * 1024), 1) == GRADIENT_TENSORS.get(activation, 1)


def published(
    *, hidden: int, heads: int, batch: int, tensor_parallel: int, sequence_parallel: bool
) -> tuple[ModelSpec, TrainingSpec, Grid]:
    model = gpt(hidden=hidden, layers=2, heads=heads)
    training = TrainingSpec(
        global_batch_size=batch,
        sequence_length=2048,
        precision=load_runtime("megatron").precisions["fp16"],
        attention_implementation="unfused",
    )
    grid = grid_of(micro_batch_size=batch, tensor_parallel_size=tensor_parallel, sequence_parallel=sequence_parallel)
    return model, training, grid


# Table 3 of arXiv 2205.05198: 22B, 175B (GPT-3), 530B (MT-NLG) and 1T, sequences of 2,048, tensor parallel 8.
WITH_DROPOUT = MemoryAccounting(dropout_masks=True)
SIZES = {"22B": (6144, 64, 4), "175B": (12288, 96, 1), "530B": (20480, 128, 1), "1T": (25600, 160, 1)}


@pytest.mark.parametrize("name", SIZES)
def test_equations_1_2_4_and_6_of_selective_recomputation(name: str) -> None:
    """arXiv 2205.05198, equations (1), (2), (4) and (6), with the masks of dropout that they include."""
    h, a, b = SIZES[name]
    s, t = 2048, 8
    sbh = s * b * h

    def layer(tensor_parallel: int, sequence_parallel: bool) -> Any:
        model, training, grid = published(
            hidden=h, heads=a, batch=b, tensor_parallel=tensor_parallel, sequence_parallel=sequence_parallel
        )
        return megatron_layer_bytes(model, model.layers[0], training, grid, accounting=WITH_DROPOUT)

    alone, tensor, sequence = layer(1, False), layer(t, False), layer(t, True)
    assert int(alone.kept[0]) == sbh * 34 + 5 * a * s * sbh // h
    assert int(tensor.kept[0]) == sbh * 10 + sbh * 24 // t + 5 * a * s * sbh // (h * t)
    assert int(sequence.kept[0]) == (sbh * 34 + 5 * a * s * sbh // h) // t
    assert int((sequence.kept - sequence.attention_internals)[0]) == 34 * sbh // t
    assert int(alone.layer_input[0]) == 2 * sbh


@pytest.mark.parametrize(
    ("name", "layers", "stages", "chunks", "none", "selective"),
    [
        ("22B", 48, 1, 1, 59.25, 9.5625),
        ("175B", 96, 8, 3, 66.84375, 12.3515625),
        ("530B", 105, 35, 3, 114.0234375, 23.076171875),
        ("1T", 128, 64, 1, 131.25, 26.5625),
    ],
)
def test_figure_1_activations_of_the_first_stage(
    name: str, layers: int, stages: int, chunks: int, none: float, selective: float
) -> None:
    """arXiv 2205.05198, figure 1, GiB: equation (5) with L (1 + (p - 1) / (p v)) layers in flight when interleaved.

    Without recomputation the baseline is tensor parallel only, selective recomputation comes with sequence parallelism.
    """
    h, a, b = SIZES[name]
    schedule = "none" if stages == 1 else ("interleaved_1f1b" if chunks > 1 else "1f1b")
    count = 8 * stages
    flying = grid_of(
        pipeline_parallel_size=stages, num_model_chunks=chunks, pipeline_schedule=schedule, num_micro_batches=count
    )
    in_flight_layers = int(in_flight(flying, np.array([0]))[0]) * (layers // (stages * chunks))
    for sequence_parallel, expected in ((False, none), (True, selective)):
        model, training, grid = published(
            hidden=h, heads=a, batch=b, tensor_parallel=8, sequence_parallel=sequence_parallel
        )
        layer = megatron_layer_bytes(model, model.layers[0], training, grid, accounting=WITH_DROPOUT)
        kept = layer.kept - layer.attention_internals * sequence_parallel
        assert in_flight_layers * int(kept[0]) / GIB == pytest.approx(expected, rel=1e-9)


def test_without_dropout_and_with_fused_attention_the_masks_and_scores_go() -> None:
    model, training, grid = published(hidden=1024, heads=16, batch=1, tensor_parallel=1, sequence_parallel=False)
    s, h, a = 2048, 1024, 16
    unfused = megatron_layer_bytes(model, model.layers[0], training, grid)
    assert int(unfused.kept[0]) == 32 * s * h + 2 * a * s * s
    fused = training.model_copy(update={"attention_implementation": "fused"})
    assert int(megatron_layer_bytes(model, model.layers[0], fused, grid).kept[0]) == 32 * s * h + 4 * a * s


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 30), st.data())
def test_in_flight_is_the_most_that_the_order_of_operations_holds(
    ranks: int, chunks: int, count: int, data: st.DataObject
) -> None:
    """Brute force over the table of operations of every schedule: forwards less backwards, at most."""
    names = ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"]
    schedule = data.draw(st.sampled_from(names)) if ranks > 1 else "none"
    chunks = chunks if schedule in ("interleaved_1f1b", "looped_bfs") else 1
    if schedule == "interleaved_1f1b":
        count -= count % max(1, count // ranks)
    grid = grid_of(
        pipeline_parallel_size=ranks,
        num_model_chunks=chunks,
        pipeline_schedule=schedule,
        num_micro_batches=count,
    )
    rank = data.draw(st.integers(0, ranks - 1))
    running, most, by_chunk = 0, 0, [0] * chunks
    at_peak: list[int] = []
    order = "1f1b" if schedule == "none" else schedule
    for operation in rank_operations(order, rank=rank, num_ranks=ranks, num_chunks=chunks, num_micro_batches=count):
        running += -1 if operation.kind else 1
        by_chunk[operation.chunk] += -1 if operation.kind else 1
        if running > most:
            most, at_peak = running, list(by_chunk)
    total = in_flight(grid, np.array([rank]))
    assert int(total[0]) == most
    assert [int(in_flight_of_chunk(grid, total, chunk)[0]) for chunk in range(chunks)] == at_peak


def test_naive_model_parallelism_keeps_the_whole_batch() -> None:
    grid = grid_of(pipeline_parallel_size=4, pipeline_schedule="naive", num_micro_batches=1)
    assert [int(in_flight(grid, np.array([rank]))[0]) for rank in range(4)] == [1, 1, 1, 1]


def test_sequence_parallelism_cuts_norms_and_leaves_gathered_inputs() -> None:
    """Runtime torch keeps the gathered input of each block: only the norms and the layer's input shrink by t."""
    model = build_model(LLAMA, name="llama")
    training = one_device("torch", "bf16")
    plain, cut = (
        torch_layer_bytes(model, model.layers[0], training, grid_of(tensor_parallel_size=2, sequence_parallel=flag))
        for flag in (False, True)
    )
    tokens, hidden = SEQUENCE, 128
    norms = 2 * tokens * (hidden * 6 + 4)
    assert int(plain.kept[0] - cut.kept[0]) == norms // 2
    assert int(cut.layer_input[0]) * 2 == int(plain.layer_input[0])


def test_a_plan_without_layers_in_a_stage_is_impossible() -> None:
    from costmodel.specs import InputError

    with pytest.raises(InputError, match="cannot fill"):
        make_plan(gpt(hidden=64, layers=2, heads=8), pipeline_parallel_size=4, pipeline_schedule="1f1b")

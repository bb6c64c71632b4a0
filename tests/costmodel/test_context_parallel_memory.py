"""Context parallelism in memory: activations, logits, buffers and states, by closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memory_worlds import GIB, gpt, llama, make_plan

from costmodel.activation_memory import torch_end_bytes, torch_layer_bytes
from costmodel.context_parallel import context_buffers
from costmodel.megatron_activation_memory import megatron_end_bytes, megatron_layer_bytes
from costmodel.memory import plan_memory
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import ModelSpec, ParallelConfig
from costmodel.state_memory import state_bytes

METHODS = ("ring", "all_gather", "all_to_all")
MODEL = gpt(hidden=1024, layers=8, heads=16)
LENGTH = 2048


def grid(size: int, method: str | None, **sizes: Any) -> Grid:
    parallel = ParallelConfig.model_validate(
        {"context_parallel_size": size, "context_parallel_method": method, "micro_batch_size": 2, **sizes}
    )
    return Grid.from_parallel(parallel, "none")


def cut(size: int, method: str | None, *, model: ModelSpec = MODEL, runtime: str = "megatron", **sizes: Any) -> Any:
    return make_plan(
        model,
        runtime=runtime,
        sequence=LENGTH,
        context_parallel_size=size,
        context_parallel_method=method,
        **sizes,
    )


@pytest.mark.parametrize(
    ("layer_bytes", "end_bytes"), [(torch_layer_bytes, torch_end_bytes), (megatron_layer_bytes, megatron_end_bytes)]
)
@pytest.mark.parametrize("method", METHODS)
def test_activations_and_logits_are_cut(layer_bytes: Any, end_bytes: Any, method: str) -> None:
    """With as many key-value heads as heads nothing is copied, so everything that is kept has T / c tokens."""
    training = make_plan(MODEL, sequence=LENGTH).training
    group = MODEL.layers[0]
    whole, part = (
        layer_bytes(MODEL, group, training, each)
        for each in (grid(1, None, tensor_parallel_size=2), grid(4, method, tensor_parallel_size=2))
    )
    for name in ("kept", "attention_internals", "layer_input"):
        assert 4 * getattr(part, name)[0] == getattr(whole, name)[0], name
    assert 4 * part.points[0].gradients[0] == whole.points[0].gradients[0]
    whole, part = (end_bytes(MODEL, training, each) for each in (grid(1, None), grid(4, method)))
    for name in ("kept", "probabilities", "logits"):
        assert 4 * getattr(part, name)[0] == getattr(whole, name)[0], name


def test_sequence_parallel_cuts_what_is_left() -> None:
    training = make_plan(MODEL, sequence=LENGTH).training
    both = grid(4, "ring", tensor_parallel_size=2, sequence_parallel=True)
    found = megatron_layer_bytes(MODEL, MODEL.layers[0], training, both).layer_input[0]
    assert found == 2 * 2 * LENGTH // 8 * 1024


def test_buffers_of_every_method() -> None:
    """4 K for a ring, 2 c K for a gather, copied heads for an exchange; K = 2 tensors of 2 x 2048/4 tokens, 2 bytes."""
    model = llama(hidden=256, layers=2, heads=8, key_heads=2)
    attention, training = model.layers[0].attention, make_plan(model, sequence=LENGTH).training
    keys = 2 * 2 * (LENGTH // 4) * 2 * attention.head_dim * 2
    found = {method: context_buffers(attention, training, grid(4, method)) for method in METHODS}
    assert [int(column[0]) for column in found["ring"]] == [0, 4 * keys]
    assert [int(column[0]) for column in found["all_gather"]] == [0, 2 * 4 * keys]
    assert [int(column[0]) for column in found["all_to_all"]] == [keys, 0]  # 2 heads become 4
    assert [int(column[0]) for column in context_buffers(attention, training, grid(1, None))] == [0, 0]


@pytest.mark.parametrize("runtime", ["torch", "megatron"])
def test_states_are_sharded_over_data_and_context_ranks(runtime: str) -> None:
    """2 x 4 devices hold what 8 data-parallel ones hold, every rank of them."""
    profile = load_runtime(runtime)
    data = cut(1, None, runtime=runtime, data_parallel_shard_size=8, zero_stage=1)
    both = cut(4, "ring", runtime=runtime, data_parallel_shard_size=2, zero_stage=1)
    for rank in range(8):
        assert state_bytes(both, profile, rank) == state_bytes(data, profile, rank)
    alone = cut(4, "ring", runtime=runtime, data_parallel_shard_size=1, zero_stage=1)
    quarter = cut(1, None, runtime=runtime, data_parallel_shard_size=4, zero_stage=1)
    assert state_bytes(alone, profile, 3) == state_bytes(quarter, profile, 3)


def test_states_without_zero_are_whole() -> None:
    profile = load_runtime("megatron")
    assert state_bytes(cut(4, "ring"), profile, 2) == state_bytes(cut(1, None), profile, 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_long_sequence_fits_in_parts(method: str) -> None:
    """131,072 tokens of an 8B-like layer stack: the peak falls with every doubling of the parts."""
    model = llama(hidden=4096, layers=2, heads=32, key_heads=8)
    peaks = []
    for size in (1, 2, 4, 8):
        plan = make_plan(
            model,
            runtime="megatron",
            sequence=131072,
            context_parallel_size=size,
            context_parallel_method=method if size > 1 else None,
        )
        (stage,) = plan_memory(plan, load_runtime("megatron"))
        peaks.append(stage.peak_bytes)
    assert np.all(np.diff(peaks) < 0)
    assert peaks[0] - peaks[-1] > GIB

"""Elements per device: torch.chunk's parts, padding, and shards that sum to the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_worlds import gpt, llama, make_plan

from costmodel.models.parameters import ParameterTensor, embedding_tensors, num_parameters
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.loader import load_runtime
from costmodel.shard_sizes import Cut, model_sizes, part_of, tensors_sizes
from costmodel.stage_contents import even_contents, plan_contents


def cut(tensor_parallel: int = 1, shards: int = 1, *, rank: int = 0, shard: int = 0) -> Cut:
    return Cut(np.array([tensor_parallel]), np.array([shards]), rank, shard)


def chunk_rows(extent: int, parts: int) -> list[int]:
    """torch.chunk as its documentation defines it: equal chunks, the last one smaller, later ones missing."""
    size = -(-extent // parts)
    rows = [len(range(start, min(start + size, extent))) for start in range(0, extent, size)]
    return rows + [0] * (parts - len(rows))


@given(st.integers(1, 300), st.integers(1, 40))
def test_parts_are_those_of_torch_chunk(extent: int, parts: int) -> None:
    found = [int(part_of(extent, np.array([parts]), index)[0]) for index in range(parts)]
    assert found == chunk_rows(extent, parts)


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_shards_of_a_cut_tensor_sum_to_the_whole(rows: int, columns: int, size: int, shards: int) -> None:
    tensor = ParameterTensor("weight", (rows, columns), 0)
    parts = [
        tensors_sizes([tensor], cut(size, shards, rank=rank, shard=shard))
        for rank in range(size)
        for shard in range(shards)
    ]
    assert sum(int(part.own[0]) for part in parts) == rows * columns
    assert all(part.padded[0] >= part.own[0] for part in parts)


def test_padded_shards_by_hand() -> None:
    """A [131, 64] table over tp 2 along the vocabulary is 66 and 65 rows; over 4 shards those are 17 rows each, padded."""
    table = ParameterTensor("table", (131, 64), 0)
    first, second = (tensors_sizes([table], cut(2, 4, rank=rank, shard=3)) for rank in (0, 1))
    assert (int(first.local[0]), int(second.local[0])) == (66 * 64, 65 * 64)
    assert (int(first.padded[0]), int(second.padded[0])) == (17 * 64, 17 * 64)
    assert (int(first.own[0]), int(second.own[0])) == (15 * 64, 14 * 64)
    assert int(first.gathered[0]) == 68 * 64


def test_a_fused_tensor_is_cut_block_by_block() -> None:
    fused = ParameterTensor("c_attn", (64, 192), 1, parts=(64, 64, 64))
    assert int(tensors_sizes([fused], cut(4)).local[0]) == 64 * 3 * 16


@pytest.mark.parametrize(("runtime", "tied", "shape"), [("torch", False, (131, 32)), ("torch", True, (66, 64))])
def test_which_dim_of_the_embedding_is_cut(runtime: str, tied: bool, shape: tuple[int, int]) -> None:
    """An untied table is cut along the hidden dim under runtime torch, a tied one along the vocabulary with the head."""
    sizes = model_sizes(llama(tied=tied), load_runtime(runtime), cut(2))
    assert int(sizes.token_embedding.local[0]) == shape[0] * shape[1]


@pytest.mark.parametrize("model", [llama(), llama(tied=True), gpt(hidden=64, layers=6, heads=8, vocab=131)])
@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (2, 1), (4, 1), (3, 2)])
def test_stages_sum_to_the_model(model, stages: int, chunks: int) -> None:
    """A tied table is held twice when the first and the last stage are different ranks."""
    from costmodel.state_memory import chunk_sizes

    schedule = "none" if stages == 1 else ("interleaved_1f1b" if chunks > 1 else "1f1b")
    plan = make_plan(
        model,
        pipeline_parallel_size=stages,
        num_model_chunks=chunks,
        pipeline_schedule=schedule,
        num_micro_batches=stages,
    )
    sizes = model_sizes(model, load_runtime("torch"), cut())
    total = chunk_sizes(model, sizes, plan_contents(plan, range(stages)).chunks).total
    copies = embedding_tensors(model)[0].num_elements if model.tie_word_embeddings and stages > 1 else 0
    assert int(total.local.sum()) == num_parameters(model) + copies


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 40))
def test_even_contents_are_even_split(stages: int, chunks: int, layers: int) -> None:
    virtual = stages * chunks
    layers = max(layers, virtual)
    model = llama(layers=layers)
    grid = Grid.from_plan(make_plan(model, pipeline_parallel_size=1))
    grid = replace(grid, pipeline_parallel_size=np.array([stages]), num_model_chunks=np.array([chunks]))
    found = [0] * virtual
    for rank in range(stages):
        held = even_contents(model, grid, np.array([rank])).chunks
        for index in range(chunks):
            found[index * stages + rank] = int(held.num_layers[index, 0])
            assert bool(held.embedding[index, 0]) == (index * stages + rank == 0)
            assert bool(held.head[index, 0]) == (index * stages + rank == virtual - 1)
    assert tuple(found) == even_split(layers, virtual)

"""Slices of tensors, initial values, reading weights, clipping: what can be checked in one process."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from executor_harness import Pool
from executor_plans import CONFIGS, make_model, make_plan
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from costmodel.models.parameters import model_tensors
from costmodel.specs import InputError
from executor.clip import scale_gradients, squared_norm
from executor.fused import Fused, fused_tensors
from executor.hf_models import build_config, build_whole_model
from executor.initialize import RandomWeights, SafetensorsWeights, fill_parameters
from executor.sharding import Layout, local_pieces, owns
from executor.state import Piece, assemble

SIZES = {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "tp": 1}


@given(
    parts=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    columns=st.integers(1, 9),
    tensor=st.integers(1, 5),
    shard=st.integers(1, 7),
    dim=st.sampled_from([0, 1]),
)
def test_blocks_are_the_shard_that_torch_makes(
    parts: list[int], columns: int, tensor: int, shard: int, dim: int
) -> None:
    """torch's own rule: chunk() of every part over tp, put side by side, then over dp_shard along dim 0."""
    fused_dim = (sum(parts), columns) if dim == 0 else (columns, sum(parts))
    whole = torch.arange(math.prod(fused_dim)).view(fused_dim)
    seen = []
    for tp, dp in itertools.product(range(tensor), range(shard)):
        cut = torch.cat([_chunk(part, tensor, dim)[tp] for part in whole.split(parts, dim)], dim)
        expected = _chunk(cut, shard, 0)[dp]
        along = local_pieces(tuple(parts), tensor_parallel=(tensor, tp), shard=(shard, dp) if dim == 0 else (1, 0))
        index = torch.tensor([start + i for start, _, length in along for i in range(length)], dtype=torch.long)
        assert [own for _, own, _ in along] == [sum(piece[2] for piece in along[:i]) for i in range(len(along))]
        rows = local_pieces((columns,), tensor_parallel=(1, 0), shard=(shard, dp))
        found = whole.index_select(dim, index)
        if dim == 1:
            found = torch.cat([found[:0], *(found[start : start + length] for start, _, length in rows)])
        assert torch.equal(found, expected)
        seen.append(found.flatten())
    assert sorted(torch.cat(seen).tolist()) == list(range(whole.numel()))


def _chunk(tensor: torch.Tensor, count: int, dim: int) -> list[torch.Tensor]:
    chunks = list(tensor.chunk(count, dim))
    return chunks + [tensor.narrow(dim, 0, 0)] * (count - len(chunks))


def test_each_element_is_owned_once() -> None:
    sizes = {"dp_replicate": 2, "dp_shard": 3, "tp": 2}
    for dims in ({}, {"tp": 0}, {"dp_shard": 0}, {"tp": 1, "dp_shard": 0}):
        owners = sum(
            owns(dims, dict(zip(sizes, place, strict=True)))
            for place in itertools.product(*(range(size) for size in sizes.values()))
        )
        assert owners == math.prod(sizes[axis] for axis in dims)


def test_every_rank_holds_whole_heads_of_a_fused_dim() -> None:
    names = [f"{part}{head}" for part in "qkv" for head in range(4)]
    pieces = local_pieces((4, 4, 4), tensor_parallel=(2, 0), shard=(1, 0))
    assert [names[start + i] for start, _, length in pieces for i in range(length)] == [
        "q0",
        "q1",
        "k0",
        "k1",
        "v0",
        "v1",
    ]
    # The second half of that over dp_shard begins inside k.
    halves = local_pieces((4, 4, 4), tensor_parallel=(2, 0), shard=(2, 1))
    assert halves == [(5, 0, 1), (8, 1, 2)]


def test_blocks_are_views_of_the_local_tensor() -> None:
    layout = Layout(SIZES, dict.fromkeys(SIZES, 0), {"c_attn.weight": Fused(-1, (2, 2, 2))})
    weight = torch.zeros(3, 6)
    (block,) = layout.blocks("h.0.c_attn.weight", weight)  # nothing is cut
    block.view.fill_(1)
    assert (block.offsets, block.sizes, block.slices) == ((0, 0), (3, 6), (slice(0, 3), slice(0, 6)))
    assert weight.sum() == 18
    scalar = layout.blocks("h.0.c_attn.weight", torch.tensor(7.0))
    assert [(each.offsets, each.sizes, each.view.item()) for each in scalar] == [((), (), 7.0)]


def test_gpt2_fuses_query_key_and_value() -> None:
    parts = Fused(-1, (32, 32, 32))
    assert fused_tensors(build_config(make_model("gpt2"))) == {".c_attn.weight": parts, ".c_attn.bias": parts}
    assert fused_tensors(build_config(make_model("llama"))) == {}


def test_assemble_refuses_missing_pieces() -> None:
    piece: Piece = ("w", (4,), (slice(0, 2),), torch.ones(2))
    with pytest.raises(InputError, match="w: the processes hold 2 of its 4 elements"):
        assemble([piece])


def test_values_depend_on_name_and_seed_only() -> None:
    config = build_config(make_model("gpt2"))
    shape = (3000, 4096)  # several blocks
    weights = RandomWeights(3, config)
    whole = weights.rows("transformer.h.1.mlp.c_fc.weight", shape, 0, 3000)
    assert torch.equal(whole[1020:2050], weights.rows("transformer.h.1.mlp.c_fc.weight", shape, 1020, 2050))
    assert not torch.equal(whole[:1000], whole[1024:2024])
    assert not torch.equal(whole[:9], RandomWeights(4, config).rows("transformer.h.1.mlp.c_fc.weight", shape, 0, 9))
    assert not torch.equal(whole[:9], weights.rows("transformer.h.2.mlp.c_fc.weight", shape, 0, 9))
    assert whole.std().item() == pytest.approx(0.1, rel=1e-3)  # initializer_range
    residual = weights.rows("transformer.h.1.mlp.c_proj.weight", shape, 0, 3000)
    assert residual.std().item() == pytest.approx(0.1 / math.sqrt(8), rel=1e-3)  # 4 layers
    assert torch.equal(weights.rows("transformer.ln_f.weight", (8,), 2, 5), torch.ones(3))
    assert torch.equal(weights.rows("transformer.ln_f.bias", (8,), 2, 5), torch.zeros(3))


@pytest.mark.parametrize("name", CONFIGS)
def test_models_have_the_parameters_of_the_spec(name: str) -> None:
    model = make_model(name)
    whole = build_whole_model(model, torch.float32)
    found = {key: tuple(parameter.shape) for key, parameter in whole.named_parameters()}
    assert found == {tensor.name: tensor.shape for tensor in model_tensors(model)}
    assert all(parameter.is_meta for parameter in whole.parameters())
    assert whole.config.use_cache is False
    dropouts = [module.p for module in whole.modules() if isinstance(module, torch.nn.Dropout)]
    assert not any(dropouts)


def test_weights_are_read_from_safetensors(tmp_path: Path) -> None:
    values = torch.arange(24.0).view(6, 4)
    save_file({"h.0.mlp.c_fc.weight": values}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": values + 1}, tmp_path / "model-00002-of-00002.safetensors")
    source = SafetensorsWeights(str(tmp_path), base="transformer")
    bare, head = torch.nn.Parameter(torch.zeros(6, 4)), torch.nn.Parameter(torch.zeros(6, 4, dtype=torch.float64))
    named = [("transformer.h.0.mlp.c_fc.weight", bare), ("lm_head.weight", head)]
    fill_parameters(named, source, Layout(SIZES, dict.fromkeys(SIZES, 0), {}))
    assert torch.equal(bare, values)
    assert torch.equal(head, values.double() + 1)
    assert torch.equal(source.rows("lm_head.weight", (6, 4), 2, 4), values[2:4] + 1)
    with pytest.raises(InputError, match=r"lacks the tensor lm_head\.bias"):
        source.rows("lm_head.bias", (4,), 0, 4)
    with pytest.raises(InputError, match=r"has shape \[6, 4\]; the model needs \[7, 4\]"):
        source.rows("lm_head.weight", (7, 4), 0, 7)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("model", "num_tensors"), [("gpt2-63", 52), ("llama-tied-63", 38), ("phi3", 33), ("gpt-neox", 52)]
)
def test_a_sharded_run_starts_from_saved_weights(pool: Pool, model: str, num_tensors: int) -> None:
    sizes = {"tensor_parallel_size": 2, "data_parallel_shard_size": 2, "zero_stage": 3}
    job = {"kind": "loaded", "plan": make_plan(model, **sizes).model_dump_json()}
    assert pool.run(4, job) == (num_tensors, 0.0)


@pytest.mark.distributed
def test_a_pipeline_starts_from_saved_weights(pool: Pool) -> None:
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "pipeline_schedule": "gpipe"}
    job = {"kind": "loaded", "plan": make_plan("qwen3-tied", **sizes).model_dump_json()}
    assert pool.run(4, job) == (46, 0.0)


def test_unreadable_weights_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \*\.safetensors file"):
        SafetensorsWeights(str(tmp_path), base="model")
    (tmp_path / "broken.safetensors").write_bytes(b"not a header")
    with pytest.raises(InputError, match=r"broken\.safetensors cannot be read"):
        SafetensorsWeights(str(tmp_path), base="model")


def test_clipping_equals_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (5,), (0, 2))]
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=False)
    norm = squared_norm(gradients, torch.device("cpu")).sqrt()
    scale_gradients(gradients, norm, 0.5)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-14)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-14, atol=0)

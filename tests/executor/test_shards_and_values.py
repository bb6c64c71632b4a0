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
from executor.gpt2_tensor_parallel import from_tensor_parallel_order, to_tensor_parallel_order
from executor.hf_models import build_config, build_whole_model
from executor.initialize import RandomWeights, SafetensorsWeights, fill_parameters
from executor.sharding import local_slices, owns
from executor.state import Piece, assemble

SIZES = {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "tp": 1}


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 9),
    tensor=st.integers(1, 5),
    shard=st.integers(1, 7),
    dim=st.sampled_from([0, 1, None]),
)
def test_shards_partition_the_tensor(rows: int, columns: int, tensor: int, shard: int, dim: int | None) -> None:
    whole = torch.arange(rows * columns).view(rows, columns)
    dims = {"dp_shard": 0} if dim is None else {"tp": dim, "dp_shard": 0}
    sizes = {**SIZES, "tp": tensor if dim is not None else 1, "dp_shard": shard}
    pieces = []
    for tp, dp in itertools.product(range(sizes["tp"]), range(shard)):
        place = {"pp": 0, "dp_replicate": 0, "dp_shard": dp, "tp": tp}
        slices = local_slices((rows, columns), dims, sizes=sizes, coordinates=place)
        # torch's own rule: chunk() over tp, then over dp_shard
        expected = whole if dim is None else _chunk(whole, tensor, dim)[tp]
        assert torch.equal(whole[slices], _chunk(expected, shard, 0)[dp])
        pieces.append(whole[slices].flatten())
    assert sorted(torch.cat(pieces).tolist()) == list(range(rows * columns))


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


@pytest.mark.parametrize("dim", [0, 1])
def test_fused_order_gives_every_rank_whole_heads(dim: int) -> None:
    names = [f"{part}{head}" for part in "qkv" for head in range(4)]
    index = torch.arange(12) if dim == 0 else torch.arange(12).expand(3, 12)
    ordered = to_tensor_parallel_order(index, dim=dim, size=2)
    line = ordered if dim == 0 else ordered[0]
    assert [names[i] for i in line[:6]] == ["q0", "q1", "k0", "k1", "v0", "v1"]
    assert torch.equal(from_tensor_parallel_order(ordered, dim=dim, size=2), index)


def test_assemble_refuses_missing_pieces() -> None:
    piece: Piece = ("w", (4,), (slice(0, 2),), torch.ones(2))
    with pytest.raises(InputError, match="w: the processes hold 2 of its 4 elements"):
        assemble([piece], tensor_parallel_size=1)


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
    place = dict.fromkeys(SIZES, 0)
    named = [("transformer.h.0.mlp.c_fc.weight", bare), ("lm_head.weight", head)]
    fill_parameters(named, source, sizes=SIZES, coordinates=place)
    assert torch.equal(bare, values)
    assert torch.equal(head, values.double() + 1)
    assert torch.equal(source.rows("lm_head.weight", (6, 4), 2, 4), values[2:4] + 1)
    with pytest.raises(InputError, match=r"lacks the tensor lm_head\.bias"):
        source.rows("lm_head.bias", (4,), 0, 4)
    with pytest.raises(InputError, match=r"has shape \[6, 4\]; the model needs \[7, 4\]"):
        source.rows("lm_head.weight", (7, 4), 0, 7)


@pytest.mark.distributed
@pytest.mark.parametrize(("model", "num_tensors"), [("gpt2-63", 52), ("llama-tied-63", 38)])
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

"""How many elements of a model's tensors one device holds, as columns over candidates.

Tensor parallelism cuts a tensor first, then data parallelism shards what is left along dim 0.

    (1) rows of part i of n of an extent e        = clip(e - i k, 0, k)          k = ceil(e / n)     (torch.chunk)
    (2) local elements of a tensor                = product of its extents, the tensor-parallel one by (1) in every block
    (3) padded shard (FSDP2)                      = ceil(local rows / n) x rest  on every rank
    (4) own shard                                 = (1) of the local rows x rest
    (5) shard of a flat buffer (Megatron)         = ceil(local elements / n)

Index 0 of (1) is the largest part, so a cut whose indices are 0 describes the fullest device.
Sources: torch 2.13.0, torch/distributed/fsdp/_fully_shard/_fsdp_param.py (`_init_sharded_param`: `padded_sharded_size` is the
size of chunk 0); torch/distributed/tensor/placement_types.py (`Shard`); Megatron-LM, param_and_grad_buffer.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.layer_kinds import layer_kinds
from costmodel.memo import Content, Identical
from costmodel.models.parameters import ParameterTensor, embedding_tensors, head_tensors, layer_tensors
from costmodel.runtimes.grid import Grid
from costmodel.specs import ModelSpec, RuntimeProfile

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """Sizes of the tensor-parallel and the sharding group (columns) and one device's place in them."""

    tensor_parallel_size: Column
    shard_size: Column
    tensor_parallel_index: int = 0
    shard_index: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Elements that one device holds of a set of tensors: five columns, in one array [5, n] or [5, v, n]."""

    columns: Column

    @property
    def local(self) -> Column:
        """After tensor parallelism, before sharding."""
        return self.columns[0, ...]

    @property
    def padded(self) -> Column:
        """The shard with FSDP2's padding."""
        return self.columns[1, ...]

    @property
    def own(self) -> Column:
        """The shard without it."""
        return self.columns[2, ...]

    @property
    def gathered(self) -> Column:
        """The padded shards of the whole group together."""
        return self.columns[3, ...]

    @property
    def tensors(self) -> Column:
        """Number of tensors."""
        return self.columns[4, ...]

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.columns + other.columns)

    def __sub__(self, other: Sizes) -> Sizes:
        return Sizes(self.columns - other.columns)

    def times(self, count: Column | int) -> Sizes:
        """``count`` such sets, a number, [n] or [v, n]."""
        each = self.columns[:, None] if np.ndim(count) == self.columns.ndim else self.columns
        return Sizes(each * count)

    def take(self, rows: Column) -> Sizes:
        """The sets in ``rows``."""
        return Sizes(self.columns[:, rows])


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of the parts that pipeline stages are made of.

    ``token_embedding`` is part of ``embedding``; ``head`` is the final norm and, unless tied, the head;
    ``layers`` has one entry per layer kind.
    """

    embedding: Sizes
    token_embedding: Sizes
    head: Sizes
    final_norm: Sizes
    layers: tuple[Sizes, ...]

    def take(self, rows: Column) -> ModelSizes:
        """The sizes in ``rows``."""
        return ModelSizes(
            embedding=self.embedding.take(rows),
            token_embedding=self.token_embedding.take(rows),
            head=self.head.take(rows),
            final_norm=self.final_norm.take(rows),
            layers=tuple(layer.take(rows) for layer in self.layers),
        )


def ceil_div(value: Column, divisor: Column | int) -> Column:
    """Division rounded up."""
    return np.asarray(-(-value // divisor), dtype=np.int64)


def part_of(extent: Column | int, parts: Column, index: Column | int) -> Column:
    """Equation (1)."""
    chunk = ceil_div(np.asarray(extent, dtype=np.int64), parts)
    return np.minimum(np.maximum(extent - index * chunk, 0), chunk)


def model_sizes(model: ModelSpec, runtime: RuntimeProfile, cut: Cut) -> ModelSizes:
    """Equations (2) to (5) for every part of the model."""
    embedding = [_embedding_cut(model, runtime, tensor) for tensor in embedding_tensors(model)]
    head = head_tensors(model)
    norm = [tensor for tensor in head if tensor.tensor_parallel_dim is None]
    return ModelSizes(
        embedding=tensors_sizes(embedding, cut),
        token_embedding=tensors_sizes(embedding[:1], cut),
        head=tensors_sizes(head, cut),
        final_norm=tensors_sizes(norm, cut),
        layers=tuple(tensors_sizes(layer_tensors(model, kind.first), cut) for kind in layer_kinds(model)),
    )


def grid_model_sizes(model: ModelSpec, runtime: RuntimeProfile, grid: Grid) -> ModelSizes:
    """`model_sizes` of the fullest device of many rows: computed once for each of the few pairs of group sizes that they have."""
    shards = grid.shard_group_size
    base = int(shards.max(initial=0)) + 1
    pairs, rows = np.unique(grid.tensor_parallel_size * base + shards, return_inverse=True)
    distinct = Content(pairs // base, pairs % base)
    return _sizes_of_pairs(Identical(model), Identical(runtime), distinct).take(rows)


@lru_cache(maxsize=256)
def _sizes_of_pairs(model: Identical[ModelSpec], runtime: Identical[RuntimeProfile], pairs: Content) -> ModelSizes:
    """`model_sizes` of the fullest device; candidates that are priced again and again have the same few pairs."""
    tensor_parallel_size, shard_size = pairs.columns
    return model_sizes(model.value, runtime.value, Cut(tensor_parallel_size, shard_size))


def tensors_sizes(tensors: Iterable[ParameterTensor], cut: Cut) -> Sizes:
    """Equations (2) to (4) summed over ``tensors``."""
    held = tuple(tensors)
    zero = np.zeros_like(cut.tensor_parallel_size)
    if not held:
        return Sizes(np.array([zero] * 5))
    stacked = _stacked(held)
    parts = np.where(stacked.is_cut, cut.tensor_parallel_size, 1)
    of_blocks = part_of(stacked.blocks, parts, stacked.is_cut * cut.tensor_parallel_index)
    extent = np.add.reduceat(of_blocks, stacked.starts, axis=0)
    rows = np.where(stacked.along_rows, extent, stacked.rows)
    rest = np.where(stacked.along_rows, stacked.rest, stacked.rest * extent)
    padded = (ceil_div(rows, cut.shard_size) * rest).sum(axis=0)
    own = (part_of(rows, cut.shard_size, cut.shard_index) * rest).sum(axis=0)
    return Sizes(np.array([(rows * rest).sum(axis=0), padded, own, padded * cut.shard_size, zero + len(held)]))


class _Stacked(NamedTuple):
    """Tensors one below the other: blocks along the dim that is cut, and the extents of the rows and of all ``rest``."""

    blocks: Column  # [blocks, 1] extents, of a tensor that is not cut its rows
    is_cut: NDArray[np.bool_]  # [blocks, 1]
    starts: Column  # [tensors] first block of each
    along_rows: NDArray[np.bool_]  # [tensors, 1] whether the blocks are rows
    rows: Column  # [tensors, 1]
    rest: Column  # [tensors, 1]


@lru_cache(maxsize=1024)
def _stacked(tensors: tuple[ParameterTensor, ...]) -> _Stacked:
    dims = [tensor.tensor_parallel_dim or 0 for tensor in tensors]
    parts = [tensor.parts or (tensor.shape[dim],) for tensor, dim in zip(tensors, dims, strict=True)]
    cut = [tensor.tensor_parallel_dim is not None for tensor, own in zip(tensors, parts, strict=True) for _ in own]
    rest = [
        tensor.num_elements // prod({0: tensor.shape[0], dim: tensor.shape[dim]}.values())
        for tensor, dim in zip(tensors, dims, strict=True)
    ]
    return _Stacked(
        blocks=np.array([[block] for own in parts for block in own], dtype=np.int64),
        is_cut=np.array(cut)[:, None],
        starts=np.cumsum([0, *(len(own) for own in parts[:-1])]),
        along_rows=np.array(dims)[:, None] == 0,
        rows=np.array([[tensor.shape[0]] for tensor in tensors], dtype=np.int64),
        rest=np.array(rest, dtype=np.int64)[:, None],
    )


def _embedding_cut(model: ModelSpec, runtime: RuntimeProfile, tensor: ParameterTensor) -> ParameterTensor:
    """A tied table is cut along the vocabulary with the head; an untied one as the runtime does."""
    if tensor.tensor_parallel_dim is None or model.tie_word_embeddings or runtime.embedding_tensor_parallel == "vocab":
        return tensor
    return ParameterTensor(tensor.name, tensor.shape, 1)

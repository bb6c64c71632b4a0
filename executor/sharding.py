"""Which part of a whole tensor, as a Hugging Face checkpoint stores it, one process holds.

    (1) chunk c of n of an extent of e: [min(c k, e), min((c + 1) k, e)) with k = ceil(e / n)

Tensor parallelism cuts first, then dp_shard cuts the tensor-parallel shard along dim 0 (torch's `Shard` and `fully_shard`
both chunk as in (1)). Of a fused dim a tensor-parallel rank holds the chunk (1) of every part, part after part; dp_shard cuts
that row of pieces. So what a process holds is one block of the whole tensor, or of a fused one a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from executor.adapter import local_tensor, sharded_dims
from executor.fused import Fused

COPY_AXES = ("dp_replicate", "dp_shard", "tp")
Piece = tuple[int, int, int]
"""A run of indices along one dim: where it starts in the whole tensor, where in the local one, and its length."""


@dataclass(frozen=True, slots=True)
class Block:
    """A box of the whole tensor from ``offsets``, of the shape ``sizes``; ``view`` is the local memory that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    view: torch.Tensor

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index of the whole tensor."""
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """How a plan lays out tensors on this process.

    Attributes:
        sizes: of the mesh axes.
        coordinates: of the process, per axis.
        fused: end of a tensor's name -> its parts, as `fused_tensors` returns it.
    """

    sizes: Mapping[str, int]
    coordinates: Mapping[str, int]
    fused: Mapping[str, Fused]

    def blocks(self, name: str, tensor: torch.Tensor) -> list[Block]:
        """Where this process's part of a tensor lies in the whole one, without empty blocks.

        Args:
            name: fully qualified, of the parameter; its optimizer state has the same layout.
            tensor: the parameter or a tensor laid out like it. The views share its memory, so copying into them fills it.
        """
        local, dims = local_tensor(tensor), sharded_dims(tensor)
        fused = next((parts for end, parts in self.fused.items() if name.endswith(end)), None)
        pieces = [self._pieces(dim, tuple(tensor.shape), dims, fused) for dim in range(tensor.dim())]
        assert [sum(length for _, _, length in along) for along in pieces] == list(local.shape), name
        blocks = [Block((), (), local)]
        for dim, along in enumerate(pieces):
            blocks = [
                Block((*block.offsets, start), (*block.sizes, length), block.view.narrow(dim, own, length))
                for block in blocks
                for start, own, length in along
            ]
        return blocks

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether this process is the one to count the tensor: on axes that hold copies only coordinate 0 is."""
        return owns(sharded_dims(tensor), self.coordinates)

    def _pieces(self, dim: int, shape: tuple[int, ...], dims: Mapping[str, int], fused: Fused | None) -> list[Piece]:
        cut = {axis: (self.sizes[axis], self.coordinates[axis]) for axis, cut_dim in dims.items() if cut_dim == dim}
        parts = fused.sizes if fused is not None and fused.dim % len(shape) == dim else (shape[dim],)
        return local_pieces(parts, tensor_parallel=cut.get("tp", (1, 0)), shard=cut.get("dp_shard", (1, 0)))


def local_pieces(parts: tuple[int, ...], *, tensor_parallel: tuple[int, int], shard: tuple[int, int]) -> list[Piece]:
    """What one process holds along a dim that consists of ``parts``, in local order, without empty pieces.

    Args:
        parts: sizes that add up to the dim's.
        tensor_parallel: (ranks that cut the dim, this one's number).
        shard: (devices that cut what a tensor-parallel rank holds of the dim, this one's number).
    """
    held: list[tuple[int, int]] = []  # (start in the whole tensor, length)
    start = 0
    for size in parts if tensor_parallel[0] > 1 else (sum(parts),):
        low, high = chunk(size, *tensor_parallel)
        held.append((start + low, high - low))
        start += size
    low, high = chunk(sum(length for _, length in held), *shard)
    pieces, passed = [], 0
    for start, length in held:
        first, last = max(low, passed), min(high, passed + length)
        if first < last:
            pieces.append((start + first - passed, first - low, last - first))
        passed += length
    return pieces


def chunk(extent: int, count: int, index: int) -> tuple[int, int]:
    """Equation (1): the bounds of a chunk."""
    step = -(-extent // count)
    start = min(index * step, extent)
    return start, min(start + step, extent)


def owns(dims: Mapping[str, int], coordinates: Mapping[str, int]) -> bool:
    """Whether this process is the one to count: on axes that hold copies only coordinate 0 is."""
    return all(axis in dims or coordinates[axis] == 0 for axis in COPY_AXES)

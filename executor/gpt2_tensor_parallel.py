"""Tensor parallelism of GPT-2's layers, whose matrices are `transformers` ``Conv1D`` modules storing [in, out].

``c_attn`` fuses query, key and value into one matrix [hidden, 3 hidden]. A rank needs whole heads of all three, so the
columns are kept in tensor-parallel order: for t ranks the order (part, rank, column) becomes (rank, part, column).
"""

from __future__ import annotations

import torch

_FUSED_PARTS = 3


def is_fused(name: str) -> bool:
    """Whether the tensor holds query, key and value side by side along its last dim."""
    return ".c_attn." in name


def to_tensor_parallel_order(tensor: torch.Tensor, *, dim: int, size: int) -> torch.Tensor:
    """Reorder a fused dim from (q, k, v) x rank to rank x (q, k, v); ``size`` is the tensor-parallel size."""
    return tensor.unflatten(dim, (_FUSED_PARTS, size, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)


def from_tensor_parallel_order(tensor: torch.Tensor, *, dim: int, size: int) -> torch.Tensor:
    """The inverse of `to_tensor_parallel_order`."""
    return tensor.unflatten(dim, (size, _FUSED_PARTS, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)

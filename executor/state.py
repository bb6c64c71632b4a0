"""Whole-model tensors gathered from the parts that processes hold.

For small models, tests and export: the gathering process holds the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from costmodel.specs import InputError
from executor.adapter import local_tensor
from executor.gpt2_tensor_parallel import from_tensor_parallel_order, is_fused
from executor.mesh import Mesh
from executor.sharding import Slices, parameter_slices

Piece = tuple[str, tuple[int, ...], Slices, torch.Tensor]


def own_pieces(parameters: Iterable[tuple[str, torch.Tensor]], mesh: Mesh) -> list[Piece]:
    """What this process contributes: name, whole shape, place and a CPU copy of every part that it is the one to count."""
    pieces: list[Piece] = []
    for name, parameter in parameters:
        slices, owned = parameter_slices(parameter, sizes=mesh.sizes, coordinates=mesh.coordinates)
        if owned:
            pieces.append((name, tuple(parameter.shape), slices, local_tensor(parameter).cpu()))
    return pieces


def assemble(pieces: Iterable[Piece], *, tensor_parallel_size: int) -> dict[str, torch.Tensor]:
    """Whole tensors by name from the pieces of all processes.

    Raises:
        InputError: when the pieces of a tensor do not add up to it.
    """
    whole: dict[str, torch.Tensor] = {}
    filled: dict[str, int] = {}
    for name, shape, slices, values in pieces:
        target = whole.setdefault(name, torch.empty(shape, dtype=values.dtype))
        target[slices] = values
        filled[name] = filled.get(name, 0) + values.numel()
    for name, tensor in whole.items():
        if filled[name] != tensor.numel():
            raise InputError(f"{name}: the processes hold {filled[name]} of its {tensor.numel()} elements")
        if is_fused(name) and tensor_parallel_size > 1:
            whole[name] = from_tensor_parallel_order(tensor, dim=tensor.dim() - 1, size=tensor_parallel_size)
    return whole


def gather_state(parameters: Iterable[tuple[str, torch.Tensor]], mesh: Mesh) -> dict[str, torch.Tensor]:
    """All whole tensors by fully qualified name on global rank 0, CPU; an empty dict elsewhere. All processes call it."""
    pieces = own_pieces(parameters, mesh)
    gathered: list[list[Piece]] = [pieces]
    if dist.get_world_size() > 1:
        gathered = [[] for _ in range(dist.get_world_size())]
        dist.gather_object(pieces, gathered if dist.get_rank() == 0 else None, dst=0)
        if dist.get_rank() != 0:
            return {}
    return assemble((piece for part in gathered for piece in part), tensor_parallel_size=mesh.sizes["tp"])

"""Whole-model tensors gathered from the parts that processes hold.

For small models, tests and export: the gathering process holds the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from costmodel.specs import InputError
from executor.sharding import Layout

Piece = tuple[str, tuple[int, ...], tuple[slice, ...], torch.Tensor]


def own_pieces(parameters: Iterable[tuple[str, torch.Tensor]], layout: Layout) -> list[Piece]:
    """What this process contributes: name, whole shape, place and a CPU copy of every part that it is the one to count."""
    return [
        (name, tuple(parameter.shape), block.slices, block.view.cpu())
        for name, parameter in parameters
        if layout.owns(parameter)
        for block in layout.blocks(name, parameter)
    ]


def assemble(pieces: Iterable[Piece]) -> dict[str, torch.Tensor]:
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
    return whole


def gather_state(parameters: Iterable[tuple[str, torch.Tensor]], layout: Layout) -> dict[str, torch.Tensor]:
    """All whole tensors by fully qualified name on global rank 0, CPU; an empty dict elsewhere. All processes call it."""
    pieces = own_pieces(parameters, layout)
    gathered: list[list[Piece]] = [pieces]
    if dist.get_world_size() > 1:
        gathered = [[] for _ in range(dist.get_world_size())]
        dist.gather_object(pieces, gathered if dist.get_rank() == 0 else None, dst=0)
        if dist.get_rank() != 0:
            return {}
    return assemble(piece for part in gathered for piece in part)

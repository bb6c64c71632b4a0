"""Which part of a whole tensor one process holds.

    (1) chunk c of n of an extent of e rows: [min(c k, e), min((c + 1) k, e)) with k = ceil(e / n)

Tensor parallelism cuts first, then dp_shard cuts the tensor-parallel shard along dim 0 (torch's `Shard` and `fully_shard`
both chunk as in (1)). GPT-2's fused query-key-value tensors are first put in tensor-parallel order, in which each rank's
heads of q, k and v are neighbours, so (1) holds for them too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from executor.adapter import sharded_dims

Slices = tuple[slice, ...]


def local_slices(
    shape: tuple[int, ...], dims: Mapping[str, int], *, sizes: Mapping[str, int], coordinates: Mapping[str, int]
) -> Slices:
    """Equation (1) along every cut dim.

    Args:
        shape: of the whole tensor.
        dims: mesh axis -> dim it cuts, as `sharded_dims` returns it.
        sizes: of the mesh axes.
        coordinates: of the process, per axis.
    """
    bounds = [(0, extent) for extent in shape]
    for axis in ("tp", "dp_shard"):
        if axis in dims:
            low, high = bounds[dims[axis]]
            step = -(-(high - low) // sizes[axis])
            start = min(low + coordinates[axis] * step, high)
            bounds[dims[axis]] = (start, min(start + step, high))
    return tuple(slice(low, high) for low, high in bounds)


def owns(dims: Mapping[str, int], coordinates: Mapping[str, int]) -> bool:
    """Whether this process is the one to count: on axes that hold copies only coordinate 0 is."""
    return all(axis in dims or coordinates[axis] == 0 for axis in ("dp_replicate", "dp_shard", "tp"))


def parameter_slices(
    parameter: torch.Tensor, *, sizes: Mapping[str, int], coordinates: Mapping[str, int]
) -> tuple[Slices, bool]:
    """The part of the whole tensor behind ``parameter`` on this process, and whether it is the one to count."""
    dims = sharded_dims(parameter)
    return local_slices(tuple(parameter.shape), dims, sizes=sizes, coordinates=coordinates), owns(dims, coordinates)

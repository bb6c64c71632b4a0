"""Every collective and message of a dry run: mesh axis, kind, calls, payload, and what a rank sends.

With n members, a ring sends (arXiv 2104.04473 and NCCL count the same way)

    (1) all_gather, of an output of B bytes          (n - 1) / n B
    (2) reduce_scatter, of an input of B bytes       (n - 1) / n B
    (3) all_reduce, of B bytes                       2 (n - 1) / n B
    (4) all_to_all, of an input of B bytes           (n - 1) / n B
    (5) send                                         B

The payload is B. Receives are the sender's, and groups of one send nothing: neither is counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from executor.fake_cluster import process_group

_RING_PASSES = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Where an operation's arguments hold the tensor whose bytes count, and the group."""

    name: str
    payload: int
    group: int
    enlarged: bool = False  # the payload is the group's size times the argument


# Arguments by position, as the schemas of torch 2.13 have them.
_KINDS: dict[Any, _Kind] = {
    torch.ops.c10d._allgather_base_.default: _Kind("all_gather", 0, 2),
    torch.ops.c10d._reduce_scatter_base_.default: _Kind("reduce_scatter", 1, 2),
    torch.ops.c10d.allreduce_.default: _Kind("all_reduce", 0, 1),
    torch.ops.c10d.send.default: _Kind("send", 0, 1),
    torch.ops._c10d_functional.all_gather_into_tensor.default: _Kind("all_gather", 0, 2, enlarged=True),
    torch.ops._c10d_functional.reduce_scatter_tensor.default: _Kind("reduce_scatter", 0, 3),
    torch.ops._c10d_functional.all_reduce.default: _Kind("all_reduce", 0, 2),
    torch.ops._dtensor.shard_dim_alltoall.default: _Kind("all_to_all", 0, 3),
}
_SILENT = {torch.ops.c10d.recv_.default, torch.ops._c10d_functional.wait_tensor.default}


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """One kind of traffic. ``axis``: of the mesh, or ``world``."""

    axis: str
    op: str
    group_size: int


@dataclass(slots=True)
class Sum:
    """Calls of one kind and their payload bytes."""

    count: int = 0
    payload_bytes: int = 0


class Traffic:
    """Counts collectives while ``counting`` is set.

    Args:
        sizes: of the mesh axes, outer to inner.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._axes: dict[str, str] = {}
        self.counting = False
        self.sums: dict[Route, Sum] = {}

    def see(self, operation: Any, arguments: tuple[Any, ...]) -> None:
        """Count one operation if it communicates.

        Raises:
            NotImplementedError: for a collective that is not listed above: it must not be missed in silence.
        """
        kind = _KINDS.get(operation)
        if kind is None:
            if operation.namespace in ("c10d", "_c10d_functional") and operation not in _SILENT and self.counting:
                raise NotImplementedError(f"the dry run cannot count {operation}")
            return
        group = process_group(arguments[kind.group])
        size = group.size()
        if not self.counting or size == 1:
            return
        found = arguments[kind.payload]
        tensors = found if isinstance(found, list | tuple) else [found]
        payload = sum(tensor.numel() * tensor.element_size() for tensor in tensors) * (size if kind.enlarged else 1)
        entry = self.sums.setdefault(Route(self._axis(group), kind.name, size), Sum())
        entry.count += 1
        entry.payload_bytes += payload

    def _axis(self, group: dist.ProcessGroup) -> str:
        name = group.group_name
        if name not in self._axes:
            self._axes[name] = axis_between(dist.get_process_group_ranks(group), self._sizes)
        return self._axes[name]


def axis_between(members: Sequence[int], sizes: Mapping[str, int]) -> str:
    """The one mesh axis along which global ranks differ; ``world`` where there are several."""
    differing, stride = [], math.prod(sizes.values())
    for axis, size in sizes.items():
        stride //= size
        if len({rank // stride % size for rank in members}) > 1:
            differing.append(axis)
    return differing[0] if len(differing) == 1 else "world"


def sent_bytes(route: Route, payload_bytes: int, *, gloo: bool = False) -> int:
    """Equations (1) to (5), rounded to a whole byte; on gloo a reduce-scatter is an all-reduce that keeps a part."""
    if route.op == "send":
        return payload_bytes
    passes = _RING_PASSES["all_reduce" if gloo and route.op == "reduce_scatter" else route.op]
    return round(Fraction(passes * (route.group_size - 1) * payload_bytes, route.group_size))

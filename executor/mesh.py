"""The grid of processes a plan runs on: one process per device, one mesh axis per kind of parallelism.

Axes run outer to inner as in the plan: tensor-parallel peers are neighbouring ranks (one node); either pipeline peers are the
farthest apart or, with data outermost, those that share parameters. Axes of size 1 are kept: the wrappers need them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from costmodel.specs import InputError, Plan


@dataclass(frozen=True, slots=True)
class Mesh:
    """The device mesh of a plan and this process's place in it."""

    device_mesh: DeviceMesh
    sizes: dict[str, int]
    coordinates: dict[str, int]

    def __getitem__(self, axes: str | tuple[str, ...]) -> DeviceMesh:
        """The submesh of one or several axes that this process belongs to."""
        return self.device_mesh[axes]

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the global batch this process sees."""
        return self.coordinates["dp_replicate"] * self.sizes["dp_shard"] + self.coordinates["dp_shard"]

    @property
    def data_parallel_size(self) -> int:
        """Number of different shares of the global batch."""
        return self.sizes["dp_replicate"] * self.sizes["dp_shard"]

    def pipeline_ranks(self) -> list[int]:
        """Global ranks of this process's pipeline, first stage to last."""
        return dist.get_process_group_ranks(self.device_mesh.get_group("pp"))


def axis_sizes(plan: Plan) -> dict[str, int]:
    """Size of every mesh axis, outer to inner. The executor cuts no sequences, so there is no cp."""
    parallel = plan.parallel
    sizes = {
        "pp": parallel.pipeline_parallel_size,
        "dp_replicate": parallel.data_parallel_replicate_size,
        "dp_shard": parallel.data_parallel_shard_size,
        "tp": parallel.tensor_parallel_size,
    }
    return {axis: sizes[axis] for axis in plan.axis_order if axis in sizes}


def first_rank(plan: Plan, pipeline_rank: int) -> int:
    """The lowest global rank of a pipeline rank."""
    axes = list(axis_sizes(plan).items())
    inside = axes[[axis for axis, _ in axes].index("pp") + 1 :]
    return pipeline_rank * math.prod(size for _, size in inside)


def build_mesh(plan: Plan, device: torch.device) -> Mesh:
    """The mesh of ``plan``; every process of the group must call it.

    A plan for one device needs no process group: one with a single member is made.

    Raises:
        InputError: when the number of processes is not the plan's.
    """
    if not dist.is_initialized() and plan.num_devices_used == 1:
        dist.init_process_group(_backend(device), store=HashStore(), rank=0, world_size=1)
    found = dist.get_world_size() if dist.is_initialized() else 1
    if found != plan.num_devices_used:
        raise InputError(
            f"the plan uses {plan.num_devices_used} devices, one process each, but {found} processes were started; "
            f"start {plan.num_devices_used}"
        )
    sizes = axis_sizes(plan)
    device_mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    coordinates = device_mesh.get_coordinate()
    assert coordinates is not None  # every process of the group is in the mesh
    return Mesh(device_mesh, sizes, dict(zip(sizes, coordinates, strict=True)))


def partition_mesh(plan: Plan, mesh: Mesh) -> DeviceMesh:
    """The dp_shard group of this process in 2 dims: (shard / k, k) for hpZ groups of k neighbours. All must call it."""
    size = plan.parallel.hierarchical_partition_size or 1
    sizes: dict[str, int] = {}
    for axis, length in mesh.sizes.items():
        sizes |= {axis: length // size, "partition": size} if axis == "dp_shard" else {axis: length}
    whole = init_device_mesh(mesh.device_mesh.device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    return whole["dp_shard", "partition"]


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"

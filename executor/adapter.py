"""Everything of torch that is private or experimental, in one file.

Pinned to torch 2.13.0: `replicate` on the fully_shard machinery, FSDP2's parameter groups, the checkpoint wrapper. When torch
moves, this is the file to read again; the rest of the executor uses public interfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

__all__ = [
    "accumulate_gradients",
    "checkpoint_layer",
    "clean_name",
    "gathered_tensors",
    "gradient_tensors",
    "local_tensor",
    "materialise",
    "on_first_reduction",
    "parameter_tensors",
    "replicate",
    "reshard_to_partitions",
    "set_timeouts",
    "sharded_dims",
]

_CHECKPOINT_PREFIX = "_checkpoint_wrapped_module."


def checkpoint_layer(layer: nn.Module) -> nn.Module:
    """The layer, recomputed from its input in backward. Nothing is random (dropout is 0), so no RNG state is kept."""
    return checkpoint_wrapper(layer, preserve_rng_state=False)


def clean_name(name: str) -> str:
    """A fully qualified name without the checkpoint wrapper's part."""
    return name.replace(_CHECKPOINT_PREFIX, "")


def sharded_dims(tensor: torch.Tensor) -> dict[str, int]:
    """Mesh axis -> tensor dim it cuts; empty for a plain tensor.

    `fully_shard` of a dim that tensor parallelism has cut already is a private `_StridedShard`, which like `Shard`
    has a ``dim``.
    """
    if not isinstance(tensor, DTensor):
        return {}
    names = tensor.device_mesh.mesh_dim_names
    assert names is not None  # the mesh is built with names
    return {
        name: placement.dim
        for name, placement in zip(names, tensor.placements, strict=True)
        if isinstance(placement, (Shard, _StridedShard))
    }


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, sharing its storage, outside autograd."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give meta parameters memory on ``device``, uninitialised; `fully_shard`'s shards with their padding rows."""
    module.to_empty(device=device)
    for group in parameter_groups(module):
        for parameter in group.fsdp_params:
            parameter.reset_sharded_param()


def parameter_groups(module: nn.Module) -> Iterator[FSDPParamGroup]:
    """The groups of parameters that `fully_shard` and `replicate` communicate together."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            yield from part._get_fsdp_state()._fsdp_param_groups


def reshard_to_partitions(module: nn.Module, mesh: DeviceMesh) -> None:
    """hpZ: let forward leave each parameter sharded over ``mesh``'s last dim, from where backward gathers it.

    `fully_shard(reshard_after_forward=<int>)` does the same with a mesh of its own per call, which it builds from the shard
    group alone: with other mesh axes beside it, that deadlocks.

    Args:
        module: wrapped by `fully_shard` with ``reshard_after_forward=True``; its parameters are not DTensors before.
        mesh: the shard group in 2 dims, (number of partitions, partition size).
    """
    place = HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    for group in parameter_groups(module):
        group.post_forward_mesh_info = place
        for parameter in group.fsdp_params:
            parameter.post_forward_mesh_info = place
            whole = torch.empty(parameter._orig_size, device="meta")
            parameter._init_sharded_post_forward_param_metadata(whole)


def on_first_reduction(module: nn.Module, callback: Callable[[], None]) -> None:
    """Call ``callback`` immediately before each gradient reduction of a group, while its gradients are still whole."""

    def watch(group: FSDPParamGroup) -> None:
        original = group.post_backward

        def post_backward(*unused: object) -> None:
            if group.reduce_grads and _has_gradients(group):
                callback()
            original(*unused)

        group.post_backward = post_backward  # type: ignore[method-assign]

    for group in parameter_groups(module):
        watch(group)


def _has_gradients(group: FSDPParamGroup) -> bool:
    return any(
        parameter.unsharded_accumulated_grad is not None or parameter._unsharded_param.grad is not None
        for parameter in group.fsdp_params
        if hasattr(parameter, "_unsharded_param")
    )


def accumulate_gradients(module: nn.Module) -> None:
    """Add every gradient that autograd has just made to the accumulated ones, in the format of the reduction.

    FSDP2 does so in hooks of the backward pass, which a weight-gradient pass alone does not trigger: gradients would add up
    in the compute format.
    """
    for group in parameter_groups(module):
        for parameter in group.fsdp_params:
            parameter.accumulate_unsharded_grad_if_needed()
            parameter.to_accumulated_grad_if_needed()


def sum_addends_in_reduce_format(module: nn.Module) -> None:
    """Let gradients that hold only this rank's addend over tp (norms under sequence parallelism) be summed over it in the
    format of the reduction. FSDP2 itself sums them in the compute format where it reduces one micro batch's gradients.
    """

    def watch(group: FSDPParamGroup) -> None:
        original = group.post_backward

        def post_backward(*unused: object) -> None:
            if group.reduce_grads:
                for parameter in group.fsdp_params:
                    _sum_addends(parameter)
            original(*unused)

        group.post_backward = post_backward  # type: ignore[method-assign]

    for group in parameter_groups(module):
        watch(group)


@torch.no_grad()
def _sum_addends(parameter: FSDPParam) -> None:
    whole = getattr(parameter, "_unsharded_param", None)
    gradient = None if whole is None else whole.grad
    if parameter.reduce_dtype is None or parameter.unsharded_accumulated_grad is not None:
        return  # one format throughout; what has been accumulated is in the reduction's
    if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
        assert isinstance(whole, DTensor)
        upcast: Any = gradient.to(parameter.reduce_dtype)
        summed = upcast.redistribute(placements=whole.placements)
        whole.grad = summed.to(gradient.dtype)


def parameter_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Plain tensors of the parameters that live between steps: `fully_shard`'s padded shards, else the local tensors.

    Gathered copies and hpZ's second shards are working memory, not parameters.
    """
    managed: set[int] = set()
    for group in parameter_groups(module):
        for parameter in group.fsdp_params:
            variants = ("sharded_param", "_unsharded_param", "_sharded_post_forward_param")
            managed.update(id(getattr(parameter, variant, None)) for variant in variants)
            yield parameter._sharded_param_data
    for plain in module.parameters():
        if id(plain) not in managed:
            yield local_tensor(plain)


def gathered_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Plain tensors of the whole copies that `fully_shard` and `replicate` compute with, emptied ones among them."""
    for group in parameter_groups(module):
        for parameter in group.fsdp_params:
            yield from parameter.all_gather_outputs


def gradient_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Plain tensors of all gradients held: sharded ones, whole ones waiting for their reduction, partly reduced ones."""
    held: list[torch.Tensor | None] = []
    for group in parameter_groups(module):
        held.append(group._partial_reduce_output)
        for parameter in group.fsdp_params:
            held.append(parameter.sharded_param.grad)
            held.append(parameter.unsharded_accumulated_grad)
            held.append(getattr(getattr(parameter, "_unsharded_param", None), "grad", None))
    held.extend(parameter.grad for parameter in module.parameters())
    yield from (local_tensor(gradient) for gradient in held if gradient is not None)


def set_timeouts(seconds: float) -> None:
    """Give every process group this timeout: groups made from a mesh otherwise wait for 10 to 30 minutes."""
    for group in list(distributed_c10d._world.pg_map):
        if not distributed_c10d._rank_not_in_group(group):
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)

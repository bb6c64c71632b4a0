"""Tensor parallelism: Megatron's column -> row split (arXiv 1909.08053, section 3) as DTensor styles.

Query, key, value, gate and up projections are cut along their output, output and down projections along their input, so a
layer communicates twice forward and twice backward: an all-reduce each, or with sequence parallelism (arXiv 2205.05198,
section 4.2.2) an all-gather before and a reduce-scatter after, with norms and residuals cut along the sequence between.

Some gradients are sums over the tensor-parallel ranks that no style reduces; `sum_partial_gradients` does, once per step:
those of norms, position embeddings and biases that see only this rank's tokens or are added to partial sums, and of qwen3's
query and key norms, which see only this rank's heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    SequenceParallel,
    parallelize_module,
)

from costmodel.specs import ParallelConfig
from executor.hf_models import Stage
from executor.layer_styles import layer_styles, tell_local_heads
from executor.mesh import Mesh

_PER_HEAD_NORMS = (".q_norm.weight", ".k_norm.weight")


def wrap_tensor_parallel(stage: Stage, parallel: ParallelConfig, mesh: Mesh) -> None:
    """Cut a stage's modules in place over the mesh's tp axis; nothing to do when its size is 1."""
    size = parallel.tensor_parallel_size
    if size == 1:
        return
    residual = Shard(1) if parallel.sequence_parallel else Replicate()
    model_type = stage.config.model_type
    for layer in stage.layers.values():
        tell_local_heads(layer, model_type, size)
        _apply(layer, mesh["tp"], layer_styles(model_type, residual))
    _apply(stage, mesh["tp"], _outer_styles(stage, parallel, residual))
    if parallel.sequence_parallel:
        share = stage.sequence_length // size
        stage.positions = slice(mesh.coordinates["tp"] * share, (mesh.coordinates["tp"] + 1) * share)
    stage.tie()


def _apply(module: nn.Module, mesh: DeviceMesh, styles: Mapping[str, ParallelStyle]) -> None:
    if styles:
        parallelize_module(module, mesh, dict(styles), src_data_rank=None)


class VocabularyParallel(ParallelStyle):
    """An embedding whose rows are cut over the mesh: each rank looks up its own tokens and the ranks' outputs are summed.

    torch's own `RowwiseParallel` embedding computes the gradient of the whole table on every rank; here it is local.
    """

    def __init__(self, output_layout: Placement) -> None:
        super().__init__()
        self.output_layout = output_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        step = -(-weight.shape[0] // device_mesh.size())
        first = device_mesh.get_local_rank() * step

        def forward(tokens: torch.Tensor) -> torch.Tensor:
            table = module.weight.to_local()  # type: ignore[operator, union-attr]
            own = (tokens >= first) & (tokens < first + table.shape[0])
            rows = F.embedding(torch.where(own, tokens - first, 0), table) * own.unsqueeze(-1)
            if isinstance(scale := getattr(module, "embed_scale", None), torch.Tensor):  # gemma2
                rows = rows * scale.to(table.dtype)
            return DTensor.from_local(rows, device_mesh, [Partial()], run_check=False).redistribute(
                device_mesh, [self.output_layout]
            ).to_local()  # fmt: skip

        module.weight = nn.Parameter(distribute_tensor(weight, device_mesh, [Shard(0)], src_data_rank=None))
        module.forward = forward
        return module


def _outer_styles(stage: Stage, parallel: ParallelConfig, residual: Placement) -> dict[str, ParallelStyle]:
    """Embedding, final norm and head.

    An untied embedding is cut along the hidden dim, a tied one along the vocabulary, as the head is.
    """
    names, styles = stage.names, dict[str, ParallelStyle]()
    sequence_cut = isinstance(residual, Shard)
    if stage.spec.embedding:
        tied = stage.config.tie_word_embeddings
        styles[f"{names.base}.{names.token_embedding}"] = (
            VocabularyParallel(residual) if tied else ColwiseParallel(output_layouts=residual)
        )
        if names.position_embedding is not None and sequence_cut:
            styles[f"{names.base}.{names.position_embedding}"] = SequenceParallel(use_local_output=True)
    if stage.spec.head:
        if sequence_cut:
            styles[f"{names.base}.{names.norm}"] = SequenceParallel(use_local_output=True)
        styles[names.head] = ColwiseParallel(
            input_layouts=residual,
            output_layouts=Shard(-1) if parallel.loss_parallel else Replicate(),
            use_local_output=not parallel.loss_parallel,
        )
    return styles


@torch.no_grad()
def sum_partial_gradients(parameters: Iterable[tuple[str, nn.Parameter]], mesh: Mesh) -> None:
    """All-reduce over tp, in one message, every gradient that holds only this rank's addend; in place."""
    if mesh.sizes["tp"] == 1:
        return
    partial: list[torch.Tensor] = []
    for name, parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
            assert isinstance(parameter, DTensor)
            parameter.grad = _as_placed(gradient.to_local(), parameter)
            partial.append(gradient.to_local())
        elif name.endswith(_PER_HEAD_NORMS):
            partial.append(gradient.to_local() if isinstance(gradient, DTensor) else gradient)
    if partial:
        sum_over(partial, mesh.device_mesh.get_group("tp"))


def _as_placed(local: torch.Tensor, parameter: DTensor) -> DTensor:
    """The local tensor as a DTensor laid out like ``parameter``, sharing its storage."""
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def sum_over(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """All-reduce several tensors in place in one message."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        dist.all_reduce(tensors[0], group=group)
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, summed in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(summed.view_as(tensor))

"""Tensor parallelism of GPT-2's layers, whose matrices are `transformers` ``Conv1D`` modules storing [in, out].

``c_attn`` fuses query, key and value into one matrix [hidden, 3 hidden]. A rank needs whole heads of all three, so its columns
are its share of each (`executor.fused`); DTensor, which knows nothing of it, holds them as a plain cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle, PrepareModuleInput, SequenceParallel


def keep_whole_heads(layer: nn.Module, size: int) -> None:
    """Tell the attention module that its share of q, k and v is 1 / ``size`` of the whole."""
    attention: Any = layer.attn
    attention.split_size = attention.embed_dim // size


class Conv1DParallel(ParallelStyle):
    """A ``Conv1D`` cut over the mesh: columns of its output, or rows of its input.

    Input and output are plain local tensors laid out as ``input_layout`` and ``output_layout``; a DTensor input is taken
    as it is.
    """

    def __init__(self, weight_dim: int, *, input_layout: Placement, output_layout: Placement) -> None:
        super().__init__()
        self.weight_dim, self.input_layout, self.output_layout = weight_dim, input_layout, output_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        hooks: Any = (self._partition, self._prepare_input, self._prepare_output)
        return distribute_module(module, device_mesh, *hooks)

    def _partition(self, _: str, module: nn.Module, mesh: DeviceMesh) -> None:
        columns = self.weight_dim == 1
        placements = {"weight": Shard(self.weight_dim), "bias": Shard(0) if columns else Replicate()}
        for name, placement in placements.items():
            whole = getattr(module, name)
            setattr(module, name, nn.Parameter(distribute_tensor(whole, mesh, [placement], src_data_rank=None)))

    def _prepare_input(
        self, _: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh
    ) -> tuple[torch.Tensor, ...]:
        first = inputs[0]
        if not isinstance(first, DTensor):
            first = DTensor.from_local(first, mesh, [self.input_layout], run_check=False)
        return (first, *inputs[1:])

    def _prepare_output(self, _: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
        return output.redistribute(mesh, [self.output_layout]).to_local()


def gpt2_layer_styles(residual: Placement) -> dict[str, ParallelStyle]:
    """Styles of one layer; ``residual`` is the layout of hidden states between modules."""
    whole = Replicate()
    gather = PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(whole,))
    column = Conv1DParallel(1, input_layout=whole, output_layout=Shard(-1))
    row = Conv1DParallel(0, input_layout=Shard(-1), output_layout=residual)
    styles: dict[str, ParallelStyle] = {
        "attn": gather,
        "attn.c_attn": column,
        "attn.c_proj": row,
        "mlp": gather,
        "mlp.c_fc": column,
        "mlp.c_proj": row,
    }
    if isinstance(residual, Shard):
        styles["ln_1"] = styles["ln_2"] = SequenceParallel(use_local_output=True)
    return styles

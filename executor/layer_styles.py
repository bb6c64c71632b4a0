"""How tensor parallelism cuts the layers of each model type, as DTensor styles by module.

One all-gather serves q, k and v, and one gate and up: the module that holds them gathers its input. Where several
projections are fused, each rank holds its share of every one of them (`executor.fused`) and its attention module is told the
number of heads that it has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from executor.gpt2_tensor_parallel import gpt2_layer_styles, keep_whole_heads

Styles = dict[str, ParallelStyle]
_NORMS = ("input_layernorm", "post_attention_layernorm")


def layer_styles(model_type: str, residual: Placement) -> Styles:
    """Styles of the modules of one layer; ``residual`` is the layout of hidden states between modules."""
    return _STYLES[model_type](residual)


def tell_local_heads(layer: nn.Module, model_type: str, size: int) -> None:
    """Tell a layer's attention module how many heads a rank has, where it does not see it from its projections."""
    if model_type in _LOCAL_HEADS:
        _LOCAL_HEADS[model_type](layer, size)


def _llama(residual: Placement) -> Styles:
    styles = {
        "self_attn": _gather("hidden_states", residual),
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=residual),
        "mlp": _gather(None, residual),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=residual),
    }
    return styles | _norms(residual, *_NORMS)


def _gemma2(residual: Placement) -> Styles:
    return _llama(residual) | _norms(residual, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _phi3(residual: Placement) -> Styles:
    styles = {
        "self_attn": _gather("hidden_states", residual),
        "self_attn.qkv_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=residual),
        "mlp": _gather(None, residual),
        "mlp.gate_up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=residual),
    }
    return styles | _norms(residual, *_NORMS)


def _gpt_neox(residual: Placement) -> Styles:
    styles = {
        "attention": _gather(None, residual),
        "attention.query_key_value": ColwiseParallel(),
        "attention.dense": RowwiseParallel(output_layouts=residual),
        "mlp": _gather(None, residual),
        "mlp.dense_h_to_4h": ColwiseParallel(),
        "mlp.dense_4h_to_h": RowwiseParallel(output_layouts=residual),
    }
    return styles | _norms(residual, *_NORMS)


def _opt(residual: Placement) -> Styles:
    """The feed-forward works on tokens in one dim: there a rank's share of every sequence is a part of dim 0."""
    flat = Shard(0) if isinstance(residual, Shard) else residual
    styles = {
        "self_attn": _gather("hidden_states", residual),
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.out_proj": RowwiseParallel(output_layouts=residual),
        "fc1": ColwiseParallel(input_layouts=flat),
        "fc2": RowwiseParallel(output_layouts=flat),
    }
    return styles | _norms(residual, "self_attn_layer_norm") | _norms(flat, "final_layer_norm")


def _gather(argument: str | None, residual: Placement) -> PrepareModuleInput:
    """Gather the named argument of a module, or its first one."""
    whole = Replicate()
    if argument is None:
        return PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(whole,))
    return PrepareModuleInput(input_kwarg_layouts={argument: residual}, desired_input_kwarg_layouts={argument: whole})


def _norms(residual: Placement, *names: str) -> Styles:
    """Norms between modules: plain where hidden states are whole."""
    if not isinstance(residual, Shard):
        return {}
    return {name: SequenceParallel(sequence_dim=residual.dim, use_local_output=True) for name in names}


def _tell_phi3(layer: nn.Module, size: int) -> None:
    attention: Any = layer.self_attn
    attention.config = copy.copy(attention.config)
    attention.config.num_attention_heads //= size
    attention.num_key_value_heads //= size


def _tell_opt(layer: nn.Module, size: int) -> None:
    attention: Any = layer.self_attn
    attention.num_heads //= size


_STYLES: Mapping[str, Callable[[Placement], Styles]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _llama),
    "gemma2": _gemma2,
    "phi3": _phi3,
    "gpt2": gpt2_layer_styles,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
}
_LOCAL_HEADS: Mapping[str, Callable[[nn.Module, int], None]] = {
    "gpt2": keep_whole_heads,
    "phi3": _tell_phi3,
    "opt": _tell_opt,
}

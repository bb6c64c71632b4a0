"""What a stage recomputes in backward.

``full`` wraps every layer: only its input is kept. ``core_attention`` recomputes the attention function alone, softmax(Q K^T)
V, keeping queries, keys and values (selective recomputation, arXiv 2205.05198, section 5). The attention functions are
registered with `transformers`, whose layers look them up by name.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from costmodel.specs import StageSpec
from executor.adapter import checkpoint_layer

AttentionOutput = tuple[torch.Tensor, None]


def fused_attention(module: nn.Module, *inputs: Any, **options: Any) -> AttentionOutput:
    """Attention by the fastest fused kernel of the device; no score matrix in memory unless the scores are capped."""
    if options.get("softcap") is not None:
        return softcapped_attention(*inputs, **options)
    return sdpa_attention_forward(module, *inputs, **options)


def unfused_attention(module: nn.Module, *inputs: Any, **options: Any) -> AttentionOutput:
    """Attention that materialises the score matrix [micro batch, heads, sequence, sequence]."""
    if options.get("softcap") is not None:
        return softcapped_attention(*inputs, **options)
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa_attention_forward(module, *inputs, **options)


def softcapped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float,
    softcap: float,
    **_: Any,
) -> AttentionOutput:
    """softmax(c tanh(Q K^T / c)) V with causal Q K^T, as gemma2's own eager attention computes it.

    No fused kernel of torch 2.13 caps scores (`transformers` refuses sdpa for gemma2), so the score matrix is in memory.

    Args:
        query: [micro batch, heads, sequence, head size].
        key: [micro batch, key-value heads, sequence, head size].
        value: as ``key``.
        mask: what each token sees, bool [1, 1, sequence, sequence]; None is causal.
        scaling: factor of the scores before the cap.
        softcap: c.
    """
    groups, length = query.shape[1] // key.shape[1], query.shape[2]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = query @ key.transpose(2, 3) * scaling
    scores = torch.tanh(scores / softcap) * softcap
    seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril() if mask is None else mask
    # Added, not filled in: autograd would keep the mask for a fill.
    unseen = torch.zeros_like(seen, dtype=scores.dtype).masked_fill_(~seen, torch.finfo(scores.dtype).min)
    wide = torch.promote_types(query.dtype, torch.float32)
    probabilities = (scores + unseen).softmax(-1, dtype=wide).to(query.dtype)
    return (probabilities @ value).transpose(1, 2).contiguous(), None


def fused_attention_recomputed(module: nn.Module, *inputs: Any, **options: Any) -> AttentionOutput:
    """`fused_attention`, run again in backward."""
    return checkpoint(fused_attention, module, *inputs, use_reentrant=False, preserve_rng_state=False, **options)


def unfused_attention_recomputed(module: nn.Module, *inputs: Any, **options: Any) -> AttentionOutput:
    """`unfused_attention`, run again in backward."""
    return checkpoint(unfused_attention, module, *inputs, use_reentrant=False, preserve_rng_state=False, **options)


_ATTENTION = {
    ("fused", False): ("meshwright_fused", fused_attention),
    ("unfused", False): ("meshwright_unfused", unfused_attention),
    ("fused", True): ("meshwright_fused_recomputed", fused_attention_recomputed),
    ("unfused", True): ("meshwright_unfused_recomputed", unfused_attention_recomputed),
}
for _name, _function in _ATTENTION.values():
    AttentionInterface.register(_name, _function)


def attention_name(kind: str, implementation: str) -> str:
    """The registered attention function for a recompute kind and an attention implementation."""
    return _ATTENTION[implementation, kind == "core_attention"][0]


def recompute_layers(layers: nn.ModuleDict, stage: StageSpec, implementation: str) -> None:
    """Let the first layers of a stage recompute what the plan says, in place.

    Args:
        layers: the stage's layers, whose modules share one config.
        stage: kind and number of layers.
        implementation: of attention, ``fused`` or ``unfused``.
    """
    for name in list(layers)[: stage.num_recomputed_layers]:
        if stage.recompute.kind == "full":
            layers[name] = checkpoint_layer(layers[name])
        else:
            _recompute_attention(layers[name], attention_name(stage.recompute.kind, implementation))


def _recompute_attention(layer: nn.Module, name: str) -> None:
    """Hand a layer a config of its own, which names another attention function."""
    for module in layer.modules():
        if hasattr(module, "config"):
            own: Any = copy.copy(module.config)
            own._attn_implementation = name
            module.config = own

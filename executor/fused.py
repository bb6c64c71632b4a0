"""Tensors that hold several projections side by side along one dim, by model type.

Under tensor parallelism a rank needs its share of every part (whole heads of query, key and value), so on a rank such a tensor
holds part after part. Elsewhere it is the checkpoint's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fused:
    """``dim`` (may count from the end) consists of parts of these ``sizes``, one after the other."""

    dim: int
    sizes: tuple[int, ...]


def _gpt2(config: Any) -> dict[str, Fused]:
    parts = Fused(-1, (config.hidden_size,) * 3)
    return {".c_attn.weight": parts, ".c_attn.bias": parts}


def _phi3(config: Any) -> dict[str, Fused]:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    query, key = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    return {
        ".qkv_proj.weight": Fused(0, (query, key, key)),
        ".gate_up_proj.weight": Fused(0, (config.intermediate_size,) * 2),
    }


_BY_MODEL_TYPE: Mapping[str, Callable[[Any], dict[str, Fused]]] = {"gpt2": _gpt2, "phi3": _phi3}


def fused_tensors(config: Any) -> dict[str, Fused]:
    """End of a tensor's name -> its parts, for every fused tensor of a `transformers` config's model type."""
    find = _BY_MODEL_TYPE.get(config.model_type)
    return {} if find is None else find(config)

"""FLOP of the matrix products and the attention that one rank executes.

Element-wise work counts nothing. A fused attention kernel computes only the scores that a causal mask keeps, half of them:

    (1) forward   2 products of 2 b a s s' d, times the kept share      (scores, values)
    (2) backward  5 products of 2 b a s s' d, times the kept share      (scores again, two gradients for each product)

Source of everything else: torch.utils.flop_counter, whose formulas see the local shapes of this rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_PRODUCTS = {
    packet: flop_registry[packet] for packet in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten._scaled_mm)
}
_FORWARD = _aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
_CAUSAL_SHARE = 0.5


def flops_of(operation: Any, arguments: tuple[Any, ...], result: Any) -> float:
    """FLOP of one operation on plain tensors; 0 for what is no product."""
    formula = _PRODUCTS.get(operation._overloadpacket)
    if formula is not None:
        return float(formula(*arguments, out_val=result))
    if operation is _FORWARD:
        query, key = arguments[:2]
        causal = len(arguments) > 4 and arguments[4]
        return _FORWARD_PRODUCTS * _attention_product(query, key, causal)
    if operation is _BACKWARD:
        query, key = arguments[1:3]
        return _BACKWARD_PRODUCTS * _attention_product(query, key, arguments[7])
    return 0.0


def _attention_product(query: torch.Tensor, key: torch.Tensor, causal: bool) -> float:
    """One product of equations (1) and (2); query [b, a, s, d], key [b, k, s', d]."""
    batch, heads, rows, size = query.shape
    return 2.0 * batch * heads * rows * key.shape[2] * size * (_CAUSAL_SHARE if causal else 1.0)

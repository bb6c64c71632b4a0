"""Gradient clipping by the norm over the whole model, whatever the plan.

    (1) norm^2 = sum over processes of sum over owned shards of |g|^2
    (2) g <- g min(1, max_norm / (norm + 1e-6))                          as torch.nn.utils.clip_grad_norm_

Each element is counted by one process: on mesh axes that hold copies only coordinate 0 counts, and of tied weights only the
first stage's copy. (1) is one all-reduce of a scalar over all processes, so every process scales by the same factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_EPSILON = 1e-6


def squared_norm(gradients: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Sum of squares of plain local tensors, a float64 scalar."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    filled = [gradient for gradient in gradients if gradient.numel()]
    if filled:
        total += torch.stack(torch._foreach_norm(filled)).double().square().sum()
    return total


def scale_gradients(gradients: Sequence[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Equation (2), in place, without waiting for the device."""
    factor = (max_norm / (norm + _EPSILON)).clamp(max=1.0)
    filled = [gradient for gradient in gradients if gradient.numel()]
    if filled:
        torch._foreach_mul_(filled, factor.to(filled[0].dtype))

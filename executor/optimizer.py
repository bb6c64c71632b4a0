"""The optimizer of a training run: AdamW fused, SGD by foreach.

The fused AdamW kernel updates parameters in one pass and holds no temporaries, on CUDA and CPU alike; ``foreach`` would hold
several the size of the parameters. torch 2.13 has no DTensor rule for its fused SGD; foreach SGD holds one temporary the size
of the gradients when there is weight decay. Both take lists of one kind of tensor, so parameters are grouped by mesh and
placement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from costmodel.specs import OptimizerSpec


def build_optimizer(parameters: Iterable[torch.nn.Parameter], spec: OptimizerSpec) -> torch.optim.Optimizer:
    """The optimizer over ``parameters`` (each once); its state is made by the first step."""
    groups: dict[Any, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        layout = (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None
        groups.setdefault(layout, []).append(parameter)
    listed = [{"params": group} for group in groups.values()]
    if spec.name == "adamw":
        return torch.optim.AdamW(
            listed,
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.epsilon,
            weight_decay=spec.weight_decay,
            fused=True,
        )
    return torch.optim.SGD(
        listed, lr=spec.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay, foreach=True
    )


@torch.no_grad()
def make_state(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer that has not stepped yet the state that its first step would make: zeros, to be overwritten."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(optimizer, torch.optim.AdamW):
                step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": step, **moments}
            elif group["momentum"]:
                optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}

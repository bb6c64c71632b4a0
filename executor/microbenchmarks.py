"""What one process of a machine reaches while all the others do the same.

Every function runs for about ``window`` seconds and returns the mean seconds of one call on the stopwatch's device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executor.stopwatch import Stopwatch

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LAUNCHES = 100


def gemm_seconds(watch: Stopwatch, rows: int, inner: int, columns: int, *, precision: str, window: float) -> float:
    """Seconds of one product of [rows, inner] by [inner, columns].

    The mean over the three products of a linear layer's training: X W^T forward, dY W and dY^T X backward.
    """
    dtype, device = DTYPES[precision], watch.device
    x = torch.randn(rows, inner, device=device).to(dtype)
    weight = torch.randn(columns, inner, device=device).to(dtype)
    dy = torch.randn(rows, columns, device=device).to(dtype)

    def call() -> None:
        torch.mm(x, weight.t())
        torch.mm(dy, weight)
        torch.mm(dy.t(), x)

    return watch.local(call, window) / 3


def stream_seconds(watch: Stopwatch, num_bytes: int, *, window: float) -> float:
    """Seconds of an out-of-place fp32 addition that reads 2/3 and writes 1/3 of ``num_bytes``."""
    count = num_bytes // 12
    left, right = torch.ones(count, device=watch.device), torch.ones(count, device=watch.device)
    return watch.local(lambda: left + right, window)


def elementwise_cost(
    watch: Stopwatch, tokens: int, hidden_size: int, *, precision: str, window: float
) -> tuple[float, int, int]:
    """Seconds, bytes moved and operations of the memory-bound part of a layer's training, operation by operation.

    A normalisation, a gate and a residual addition on [tokens, hidden_size], forward and backward.
    """
    form: dict[str, Any] = {"device": watch.device, "dtype": DTYPES[precision]}
    x = torch.randn(tokens, hidden_size, requires_grad=True, **form)
    gate = torch.randn(tokens, hidden_size, requires_grad=True, **form)
    weight = torch.ones(hidden_size, requires_grad=True, **form)
    upstream = torch.ones(tokens, hidden_size, **form)

    def call() -> None:
        normalised = weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        torch.autograd.grad(x + F.silu(gate) * normalised, (x, gate, weight), upstream)

    with _OperationCounter() as counter:
        call()
    return watch.local(call, window), counter.moved_bytes, counter.count


def attention_seconds(
    watch: Stopwatch, heads: int, sequence_length: int, head_dim: int, *, precision: str, window: float
) -> float:
    """Seconds of causal fused attention of one sequence, forward."""
    form: dict[str, Any] = {"device": watch.device, "dtype": DTYPES[precision]}
    q, k, v = (torch.randn(1, heads, sequence_length, head_dim, **form) for _ in range(3))
    return watch.local(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), window)


def dispatch_seconds(watch: Stopwatch, *, window: float) -> float:
    """Seconds to dispatch one eager operation, averaged over a training step of a block too small to compute.

    The block (normalisation, projections, rotation, attention, gated feed-forward) is run forward and
    backward and its time divided by the number of operations that reach the dispatcher.
    """
    block = _TinyBlock().to(watch.device)
    x = torch.randn(1, 2, 8, requires_grad=True, device=watch.device)

    def call() -> None:
        block(x).sum().backward()

    with _OperationCounter() as counter:
        call()
    return watch.local(call, window) / counter.count


def launch_seconds(watch: Stopwatch, *, window: float) -> float:
    """Seconds from one kernel to the next where each does next to nothing: what the host needs to start one."""
    x = torch.zeros(1, device=watch.device)

    def call() -> None:
        for _ in range(_LAUNCHES):
            x.add_(1)

    return watch.local(call, window) / _LAUNCHES


def copy_seconds(watch: Stopwatch, num_bytes: int, *, to_device: bool, pinned: bool, window: float) -> float:
    """Seconds to copy ``num_bytes`` between the host's memory and the device's (on a CPU: within its memory)."""
    host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
    host.zero_()
    there = torch.zeros(num_bytes, dtype=torch.uint8, device=watch.device)
    target, source = (there, host) if to_device else (host, there)
    return watch.local(lambda: target.copy_(source, non_blocking=pinned), window)


class _OperationCounter(TorchDispatchMode):
    """Counts operations, and the bytes that those which are not views read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.moved_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.count += 1
        alias = func._schema.returns[0].alias_info if func._schema.returns else None
        if alias is None or alias.is_write:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            self.moved_bytes += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors)
        return result


class _TinyBlock(torch.nn.Module):
    """A decoder layer of the llama family with a hidden size of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(8))
        names = ("q", "k", "v", "o", "gate", "up", "down")
        self.projections = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8, bias=False) for name in names})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One pre-norm layer: [1, tokens, 8] -> [1, tokens, 8]."""
        linear = self.projections
        h = self._normalise(x)
        q, k, v = (linear[name](h).view(1, 2, 2, 4).transpose(1, 2) for name in ("q", "k", "v"))
        q, k = (t * 0.5 + torch.cat((-t[..., 2:], t[..., :2]), dim=-1) * 0.5 for t in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, 2, 8)
        x = x + linear["o"](a)
        h = self._normalise(x)
        return x + linear["down"](F.silu(linear["gate"](h)) * linear["up"](h))

    def _normalise(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def make_collective(kind: str, num_bytes: int, group: dist.ProcessGroup, device: torch.device) -> Callable[[], object]:
    """A call of one collective on ``num_bytes`` (all ranks' parts together) in fp32 over a group.

    Args:
        kind: all_reduce, all_gather, reduce_scatter or point_to_point (every process sends ``num_bytes`` to its successor
            and receives from its predecessor).
        num_bytes: a multiple of 4 times the size of the group.
        group: the processes.
        device: where the buffers lie.
    """
    size = dist.get_world_size(group)
    whole = torch.zeros(num_bytes // 4 // size * size, device=device)
    part = torch.zeros(whole.numel() // size, device=device)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: dist.all_gather_single(whole, part, group=group)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_single(part, whole, group=group)
    return _exchange(whole, group)


def _exchange(sent: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    successor = dist.get_global_rank(group, (rank + 1) % size)
    predecessor = dist.get_global_rank(group, (rank - 1) % size)
    received = torch.zeros_like(sent)

    def call() -> None:
        # The receive first: of two processes that send to each other, gloo's word that one is ready to receive would
        # wait behind what it sends on their one connection, and the two directions would follow one another.
        operations = [
            dist.P2POp(dist.irecv, received, predecessor, group),
            dist.P2POp(dist.isend, sent, successor, group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return call

"""What one process of this machine reaches while all the others do the same.

Every function runs for about ``window`` seconds between two barriers and returns the mean time of one
call: with more processes than cores a process only gets slices of a core, and a median or a minimum
would show the slice, not the share. There, local calls are timed by the processor time they use, divided
by the process's share of a core: what other programs take meanwhile is no property of the device, while
the caches and the memory bus that the processes compete for are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executor.cores import num_cores

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}


def mean_seconds(call: Callable[[], object], window: float) -> float:
    """Mean seconds of a local call, all processes running it at the same time."""
    share = min(1.0, num_cores() / dist.get_world_size())
    clock = time.thread_time if share < 1 else time.perf_counter
    call()
    dist.barrier()
    start, began = time.perf_counter(), clock()
    count = 0
    while time.perf_counter() - start < window or count < 2:
        call()
        count += 1
    return (clock() - began) / count / share


def mean_collective_seconds(call: Callable[[], object], window: float) -> float:
    """Mean seconds of a collective call; all processes agree on the number of repetitions."""
    call()
    dist.barrier()
    start = time.perf_counter()
    call()
    once = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    count = max(2, min(1000, int(window / float(once))))
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def gemm_seconds(rows: int, inner: int, columns: int, precision: str, window: float) -> float:
    """Seconds of one product of [rows, inner] by [inner, columns].

    The mean over the three products of a linear layer's training: X W^T forward, dY W and dY^T X backward.
    """
    dtype = DTYPES[precision]
    x = torch.randn(rows, inner).to(dtype)
    weight = torch.randn(columns, inner).to(dtype)
    dy = torch.randn(rows, columns).to(dtype)

    def call() -> None:
        torch.mm(x, weight.t())
        torch.mm(dy, weight)
        torch.mm(dy.t(), x)

    return mean_seconds(call, window) / 3


def stream_seconds(num_bytes: int, window: float) -> float:
    """Seconds of an out-of-place fp32 addition that reads 2/3 and writes 1/3 of ``num_bytes``."""
    count = num_bytes // 12
    left, right = torch.ones(count), torch.ones(count)
    return mean_seconds(lambda: left + right, window)


def elementwise_cost(tokens: int, hidden_size: int, window: float) -> tuple[float, int, int]:
    """Seconds, bytes moved and operations of the memory-bound part of a layer's training, operation by operation.

    A normalisation, a gate and a residual addition on [tokens, hidden_size], forward and backward in fp32.
    """
    x = torch.randn(tokens, hidden_size, requires_grad=True)
    gate = torch.randn(tokens, hidden_size, requires_grad=True)
    weight = torch.ones(hidden_size, requires_grad=True)
    upstream = torch.ones(tokens, hidden_size)

    def call() -> None:
        normalised = weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        torch.autograd.grad(x + F.silu(gate) * normalised, (x, gate, weight), upstream)

    with _OperationCounter() as counter:
        call()
    return mean_seconds(call, window), counter.moved_bytes, counter.count


def attention_seconds(heads: int, sequence_length: int, head_dim: int, window: float) -> float:
    """Seconds of causal fused attention of one sequence, forward, in fp32."""
    q, k, v = (torch.randn(1, heads, sequence_length, head_dim) for _ in range(3))
    return mean_seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), window)


def dispatch_seconds(window: float) -> float:
    """Seconds to dispatch one eager operation, averaged over a training step of a block too small to compute.

    The block (normalisation, projections, rotation, attention, gated feed-forward) is run forward and
    backward and its time divided by the number of operations that reach the dispatcher.
    """
    block = _TinyBlock()
    x = torch.randn(1, 2, 8, requires_grad=True)

    def call() -> None:
        block(x).sum().backward()

    with _OperationCounter() as counter:
        call()
    return mean_seconds(call, window) / counter.count


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


def all_reduce_seconds(num_bytes: int, window: float) -> float:
    """Seconds to all-reduce an fp32 buffer of ``num_bytes`` over all processes."""
    buffer = torch.zeros(num_bytes // 4)
    return mean_collective_seconds(lambda: dist.all_reduce(buffer), window)


def all_gather_seconds(num_bytes: int, window: float) -> float:
    """Seconds to all-gather an fp32 result of ``num_bytes`` over all processes."""
    size = dist.get_world_size()
    part = torch.zeros(num_bytes // 4 // size)
    whole = torch.zeros(part.numel() * size)
    return mean_collective_seconds(lambda: dist.all_gather_single(whole, part), window)


def reduce_scatter_seconds(num_bytes: int, window: float) -> float:
    """Seconds to reduce-scatter an fp32 buffer of ``num_bytes`` over all processes."""
    size = dist.get_world_size()
    part = torch.zeros(num_bytes // 4 // size)
    whole = torch.zeros(part.numel() * size)
    return mean_collective_seconds(lambda: dist.reduce_scatter_single(part, whole), window)


def point_to_point_seconds(num_bytes: int, window: float) -> float:
    """Seconds of one hop: every process sends ``num_bytes`` to its successor and receives from its predecessor."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, received = torch.zeros(num_bytes // 4), torch.zeros(num_bytes // 4)

    def call() -> None:
        pending = [dist.isend(sent, (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
        for work in pending:
            if work is not None:
                work.wait()

    return mean_collective_seconds(call, window)

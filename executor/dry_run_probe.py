"""The mode of a dry run: it runs every local operation on fake tensors and notes what it makes, computes and sends."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from executor.dry_run_flops import flops_of
from executor.dry_run_memory import Ledger
from executor.dry_run_traffic import Traffic
from executor.fake_cluster import PASSING_ON, FakeTensor, memoryless, works_out_layout

_MARKED_ARGUMENTS: dict[Any, str] = {
    torch.ops.c10d.send.default: "pipeline_buffers",
    torch.ops.c10d.recv_.default: "pipeline_buffers",
    torch.ops.c10d._allgather_base_.default: "communication_buffers",
    torch.ops.c10d._reduce_scatter_base_.default: "communication_buffers",
    # FSDP2 copies whole gradients with it into the input of their reduction.
    torch.ops.fsdp.chunk_cat.default: "gradients",
}


class Probe(TorchDispatchMode):
    """Counts into a ledger, a traffic table and ``flops`` (the latter two while ``counting`` is set).

    ``gloo``: whether the ranks would talk through it; it reduces a reduce-scatter in a copy of its output.
    """

    def __init__(self, ledger: Ledger, traffic: Traffic, *, gloo: bool) -> None:
        super().__init__()
        self._memoryless, self._gloo = memoryless(), gloo
        self.ledger, self.traffic = ledger, traffic
        self.flops = 0.0
        self.counting = False

    def count(self, on: bool) -> None:
        """Start or stop counting FLOP and traffic; memory is followed all the time."""
        self.counting = self.traffic.counting = on

    def __enter__(self) -> Probe:
        self.ledger.watch_resizes()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.ledger.stop_watching()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation without memory and note it."""
        # A wrapper (DTensor, a collective's pending result) first turns itself into local operations.
        if any(kind is not FakeTensor and hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        if works_out_layout():
            return func(*args, **(kwargs or {}))
        if (pass_on := PASSING_ON.get(func)) is not None:
            return pass_on(*args)
        if self._gloo and func is torch.ops.c10d._reduce_scatter_base_.default:
            copy: Any = self._memoryless.dispatch(torch.ops.aten.empty_like.default, types, args[:1], {})
            self._mark_made(copy)
        result = self._memoryless.dispatch(func, types, args, kwargs or {})
        self.traffic.see(func, args)
        if self.counting:
            self.flops += flops_of(func, args, result)
        self._remember(result, str(func))
        if (mark := _MARKED_ARGUMENTS.get(func)) is not None:
            self._mark(args, mark)
        return result

    def _mark_made(self, tensor: torch.Tensor) -> None:
        self.ledger.see(tensor, "gloo")
        self.ledger.mark([tensor], "communication_buffers")

    def _remember(self, result: Any, operation: str) -> None:
        if isinstance(result, FakeTensor):
            self.ledger.see(result, operation)
        elif isinstance(result, list | tuple):
            for each in result:
                self._remember(each, operation)

    def _mark(self, arguments: tuple[Any, ...], mark: str) -> None:
        for argument in arguments:
            if isinstance(argument, FakeTensor):
                self.ledger.mark([argument], mark)
            elif isinstance(argument, list | tuple):
                self._mark(tuple(argument), mark)

"""Bytes of tensors, exactly: what a process holds at an instant, and the most it held during a step.

A tensor is a view of a storage, and several tensors can share one, so bytes are counted over *distinct
storages*: a sharded (DTensor) parameter counts as its local shard, tied weights once.

The peak on a CPU is the largest sum of live storages, followed operation by operation: every storage
that an operation returns is registered with a weak reference whose callback takes its bytes away
again, and storages that FSDP2 empties and refills in place (`UntypedStorage.resize_`) are followed
through a patch of that method. Scratch memory inside one operation is not seen. On CUDA the caching
allocator's own counter is exact and is used instead.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


def local_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor consists of on this process: itself, or a DTensor's local shard."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from local_tensors(getattr(tensor, name))


def storage_bytes(tensors: Iterable[torch.Tensor | None], *, memoryless: bool = False) -> int:
    """Bytes of the distinct storages under the tensors; None counts nothing, nor do fake tensors unless ``memoryless``."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        for local in local_tensors(tensor) if tensor is not None else ():
            storage = local.untyped_storage()
            if memoryless or storage.device.type != "meta":
                sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


class StorageTracker(TorchDispatchMode):
    """Follows the live storages of one device type while it is entered.

    What was alive on entry counts from the start. ``peak_bytes`` is the largest sum seen,
    ``live_bytes`` the present one.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device_type = device.type
        self._sizes: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._resize = torch.UntypedStorage.resize_
        self.live_bytes = 0
        self.peak_bytes = 0

    def __enter__(self) -> StorageTracker:
        gc.collect()
        for candidate in gc.get_objects():
            # type(), not isinstance: some objects answer isinstance by importing whole packages.
            if issubclass(type(candidate), torch.Tensor) and not is_traceable_wrapper_subclass(candidate):
                self._register(candidate)
        torch.UntypedStorage.resize_ = self._patched_resize()  # type: ignore[assignment, method-assign]
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        self._references.clear()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and register what it returns."""
        # A wrapper (DTensor, a collective's pending result) first turns itself into local operations.
        if any(issubclass(kind, torch.Tensor) and hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                for local in local_tensors(leaf):
                    self._register(local)
        return result

    def _register(self, tensor: torch.Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse and other tensors without a storage
            return
        if storage.device.type != self._device_type or storage._cdata in self._references:
            return
        key = storage._cdata
        self._references[key] = weakref.ref(storage, lambda _: self._forget(key))
        self._resized(key, storage.nbytes())

    def _resized(self, key: int, size: int) -> None:
        self.live_bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        self._references.pop(key, None)
        self.live_bytes -= self._sizes.pop(key, 0)

    def _patched_resize(self) -> Callable[[torch.UntypedStorage, int], Any]:
        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            if storage._cdata in self._references:
                self._resized(storage._cdata, storage.nbytes())
            return result

        return resize_


class AllocatorMeter:
    """The peak that CUDA's caching allocator counted."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak_bytes = 0

    def read(self) -> None:
        """Take the counter's value."""
        self.peak_bytes = torch.cuda.max_memory_allocated(self._device)


@contextmanager
def track_peak(device: torch.device) -> Iterator[StorageTracker | AllocatorMeter]:
    """Measure the peak tensor bytes of the block; read ``peak_bytes`` afterwards."""
    if device.type != "cuda":
        with StorageTracker(device) as tracker:
            yield tracker
        return
    torch.cuda.reset_peak_memory_stats(device)
    meter = AllocatorMeter(device)
    yield meter
    torch.cuda.synchronize(device)
    meter.read()


def resident_bytes() -> int | None:
    """Peak resident set of this process (VmHWM of /proc/self/status); None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None

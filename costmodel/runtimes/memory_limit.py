"""How many bytes of a device a plan may use: all of them, or what a stated limit leaves.

    usable = floor(fraction x device memory) - reserve        (1)

The only place that says so; verdicts ("fits") and rejections everywhere compare with it.
"""

from __future__ import annotations

from costmodel.specs import DeviceSpec, InputError, MemoryLimit

_GIB = 2**30


def usable_bytes(device: DeviceSpec, limit: MemoryLimit | None) -> int:
    """Equation (1) for a device; None is no limit."""
    if limit is None:
        return device.memory_bytes
    return int(limit.fraction * device.memory_bytes) - limit.reserve_bytes


def make_memory_limit(device: DeviceSpec, *, fraction: float = 1.0, reserve_bytes: int = 0) -> MemoryLimit:
    """A limit for plans on ``device``.

    Args:
        device: whose memory is limited.
        fraction: in (0, 1].
        reserve_bytes: bytes left to others.

    Raises:
        InputError: when nothing is left.
    """
    share = int(fraction * device.memory_bytes)
    if reserve_bytes >= share:
        of = f"{fraction:.6g} of the {device.memory_bytes / _GIB:.1f} GiB" if fraction < 1 else "the memory"
        raise InputError(
            f"reserve_memory {reserve_bytes / _GIB:.1f} GiB leaves nothing for the plan; needed less than "
            f"{share / _GIB:.1f} GiB, {of} of {device.name}"
        )
    return MemoryLimit(
        device_bytes=device.memory_bytes,
        fraction=fraction,
        reserve_bytes=reserve_bytes,
        usable_bytes=share - reserve_bytes,
    )

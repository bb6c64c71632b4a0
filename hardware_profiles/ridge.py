"""The ridge point of a device's roofline.

    (1)  ridge point = peak FLOP/s / memory bandwidth    [FLOP/byte]

A kernel of lower arithmetic intensity (FLOP per byte of memory traffic) is limited by memory, one of higher
intensity by arithmetic. Source: Williams, Waterman, Patterson, Roofline: An Insightful Visual Performance Model for
Multicore Architectures, Communications of the ACM 52(4), 2009; also called a device's compute density.
"""

from __future__ import annotations

from hardware_profiles.spec import InputError
from hardware_profiles.types import DeviceSpec, Precision


def ridge_point(device: DeviceSpec, precision: Precision) -> float:
    """Equation (1), from data-sheet peak and bandwidth.

    Args:
        device: the device.
        precision: of the operands.

    Returns:
        FLOP per byte.

    Raises:
        InputError: the device does not support the precision.
    """
    if precision not in device.peak_flops_per_second:
        supported = ", ".join(device.peak_flops_per_second)
        raise InputError(f"{device.name} does not support {precision}; supported: {supported}")
    return device.peak_flops_per_second[precision] / device.memory_bandwidth_bytes_per_second

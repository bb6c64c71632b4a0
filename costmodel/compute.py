"""Seconds of one device's kernels, from a roofline whose ceilings are what kernels reach, not the data sheet's.

    (1) matmul:  t = max((F + F_half) / (peak x max_fraction), bytes / (bandwidth x memory_fraction))
    (2) stream:  t = bytes / (bandwidth x memory_fraction)
    (3) fused attention: t = F / (peak x attention_fraction), F on the causal-halved scores
    (4) smooth maximum: (a^s + b^s)^(1/s), between max(a, b) and a + b
    (5) clock under a power limit: min(1, limit / needed)^exponent; dynamic power grows faster than the clock, so the
        exponent lies below 1

F_half / (peak x max_fraction) is the time a matrix multiplication loses to ramp-up and partly filled waves, so (1)
reaches half of ``max_fraction`` at F_half FLOP. All functions work on columns (NumPy arrays of equal length).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from costmodel.fp8 import FP8_BYTES, RECIPES, fp8_peak
from costmodel.specs import BYTES_PER_ELEMENT, DeviceSpec, InputError, Precision, PrecisionSpec

Column = NDArray[np.float64]

_SMALLEST = float(np.finfo(np.float64).tiny)

ALIGNMENT_ELEMENTS = 8
"""Tensor cores want 16-bit operands in multiples of 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide)."""

MISALIGNED_MATMUL_SLOWDOWN = 2.0
"""A 50,257-wide head padded to 50,304 made the whole nanoGPT step (124M) about 25% faster; the head is 31% of its FLOP
(karpathy/nanoGPT, README and data/openwebtext/prepare.py; the commit that pads the vocabulary)."""

MISALIGNED_ATTENTION_SLOWDOWN = 8.0
"""Batched score multiplications with a head size that is no multiple of 8: fitted on published Megatron-DeepSpeed runs
that differ in the head size only (bigscience-workshop/bigscience, GPT-2 experiments on V100)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Ceilings of one device for one compute precision; ``projections``: of the layers' ones where they are in fp8."""

    flops_per_second: float
    half_flops: float
    attention_flops_per_second: float
    bytes_per_second: float
    launch_seconds: float
    asynchronous: bool
    is_hopper: bool
    element_bytes: int
    result_bytes: int
    needs_alignment: bool
    projections: Roofline | None = None

    @property
    def of_projections(self) -> Roofline:
        """The ceilings of the layers' projections."""
        return self.projections or self


def roofline(
    device: DeviceSpec,
    precision: Precision,
    *,
    sustained_rate: float = 1.0,
    power_exponent: float = 0.0,
    site_rate: float = 1.0,
) -> Roofline:
    """The ceilings of ``device`` when it computes in ``precision``.

    ``sustained_rate`` scales all ceilings of a device that runs behind its host; profiles of other devices are measured
    the way they are used. ``site_rate`` scales those of any device.

    Raises:
        InputError: when the device does not support the precision.
    """
    peak = device.peak_flops_per_second.get(precision)
    if peak is None:
        supported = ", ".join(device.peak_flops_per_second)
        raise InputError(f"{device.name} cannot compute in {precision}; it supports: {supported}")
    rate = site_rate * (sustained_rate if device.kind == "cuda" else 1.0)
    clock = rate * power_fraction(device, power_exponent)
    return Roofline(
        flops_per_second=clock * peak * device.gemm.max_fraction,
        half_flops=device.gemm.half_flops,
        attention_flops_per_second=clock * peak * device.attention_fraction,
        bytes_per_second=rate * device.memory_bandwidth_bytes_per_second * device.memory_fraction,
        launch_seconds=device.launch_seconds,
        asynchronous=device.kind == "cuda",
        is_hopper=device.architecture == "Hopper",
        element_bytes=BYTES_PER_ELEMENT[precision],
        result_bytes=BYTES_PER_ELEMENT[precision],
        needs_alignment=device.kind == "cuda" and precision in ("bf16", "fp16"),
    )


def power_fraction(device: DeviceSpec, exponent: float) -> float:
    """Clock under the device's power limit over the clock at which its fractions were measured, equation (5)."""
    peak = device.peak_flops_per_second.get("fp16", 0.0)
    if device.full_rate_watts_per_tflops is None or device.power_limit_watts is None or not peak:
        return 1.0
    needed = device.full_rate_watts_per_tflops * peak / 1e12
    return float(min(1.0, device.power_limit_watts / needed) ** exponent)


def training_roofline(
    device: DeviceSpec,
    precision: PrecisionSpec,
    *,
    sustained_rate: float = 1.0,
    power_exponent: float = 0.0,
    site_rate: float = 1.0,
    fp8_rate: float = 1.0,
) -> Roofline:
    """The ceilings of ``device`` in training, with those of fp8 projections (fp8.py, equation (1)).

    Raises:
        InputError: when the device does not support the compute format or fp8.
    """
    ceiling = roofline(
        device,
        precision.compute,
        sustained_rate=sustained_rate,
        power_exponent=power_exponent,
        site_rate=site_rate,
    )
    if precision.fp8_recipe is None:
        return ceiling
    faster = fp8_peak(device) / device.peak_flops_per_second[precision.compute]
    faster *= fp8_rate * RECIPES[precision.fp8_recipe].efficiency
    projections = replace(
        ceiling,
        flops_per_second=ceiling.flops_per_second * faster,
        half_flops=ceiling.half_flops * faster,
        element_bytes=FP8_BYTES,
    )
    return replace(ceiling, projections=projections)


def matmul_seconds(
    ceiling: Roofline, *, rows: Column, inner: Column, outer: Column, extra_bytes: Column | float = 0.0
) -> Column:
    """Time of [rows, inner] x [inner, outer], equation (1).

    A misaligned operand slows the arithmetic, not the traffic.

    Args:
        ceiling: the device.
        rows: tokens, a column.
        inner: contracted size, a column.
        outer: output features, a column.
        extra_bytes: what the kernel moves besides its two operands and its result, a column.

    Returns:
        Seconds, a column.
    """
    flops = 2.0 * rows * inner * outer
    arithmetic = (flops + ceiling.half_flops) / ceiling.flops_per_second
    arithmetic = arithmetic * _misalignment(ceiling, MISALIGNED_MATMUL_SLOWDOWN, inner, outer)
    moved_bytes = (rows * inner + inner * outer) * ceiling.element_bytes + rows * outer * ceiling.result_bytes
    return np.maximum(arithmetic, (moved_bytes + extra_bytes) / ceiling.bytes_per_second)


def batched_matmul_seconds(ceiling: Roofline, *, batch: Column, length: float, head_dim: int) -> Column:
    """Time of ``batch`` products [length, head_dim] x [head_dim, length] started as one kernel, equation (1)."""
    flops = 2.0 * batch * length * length * head_dim
    arithmetic = (flops + ceiling.half_flops) / ceiling.flops_per_second
    arithmetic = arithmetic * _misalignment(ceiling, MISALIGNED_ATTENTION_SLOWDOWN, np.float64(head_dim))
    moved_bytes = batch * (2.0 * length * head_dim + length * length) * ceiling.element_bytes
    return np.maximum(arithmetic, moved_bytes / ceiling.bytes_per_second)


def stream_seconds(ceiling: Roofline, moved_bytes: Column) -> Column:
    """Time of kernels that only move bytes, equation (2)."""
    return moved_bytes / ceiling.bytes_per_second


def smooth_maximum(first: Column, second: Column, sharpness: float) -> Column:
    """Equation (4): two limits that hide each other well but not perfectly near the crossover."""
    larger = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.maximum(larger, _SMALLEST)
    return np.asarray(larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness))


def _misalignment(ceiling: Roofline, slowdown: float, *sizes: Column | np.float64) -> Column | float:
    if not ceiling.needs_alignment:
        return 1.0
    aligned = reduce(np.logical_and, (size % ALIGNMENT_ELEMENTS == 0 for size in sizes))
    return np.where(aligned, 1.0, slowdown)

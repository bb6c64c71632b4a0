"""8-bit matrix products: how fast each scaling recipe runs them, and what casting their operands moves.

The products of the layers' projections take fp8 operands and give 16-bit results; attention, norms, activations, the head and
the loss stay in the compute format, and parameters are gathered in it. For a product of R rows, I inner and O outer:

    (1) rate = fp8 peak x max_fraction x fp8_rate of the stack x efficiency of the recipe; the ramp-up costs the seconds
        that it costs in 16 bits
    (2) cast of one element: read in 2 bytes, written in 1, and in 1 more transposed, since fp8 matrix units want both
        operands with the contracted dimension innermost: 4 bytes. A recipe that scales a tensor by its own maximum reads
        it once before: 2 bytes more
    (3) forward casts the input R I and the weight I O, backward the output's gradient R O. A stack that keeps 8-bit
        weights over a step casts them in the first micro-batch only
    (4) kept for backward: the input in 1 byte instead of 2, where the stack keeps what it cast

Recipes, in Transformer Engine's words: ``delayed`` (a tensor's scale is that of the steps before), ``current`` (its own
maximum; torchao's tensorwise scaling), ``rowwise`` (one scale a row), ``blockwise`` (1 x 128 and 128 x 128 blocks, arXiv
2412.19437 section 3.3), ``mxfp8`` (32 elements, OCP Microscaling Formats 1.0, in the matrix units of Blackwell). The
all-reduce of the maxima, a few kilobytes a pass, is not counted.

Sources: Transformer Engine docs/examples/fp8_primer and common/recipe; torchao float8/float8_linear.py.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.specs import DeviceSpec, Fp8Recipe, InputError

FP8_BYTES = 1
CAST_BYTES = 4.0
"""Read 2, write 1, write 1 transposed."""


class Recipe(NamedTuple):
    """``efficiency``: of its products over those with one scale a tensor; ``scale_bytes``: per element, to find a scale."""

    efficiency: float
    scale_bytes: float


RECIPES: dict[Fp8Recipe, Recipe] = {
    "delayed": Recipe(1.0, 0.0),
    "current": Recipe(1.0, 2.0),
    # CUTLASS in place of cuBLAS, and scales of both operands applied in its epilogue.
    "rowwise": Recipe(0.6, 2.0),
    # Partial sums leave the matrix units every 128 products and are scaled in registers.
    "blockwise": Recipe(0.9, 0.0),
    # A scale of 32 elements is read with the operands: GB200 runs take 5% longer steps than with one scale a tensor
    # (NVIDIA-NeMo/Megatron-Bridge performance summaries of 25.09 and 25.11, llama-3.1-8b on 8 GPUs).
    "mxfp8": Recipe(0.9, 0.0),
}


def fp8_peak(device: DeviceSpec) -> float:
    """FLOP per second of dense fp8 products.

    Raises:
        InputError: when the device states none.
    """
    peak = device.peak_flops_per_second.get("fp8")
    if peak is None:
        supported = ", ".join(device.peak_flops_per_second)
        raise InputError(f"{device.name} cannot multiply in fp8; it supports: {supported}")
    return peak


def cast_bytes(recipe: Fp8Recipe) -> float:
    """Bytes moved per element that is cast, equation (2)."""
    return CAST_BYTES + RECIPES[recipe].scale_bytes

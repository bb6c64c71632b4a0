"""What is measured on a kind of device, in which sizes. No torch here: the command line reads it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, int, int]
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "point_to_point")
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """Sizes of everything that is measured.

    ``gemm``: (rows, inner, columns) by precision; ``attention``: (heads, length, head dimension); the others in bytes.
    ``main``: the precision that training computes in, of attention and of what is limited by memory. ``rounds``:
    everything is measured so many times and the medians are kept, as a short disturbance touches one round.
    """

    main: str
    gemm: Mapping[str, tuple[Shape, ...]]
    stream_bytes: int
    elementwise: tuple[int, int]
    attention: tuple[Shape, ...]
    copies: tuple[int, ...]
    messages: tuple[int, ...]
    rounds: int = 3

    def count(self, *, num_groups: int, cuda: bool) -> int:
        """Measurements of one round, for the share of the time that each may take."""
        copies = len(self.copies) * (4 if cuda else 1)
        local = sum(map(len, self.gemm.values())) + len(self.attention) + 3 + copies + (2 if cuda else 0)
        return local + num_groups * len(COLLECTIVES) * len(self.messages)


def cpu_menu(*, quick: bool) -> Menu:
    """For processes on cores."""
    products = ((64, 64, 128), (64, 128, 128), (128, 128, 256), (256, 256, 256), (256, 256, 512), (512, 512, 1024))
    others = products[4:5] if quick else products[1::2]
    longer: tuple[Shape, ...] = ((4, 256, 128), (4, 1024, 64))
    return Menu(
        main="fp32",
        gemm={"fp32": products, "fp64": others, "bf16": others},
        stream_bytes=3 * _MIB,
        elementwise=(512, 512),
        attention=((4, 256, 64), *(() if quick else longer)),
        copies=(2**12, 2**24) if quick else (2**12, 2**16, 2**20, 2**24),
        messages=(2**12, 2**16, 2**19, 2**22) if quick else tuple(2**exponent for exponent in range(10, 25, 2)),
    )


def cuda_menu(*, quick: bool, bf16: bool) -> Menu:
    """For CUDA devices; without bf16 (before Ampere) the 16-bit format is fp16."""
    main = "bf16" if bf16 else "fp16"
    sides = (256, 512, 1024, 2048, 4096, 8192) if quick else (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
    cubes = {side: (side, side, side) for side in sides}
    fewer = tuple(cubes[side] for side in sides[2:-1:2])
    lengths, head_dims = ((4096,), (64, 128)) if quick else ((2048, 8192), (64, 128, 256))
    return Menu(
        main=main,
        gemm={main: tuple(cubes.values()), "fp32": fewer, "fp64": fewer[:2]} | ({"fp16": fewer} if bf16 else {}),
        stream_bytes=768 * _MIB,
        elementwise=(8192, 8192),
        attention=tuple((16, length, head_dim) for length in lengths for head_dim in head_dims),
        copies=(2**16, 2**20, 2**24, 2**28),
        messages=(2**20, 2**23, 2**26, 2**28) if quick else tuple(2**exponent for exponent in range(16, 31, 2)),
    )


def menu_for(facts: Mapping[str, Any], *, quick: bool) -> Menu:
    """The menu for a device that `executor.measure_process.describe_device` described."""
    return cuda_menu(quick=quick, bf16=bool(facts["bf16"])) if facts["kind"] == "cuda" else cpu_menu(quick=quick)

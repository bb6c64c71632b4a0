"""What a machine with exactly known numbers would measure."""

from typing import Any

PEAK, HALF, LAUNCH = 5e10, 2e6, 8e-6
BANDWIDTH = 1.2e10
NODE_RATE, NODE_LATENCY = 4e8, 3e-4
NETWORK_RATE, NETWORK_LATENCY = 1e8, 9e-4
COPY_RATE, COPY_LATENCY = 6e9, 2e-6
MESSAGES = (2.0**12, 2.0**16, 2.0**20, 2.0**24)
Reading = list[Any]


def facts(**changes: Any) -> dict[str, Any]:
    plain = {
        "kind": "cpu", "torch": "2.13.0", "bf16": True, "name": "cpu", "names": ["cpu"], "memory_bytes": 12_000,
        "local_size": 4, "num_nodes": 1, "cores": 4, "host_memory_bytes": 2**34,
    }  # fmt: skip
    return {**plain, **changes}


def device(*, main: str = "fp32", peak: float = PEAK, half: float = HALF) -> list[Reading]:
    """Everything but collectives; 16-bit and fp64 products at twice and half the main rate."""
    sizes = (1e6, 1e7, 1e8, 5e8, 5e10, 5e12)
    others = {"fp32": ("fp64", "bf16"), "bf16": ("fp64", "fp32")}[main]
    return [
        *([f"gemm_{main}", [flops], (flops + half) / peak] for flops in sizes),
        [f"gemm_{others[0]}", [1e8], 2 * (1e8 + half) / peak],
        [f"gemm_{others[1]}", [1e8], 0.5 * (1e8 + half) / peak],
        ["stream", [3e6], 3e6 / BANDWIDTH],
        ["elementwise", [6e6, 20.0], 6e6 / (0.5 * BANDWIDTH) + 20 * LAUNCH],
        ["attention", [1e7, 64.0, 256.0], 1e7 / (0.25 * peak)],
        ["attention", [1e7, 128.0, 4096.0], 1e7 / (0.5 * peak)],
        ["launch", [], LAUNCH / 2],
        ["dispatch", [], LAUNCH],
        ["host_stream", [3e6], 3e6 / BANDWIDTH],
        ["host_gemm", [1e6], 1e6 / 3e10],
        *copies(),
    ]


def copies() -> list[Reading]:
    kinds = ("copy", "copy_pinned_to_device", "copy_pinned_to_host", "copy_pageable_to_device", "copy_pageable_to_host")
    return [
        [kind, [size], COPY_LATENCY + size / COPY_RATE * (3 if "pageable" in kind else 1)]
        for kind in kinds
        for size in (2.0**12, 2.0**20, 2.0**28)
    ]


def ring(group: str, size: int, rate: float, latency: float, *, gloo: bool = True) -> list[Reading]:
    """All collectives of one group over a link: n - 1 hops of 1/n of the bytes, all-reduces twice."""
    found = []
    for num_bytes in MESSAGES:
        once = (size - 1) * (latency + num_bytes / size / rate)
        found += [
            [f"{group}_all_reduce", [num_bytes, float(size)], 2 * once],
            [f"{group}_reduce_scatter", [num_bytes, float(size)], 2 * once if gloo else once],
            [f"{group}_all_gather", [num_bytes, float(size)], once],
            [f"{group}_point_to_point", [num_bytes, float(size)], latency + num_bytes / rate],
        ]
    return found


def alone(size: int, rate: float, latency: float) -> list[Reading]:
    return ring("alone", size, rate, latency)

"""Published outputs of nvidia-smi and nccl-tests, and nccl-tests' table for a machine whose numbers are known."""

from pathlib import Path

from hardware_profiles.detect.report import Report

FOLDER = Path(__file__).parents[2] / "benchmarks" / "data" / "hardware_reports"
SIZES = tuple(2**exponent for exponent in range(23, 31))
_HEADING = """# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003
# Collective test starting: {name}_perf
# nThread 1 nGpus 1 minBytes 8388608 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
BUS_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}


def published(path: str) -> Report:
    """A committed report, named by its file."""
    return Report(path.rpartition("/")[2], (FOLDER / path).read_text())


def nccl_table(
    name: str,
    *,
    nodes: int,
    per_node: int,
    rate: float,
    one_way: float,
    device: str = "NVIDIA H100 80GB HBM3",
    sizes: tuple[int, ...] = SIZES,
) -> Report:
    """What nccl-tests prints where seconds / passes = one_way + sent / passes / rate exactly (rounded as it prints)."""
    size = nodes * per_node
    ranks = "\n".join(
        f"#  Rank {rank:2d} Group  0 Pid {100 + rank} on node{rank // per_node} device {rank % per_node:2d} "
        f"[0x{rank % per_node:02x}] {device}"
        for rank in range(size)
    )
    rows = []
    for num_bytes in sizes:
        passes = 2 if name == "all_reduce" else 1
        sent = num_bytes if name == "sendrecv" else BUS_FACTOR[name] * (size - 1) / size * num_bytes
        seconds = passes * one_way + sent / rate
        algorithm = num_bytes / seconds / 1e9
        bus = algorithm * (1 if name == "sendrecv" else BUS_FACTOR[name] * (size - 1) / size)
        cells = f"{seconds * 1e6:8.2f} {algorithm:7.2f} {bus:7.2f} {0:7d}"
        operation = "none" if name in ("all_gather", "alltoall") else "sum"
        rows.append(f"{num_bytes:12d} {num_bytes // 4:13d}     float {operation:>7} {-1:7d} {cells} {cells}")
    body = "\n".join(rows)
    closing = (
        f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n#\n# Collective test concluded: {name}_perf\n"
    )
    return Report(f"{name}.txt", _HEADING.format(name=name, ranks=ranks) + body + "\n" + closing)

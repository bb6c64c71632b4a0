"""What a machine is: devices, links, hosts and the levels that join devices into a cluster.

Units are SI and stand in the names. Rates of links are one-directional. A number's origin is kept in
``sources``: dotted field path -> citation.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from hardware_profiles.spec import Spec

NumberFormat = Literal["fp64", "fp32", "bf16", "fp16"]
# What matrix units take; fp8 is a format of their operands alone, no tensor is kept in it.
Precision = Literal["fp64", "fp32", "bf16", "fp16", "fp8"]
DeviceKind = Literal["cuda", "cpu"]
# No machine is outside these; within them no time overflows or vanishes.
Rate = Annotated[float, Field(ge=1, le=1e32)]
Latency = Annotated[float, Field(ge=0, le=1e4)]
Share = Annotated[float, Field(ge=1e-6, le=1e3)]


class GemmCurve(Spec):
    """Achieved fraction of the peak of a matrix multiplication of F FLOP: max_fraction * F / (F + half_flops).

    ``half_flops`` is the size at which half of ``max_fraction`` is reached. ``max_fraction`` may be
    above 1 only on a ``cpu`` device, whose "peak" is itself a measurement.
    """

    max_fraction: Share
    half_flops: float = Field(ge=0, le=1e24)


class DeviceSpec(Spec):
    """One accelerator, or one CPU process with its share of the cores.

    ``peak_flops_per_second`` is dense (no sparsity), by precision of the inputs; a precision that is
    missing is not supported by the device. ``attention_fraction`` is the fraction of peak that a fused
    (flash) attention kernel reaches on causal-halved FLOPs, forward; ``memory_fraction`` the fraction
    of the nominal memory bandwidth that streaming kernels reach. ``launch_seconds`` is the time to
    start one kernel (CUDA) or to dispatch one eager operation (CPU). ``full_rate_watts_per_tflops``: watts per TFLOP/s of
    the 16-bit peak at which the GEMM and attention fractions hold; a smaller ``power_limit_watts`` lowers the clock.
    """

    name: str
    kind: DeviceKind
    vendor: str
    architecture: str
    peak_flops_per_second: dict[Precision, Rate]
    memory_bytes: PositiveInt
    memory_bandwidth_bytes_per_second: Rate
    memory_fraction: Share
    gemm: GemmCurve
    attention_fraction: Share
    launch_seconds: Latency
    power_limit_watts: PositiveFloat | None = None
    full_rate_watts_per_tflops: PositiveFloat | None = None
    sources: dict[str, str] = Field(default={})


class LinkSpec(Spec):
    """A link as one port sees it, one direction.

    ``nominal_bytes_per_second`` is the data sheet's rate; ``measured_bytes_per_second`` (a measured
    all-reduce bus bandwidth per port) is preferred where given; otherwise large messages reach
    ``efficiency`` times the nominal rate. ``latency_seconds`` is the cost of one hop of a collective. ``peer_fraction`` is the
    share of the rate that goes to one peer: 1 through a switch, less where links join pairs of devices.
    """

    name: str
    nominal_bytes_per_second: Rate
    measured_bytes_per_second: Rate | None = None
    efficiency: float = Field(ge=1e-6, le=1)
    latency_seconds: Latency
    peer_fraction: float = Field(default=1.0, gt=0, le=1)


class LevelSpec(Spec):
    """One level of the hierarchy: ``size`` units of the level below, joined by ``link``.

    ``ports`` is the number of links one unit of the level below has into this level: 1 for a GPU on
    NVLink, 8 for a node with 8 NICs. ``oversubscription`` divides the rate that leaves a unit.
    """

    name: str
    size: PositiveInt
    link: LinkSpec
    ports: PositiveInt = 1
    oversubscription: float = Field(default=1.0, ge=1, le=1e6)


class HostSpec(Spec):
    """The host of one node; ``pcie`` is one device's link to host memory."""

    memory_bytes: PositiveInt
    memory_bandwidth_bytes_per_second: Rate
    flops_per_second: Rate
    cores: PositiveInt
    pcie: LinkSpec


class NvmeSpec(Spec):
    """Local NVMe of one node, all drives together."""

    bytes: PositiveInt
    read_bytes_per_second: Rate
    write_bytes_per_second: Rate


class ClusterSpec(Spec):
    """Equal devices in a hierarchy; ``levels`` run from the innermost (node) to the outermost.

    Global device numbers are row-major: the innermost level varies fastest. The number of devices
    is the product of the level sizes; ``levels[0].size`` is the number of devices per node.
    """

    name: str
    device: DeviceSpec
    levels: tuple[LevelSpec, ...] = Field(min_length=1)
    host: HostSpec
    nvme: NvmeSpec | None = None
    price_per_device_hour: NonNegativeFloat | None = None
    sources: dict[str, str] = Field(default={})

    @property
    def devices_per_node(self) -> int:
        """Devices that share a host and the innermost link."""
        return self.levels[0].size

    @property
    def num_nodes(self) -> int:
        """Number of hosts."""
        return self.num_devices // self.levels[0].size

    @property
    def num_devices(self) -> int:
        """Devices in the whole cluster."""
        total = 1
        for level in self.levels:
            total *= level.size
        return total


class NodeSpec(Spec):
    """One kind of node: ``size`` devices on ``link``, the host they share and the way out of the node.

    ``network`` is the name of the profile of one NIC port; ``ports`` the number of such ports that carry
    training traffic. Numbers are those of the full node; a cluster of partial nodes gets a share.
    ``devices_per_host`` is given where ``link`` joins several hosts (an NVLink domain): the "node" is then the
    domain, and ``host`` all its hosts together.
    """

    name: str
    description: str
    size: PositiveInt
    link: LinkSpec
    network: str
    ports: PositiveInt
    host: HostSpec
    devices_per_host: PositiveInt | None = None
    nvme: NvmeSpec | None = None
    sources: dict[str, str] = Field(default={})


class NetworkSpec(Spec):
    """The link of one NIC port into the network between nodes.

    ``environment``: variables that NCCL over this network wants to find, name -> value.
    """

    name: str
    description: str
    link: LinkSpec
    environment: dict[str, int | str] = Field(default={})
    sources: dict[str, str] = Field(default={})

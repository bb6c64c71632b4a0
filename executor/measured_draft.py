"""What is known while readings become a cluster, and what a person is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.specs import ClusterSpec, DeviceSpec, Precision
from executor.measured_links import Readings
from hardware_profiles.types import NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One measured number. ``residual``: relative, of its fit; None where it is a mean. ``remark``: what it stands for."""

    name: str
    value: float
    unit: str
    num_points: int = 1
    residual: float | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A cluster and its findings, in the order of measuring."""

    cluster: ClusterSpec
    findings: tuple[Finding, ...]


@dataclass(slots=True, kw_only=True)
class Draft:
    """What the steps from readings to a cluster share."""

    facts: Mapping[str, Any]
    readings: Readings
    known: DeviceSpec | None
    node: NodeSpec | None
    source: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        """Whether the devices are CUDA devices."""
        return bool(self.facts["kind"] == "cuda")

    @property
    def main(self) -> Precision:
        """The precision of matrix products and attention: 16-bit on CUDA devices, fp32 on a CPU."""
        return ("bf16" if self.facts["bf16"] else "fp16") if self.cuda else "fp32"

    def products(self, precision: Precision) -> list[tuple[float, float]]:
        """(FLOP, seconds) of the products of one precision."""
        return [(sizes[0], seconds) for sizes, seconds in self.readings.get(f"gemm_{precision}", ())]

    def quality(self, num_points: int, residual: float | None) -> str:
        """A source with the fit's quality."""
        return f"{self.source}; {num_points} points" + ("" if residual is None else f", residual {residual:.1%}")

"""What a user's own runs say about one device and one runtime: the document that `calibrate` writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from hardware_profiles.spec import Spec

LOWEST_RATE, HIGHEST_RATE = 0.2, 2.0
"""Kernels five times slower than modelled are another problem; twice as fast as modelled they pass most devices' peaks."""

LOWEST_LAUNCH, HIGHEST_LAUNCH = 0.1, 10.0
LOWEST_MEMORY, HIGHEST_MEMORY = 0.5, 2.0


class RateCorrection(Spec):
    """Rate of kernels over the modelled one; ``uncertainty`` is the standard error of its logarithm."""

    value: float = Field(default=1.0, ge=LOWEST_RATE, le=HIGHEST_RATE)
    uncertainty: NonNegativeFloat = 0.0


class LaunchCorrection(Spec):
    """Host time of an operation over the modelled one; ``uncertainty`` is the standard error of its logarithm."""

    value: float = Field(default=1.0, ge=LOWEST_LAUNCH, le=HIGHEST_LAUNCH)
    uncertainty: NonNegativeFloat = 0.0


class OverlapCorrection(Spec):
    """Added to the share of data-parallel communication that hides; the sum is kept between 0 and 1."""

    value: float = Field(default=0.0, ge=-1.0, le=1.0)
    uncertainty: NonNegativeFloat = 0.0


class MemoryCorrection(Spec):
    """Allocated peak over the predicted one; ``uncertainty`` is the standard error of its logarithm."""

    value: float = Field(default=1.0, ge=LOWEST_MEMORY, le=HIGHEST_MEMORY)
    uncertainty: NonNegativeFloat = 0.0


class SiteRun(Spec):
    """A run the site was made of; errors are predicted / measured - 1 without and with the corrections."""

    id: str
    measured_seconds: PositiveFloat
    error_before: float
    error_after: float


class SiteProfile(Spec):
    """Corrections of one runtime on one device at one site.

    ``scatter`` is the standard deviation of log(measured / predicted) between runs of the site that the corrections leave;
    ``error_band`` (half width of the 80% interval) replaces the runtime's. ``num_nodes`` and ``num_devices`` are the largest of
    the runs. ``constants_version`` names the constants that were corrected (`costmodel.site.constants_version`).
    """

    schema_version: Literal[1] = 1
    device: Annotated[str, Field(min_length=1)]
    runtime: Annotated[str, Field(min_length=1)]
    num_devices: PositiveInt
    num_nodes: PositiveInt
    efficiency: RateCorrection = RateCorrection()
    launch: LaunchCorrection = LaunchCorrection()
    overlap: OverlapCorrection = OverlapCorrection()
    memory_margin: MemoryCorrection = MemoryCorrection()
    scatter: NonNegativeFloat
    error_band: float = Field(gt=0, lt=1)
    runs: tuple[SiteRun, ...] = Field(min_length=1)
    created: str
    constants_version: str
    meshwright_version: str

    @property
    def title(self) -> str:
        """The site in a few words, for messages."""
        count = f"{len(self.runs)} run{'s' if len(self.runs) != 1 else ''}"
        return f"{self.runtime} on {self.device}, {count} of {self.created}"

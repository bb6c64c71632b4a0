"""How much of a device's memory a plan may use, where the user says less than all of it."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveInt

from hardware_profiles.spec import Spec

_GIB = 2**30


class MemoryLimit(Spec):
    """A stated limit: ``usable_bytes`` = ``fraction`` of the device's ``device_bytes``, less ``reserve_bytes``."""

    device_bytes: PositiveInt
    fraction: float = Field(default=1.0, gt=0, le=1)
    reserve_bytes: NonNegativeInt = 0
    usable_bytes: PositiveInt

    @property
    def words(self) -> str:
        """Where the limit comes from: ``90% of 79.1 GiB, less 2.0 GiB reserved``."""
        share = f"{self.fraction * 100:.6g}% of " if self.fraction < 1 else ""
        reserve = f", less {self.reserve_bytes / _GIB:.1f} GiB reserved" if self.reserve_bytes else ""
        return f"{share}{self.device_bytes / _GIB:.1f} GiB{reserve}"

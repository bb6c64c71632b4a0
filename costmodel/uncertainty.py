"""How sure a predicted step time is: the half-width of its 80% interval, relative to the value.

A runtime's band is that of its own published runs that were not fitted. On an architecture that none of them used, the
hardware's constants come from other stacks and the runtime's from other hardware, and the band is the wider one of runs
whose whole source was not fitted.
"""

from __future__ import annotations

from costmodel.specs import DeviceSpec, RuntimeProfile


def error_band(runtime: RuntimeProfile, device: DeviceSpec) -> float:
    """Half-width: predicted / (1 + band) to predicted x (1 + band) holds 80% of measured step times."""
    if runtime.error_band_elsewhere is None or device.architecture in runtime.measured_on:
        return runtime.error_band
    return max(runtime.error_band, runtime.error_band_elsewhere)

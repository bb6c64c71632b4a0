"""Why a run is not predicted."""

from __future__ import annotations


class UnsupportedRunError(Exception):
    """The run uses something that the cost model does not know; the message is the reason."""


class UnknownAcceleratorError(UnsupportedRunError):
    """There is no profile of the run's accelerator."""


class ForeignSiteError(UnsupportedRunError):
    """The run is of another runtime or device than the site file it should be predicted with."""

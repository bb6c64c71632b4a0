"""Why a run is not predicted."""

from __future__ import annotations


class UnsupportedRunError(Exception):
    """The run uses something that the cost model does not know; the message is the reason."""


class BrokenRuleError(UnsupportedRunError):
    """The run breaks a rule of `costmodel.runtimes.rules`, named ``rule``."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class UnknownAcceleratorError(UnsupportedRunError):
    """There is no profile of the run's accelerator."""


class ForeignSiteError(UnsupportedRunError):
    """The run is of another runtime or device than the site file it should be predicted with."""

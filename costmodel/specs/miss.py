"""The candidate that comes closest to fitting."""

from __future__ import annotations

from pydantic import NonNegativeInt

from costmodel.specs.memory_limit import MemoryLimit
from hardware_profiles.spec import Spec


class MissTerm(Spec):
    """One memory term of the nearest miss and what it holds."""

    name: str
    bytes: NonNegativeInt


class NearestMiss(Spec):
    """No plan is feasible: the candidate closest to fitting and what would make it fit.

    ``capacity_bytes``: of a device, or what a stated ``memory_limit`` leaves of it.
    """

    plan_summary: str
    needed_bytes: NonNegativeInt
    capacity_bytes: NonNegativeInt
    memory_limit: MemoryLimit | None = None
    terms: tuple[MissTerm, ...]
    fixes: tuple[str, ...]

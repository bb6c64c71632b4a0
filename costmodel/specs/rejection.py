"""Why something cannot be: data, never an exception."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt

from hardware_profiles.spec import Spec


class Rejection(Spec):
    """A broken rule: its name, one sentence with the numbers found and needed, and what would fix it."""

    rule: str
    message: str
    numbers: dict[str, float | int | str] = Field(default={})
    fix: str = ""


class RejectionCount(Spec):
    """How many candidates of a search one rule removed, with one example."""

    rule: str
    count: NonNegativeInt
    example: str
    fix: str = ""

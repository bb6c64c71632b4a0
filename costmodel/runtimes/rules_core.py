"""The words validity rules are written in: a context, a rule, its outcome over a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.memory_limit import usable_bytes
from costmodel.specs import (
    ClusterSpec,
    MemoryLimit,
    ModelSpec,
    PipelineSchedule,
    Rejection,
    RuntimeProfile,
    TrainingSpec,
)

BoolColumn = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What every candidate of a grid shares.

    ``layers_per_stage``: stated by the user, else None (even split). ``memory_limit``: likewise, else None (all of a device).
    """

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    runtime: RuntimeProfile
    layers_per_stage: tuple[int, ...] | None = None
    memory_limit: MemoryLimit | None = None

    @property
    def usable_bytes(self) -> int:
        """Bytes of a device that a plan may use."""
        return usable_bytes(self.cluster.device, self.memory_limit)


@dataclass(frozen=True, slots=True)
class Finding:
    """Why one row breaks a rule: one sentence with found and needed, what would fix it, the numbers apart."""

    message: str
    fix: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One validity rule.

    ``mask`` gives True per row where the rule holds; ``explain`` words the breach of one row.
    ``stated_axes``: the axes that must all be stated before a partial statement can break the rule by
    itself, the other axes at their neutral value (1, off). An empty tuple: the rule is monotone in every
    axis, so whatever is stated can already break it. None: only a complete candidate can be judged.
    """

    name: str
    stated_axes: tuple[str, ...] | None
    mask: Callable[[RuleContext, Grid], BoolColumn]
    explain: Callable[[RuleContext, Grid, int], Finding]


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """One rule over one grid: ``mask_ok[row]`` is True where the rule holds."""

    rule: Rule
    mask_ok: BoolColumn
    context: RuleContext
    grid: Grid

    def rejection(self, row: int) -> Rejection:
        """The breach of ``row`` in words; meaningful only where ``mask_ok[row]`` is False."""
        finding = self.rule.explain(self.context, self.grid, row)
        return Rejection(rule=self.rule.name, message=finding.message, numbers=dict(finding.numbers), fix=finding.fix)


def everywhere(grid: Grid, value: bool) -> BoolColumn:
    """The same answer for every row: rules that only look at the context."""
    return np.full(len(grid), value)


def schedule_is(grid: Grid, *names: PipelineSchedule) -> BoolColumn:
    """Rows whose schedule is one of ``names``."""
    return np.array([name in names for name in SCHEDULES])[grid.pipeline_schedule]


def schedule_of(grid: Grid, row: int) -> PipelineSchedule:
    """The schedule's name in one row."""
    return SCHEDULES[int(grid.pipeline_schedule[row])]


def divisors(number: int) -> list[int]:
    """All positive divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def listed(values: Iterable[object]) -> str:
    """Values for a message: ``1, 2, 4``; ``none`` when there are none."""
    return ", ".join(str(value) for value in values) or "none"

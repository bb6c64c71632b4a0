"""What is predicted about a plan, term by term."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from costmodel.specs.memory_limit import MemoryLimit
from hardware_profiles.spec import Spec

Evidence = Literal["fitted", "validated", "formula"]
Phase = Literal["init", "forward_backward", "optimizer"]


class Interval(Spec):
    """A value with the bounds of its ``level`` prediction interval."""

    value: NonNegativeFloat
    low: NonNegativeFloat
    high: NonNegativeFloat
    level: float = Field(default=0.8, gt=0, lt=1)


class Term(Spec):
    """One part of the step time; exposed seconds lie on the critical path and sum to the step time."""

    name: str
    exposed_seconds: NonNegativeFloat
    hidden_seconds: NonNegativeFloat
    evidence: Evidence
    formula: str


class MemoryTerm(Spec):
    """Bytes of one kind held on one device of a pipeline rank during one phase."""

    name: str
    bytes: NonNegativeInt
    phase: Phase


class StageMemory(Spec):
    """Memory of the fullest device of one pipeline rank.

    ``pooled_bytes``: what the allocator reserves for other streams beside the tensors of ``peak_bytes``.
    """

    rank: NonNegativeInt
    terms: tuple[MemoryTerm, ...]
    peak_bytes: NonNegativeInt
    peak_phase: Phase
    pooled_bytes: NonNegativeInt = 0


class PeakMemory(Spec):
    """The fullest device.

    ``allocated``: tensors; ``reserved``: with the allocator's waste; ``device``: with contexts and communicators too.
    """

    allocated: NonNegativeInt
    reserved: NonNegativeInt
    device: NonNegativeInt


class Communication(Spec):
    """Traffic of one device in one step.

    ``axis``: of the mesh, or ``world`` where devices differ along several. ``bytes_per_rank`` is what it sends under the
    named algorithm, all ``count`` calls together. ``group_size``: devices that take part in one call (of a ``send``: that
    the axis has). ``link``: the slowest level between them; empty where nobody looked.
    """

    axis: str
    op: str
    count: NonNegativeInt
    bytes_per_rank: NonNegativeInt
    group_size: PositiveInt | None = None
    link: str = ""
    algorithm: str = "ring"


class RankCommunication(Spec):
    """Traffic of one device of a pipeline rank in one step."""

    rank: NonNegativeInt
    entries: tuple[Communication, ...]


class FlopCount(Spec):
    """FLOP of one whole step on all devices. ``model`` excludes recomputation and counts causal attention at half."""

    model: NonNegativeFloat
    hardware: NonNegativeFloat


class Estimate(Spec):
    """The prediction for one complete plan.

    ``fits``: the fullest device stays within the device's memory, or within ``memory_limit`` where one is stated.
    ``memory_ignored`` marks an estimate made with ``--ignore-memory`` of a plan that does not fit. ``communication`` is
    the traffic of the pipeline rank whose computation lasts longest, ``rank_communication`` that of every pipeline rank.
    """

    step_time_seconds: Interval
    tokens_per_second: NonNegativeFloat
    tokens_per_second_per_device: NonNegativeFloat
    model_flops_utilization: NonNegativeFloat
    flops: FlopCount
    terms: tuple[Term, ...]
    memory: tuple[StageMemory, ...]
    peak_memory_bytes: PeakMemory
    peak_phase: Phase
    memory_capacity_bytes: NonNegativeInt
    memory_limit: MemoryLimit | None = None
    fits: bool
    memory_ignored: bool = False
    host_memory_bytes: NonNegativeInt
    nvme_bytes: NonNegativeInt = 0
    communication: tuple[Communication, ...]
    rank_communication: tuple[RankCommunication, ...] = ()
    bound_by: str
    notes: tuple[str, ...] = ()

"""What was measured, and the comparison with what was predicted."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from costmodel.specs.estimate import Communication, Evidence, MemoryTerm, Phase
from hardware_profiles.spec import Spec

Instant = Literal["after_init", "before_reduction", "after_step"]


class RankMemory(Spec):
    """Storage bytes of the tensors of one kind on one global rank at one instant (see docs/architecture.md)."""

    rank: NonNegativeInt
    instant: Instant
    parameters: NonNegativeInt
    gradients: NonNegativeInt
    optimizer_state: NonNegativeInt


class RankPeak(Spec):
    """Peak bytes of one global rank: tracked tensor storages; the process's resident set apart."""

    rank: NonNegativeInt
    tensor_bytes: NonNegativeInt
    resident_bytes: NonNegativeInt | None = None


class PipelineRankRun(Spec):
    """One step of the fullest device of a pipeline rank, from a dry run.

    ``terms``: tensor bytes alive at the peak, by kind. ``parameters`` to ``optimizer_state``: storage bytes right after the
    optimizer's step. ``flops``: of matrix products and attention that this device executes.
    """

    rank: NonNegativeInt
    peak_bytes: NonNegativeInt
    peak_phase: Phase
    terms: tuple[MemoryTerm, ...]
    parameters: NonNegativeInt
    gradients: NonNegativeInt
    optimizer_state: NonNegativeInt
    flops: NonNegativeFloat
    communication: tuple[Communication, ...]


class Observation(Spec):
    """A measured or dry run; every field but the source is optional. ``flops`` and ``pipeline_ranks`` are of one step."""

    source: str
    plan_hash: str | None = None
    world_size: NonNegativeInt | None = None
    step_time_seconds: NonNegativeFloat | None = None
    step_times_seconds: tuple[NonNegativeFloat, ...] = ()
    tokens_per_second: NonNegativeFloat | None = None
    losses: tuple[float, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    peaks: tuple[RankPeak, ...] = ()
    communication: tuple[Communication, ...] = ()
    flops: NonNegativeFloat | None = None
    pipeline_ranks: tuple[PipelineRankRun, ...] = ()
    notes: tuple[str, ...] = ()


class FieldComparison(Spec):
    """One predicted number beside the measured one; relative_error = (predicted - observed) / observed."""

    name: str
    predicted: float
    observed: float
    relative_error: float | None
    tolerance: float
    passed: bool
    evidence: Evidence | None = None


class Comparison(Spec):
    """All fields that both an Estimate and an Observation carry."""

    source: str
    fields: tuple[FieldComparison, ...]
    passed: bool

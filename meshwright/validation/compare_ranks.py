"""A dry run's figures beside the estimate's, pipeline rank by pipeline rank.

Peak memory and FLOP have tolerances. State and communication have none: the estimate counts them, so they are equal to the
byte or one side is wrong. What an estimate does not carry (one made before it told every rank's traffic) is compared as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from costmodel.specs import Communication, Estimate, FieldComparison, Observation, PipelineRankRun, StageMemory

Key = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Largest relative errors that pass."""

    memory: float = 0.03
    flops: float = 0.005


def compare_ranks(estimate: Estimate, observation: Observation, tolerances: Tolerances) -> list[FieldComparison]:
    """Fields of every pipeline rank of a dry run and its FLOP; none for other observations."""
    if not observation.pipeline_ranks:
        return []
    predicted = {stage.rank: stage for stage in estimate.memory}
    sent = {rank.rank: rank.entries for rank in estimate.rank_communication}
    fields: list[FieldComparison] = []
    for rank in observation.pipeline_ranks:
        if rank.rank in predicted:
            fields += _memory(predicted[rank.rank], rank, tolerances)
        fields += _communication(f"pipeline_rank[{rank.rank}]", sent.get(rank.rank, ()), rank.communication)
    if observation.flops is not None:
        fields.append(_field("flops.hardware", estimate.flops.hardware, observation.flops, tolerances.flops))
    return fields


def _memory(predicted: StageMemory, observed: PipelineRankRun, tolerances: Tolerances) -> Iterator[FieldComparison]:
    name = f"pipeline_rank[{observed.rank}]"
    yield _field(f"{name}.peak_bytes", predicted.peak_bytes, observed.peak_bytes, tolerances.memory)
    state = {term.name: term.bytes for term in predicted.terms if term.phase == "optimizer"}
    for kind in ("parameters", "gradients", "optimizer_state"):
        yield _field(f"{name}.{kind}_bytes", state.get(kind, 0), getattr(observed, kind), 0.0)


def _communication(
    name: str, predicted: Iterable[Communication], observed: Iterable[Communication]
) -> Iterator[FieldComparison]:
    ours, theirs = _by_kind(predicted), _by_kind(observed)
    for key in sorted({*ours, *theirs}, key=str):
        axis, op, size = key
        place = f"{name}.{axis}.{op}[{size}]"
        yield _field(f"{place}.count", ours.get(key, (0, 0))[0], theirs.get(key, (0, 0))[0], 0.0)
        yield _field(f"{place}.bytes", ours.get(key, (0, 0))[1], theirs.get(key, (0, 0))[1], 0.0)


def _by_kind(entries: Iterable[Communication]) -> dict[Key, tuple[int, int]]:
    """Calls and bytes of every kind of traffic, whatever links it takes."""
    sums: dict[Key, tuple[int, int]] = {}
    for entry in entries:
        key = (entry.axis, entry.op, entry.group_size)
        count, sent = sums.get(key, (0, 0))
        sums[key] = (count + entry.count, sent + entry.bytes_per_rank)
    return sums


def _field(name: str, predicted: float, observed: float, tolerance: float) -> FieldComparison:
    error = (predicted - observed) / observed if observed else None
    return FieldComparison(
        name=name,
        predicted=predicted,
        observed=observed,
        relative_error=error,
        tolerance=tolerance,
        passed=predicted == observed if error is None else abs(error) <= tolerance,
        evidence="formula",
    )

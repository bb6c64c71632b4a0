"""Prediction beside measurement, number by number.

(1) relative_error = (predicted - observed) / observed
(2) a step time T in [low, high] passes when low <= observed <= high, that is when
    -(1 - T / high) <= relative_error <= T / low - 1
(3) tokens per second are tokens / step time, so their bounds are those of (2) with the fraction turned over
"""

from __future__ import annotations

from costmodel.specs import Comparison, Estimate, Evidence, FieldComparison, Observation
from meshwright.validation.compare_ranks import Tolerances, compare_ranks

MEMORY_TOLERANCE = 0.10
"""A planner that leaves less than a tenth of the device free cannot afford a larger error."""


def compare(estimate: Estimate, observation: Observation, tolerances: Tolerances | None = None) -> Comparison:
    """Compare what both carry: step time, tokens per second, and the peak of tensor bytes on the fullest device.

    The measured peak is the largest of all ranks, beside the estimate's allocated bytes. Of a dry run: memory, FLOP and
    communication of every pipeline rank, within ``tolerances`` (compare_ranks.py).

    Returns:
        One field per number; ``passed`` when there is at least one and all are within their tolerance. A field's
        tolerance is the one of the side on which the prediction missed.
    """
    fields = [
        *_speed(estimate, observation),
        *_memory(estimate, observation),
        *compare_ranks(estimate, observation, tolerances or Tolerances()),
    ]
    return Comparison(
        source=observation.source, fields=tuple(fields), passed=bool(fields) and all(field.passed for field in fields)
    )


def _speed(estimate: Estimate, observation: Observation) -> list[FieldComparison]:
    """Equations (2) and (3)."""
    fields = []
    interval, evidence = estimate.step_time_seconds, _weakest(estimate)
    if observation.step_time_seconds is not None:
        fields.append(
            _field(
                "step_time_seconds",
                predicted=interval.value,
                observed=observation.step_time_seconds,
                above=_excess(interval.value, interval.low),
                below=1 - _ratio(interval.value, interval.high),
                evidence=evidence,
            )
        )
    if observation.tokens_per_second is not None:
        fields.append(
            _field(
                "tokens_per_second",
                predicted=estimate.tokens_per_second,
                observed=observation.tokens_per_second,
                above=_excess(interval.high, interval.value),
                below=1 - _ratio(interval.low, interval.value),
                evidence=evidence,
            )
        )
    return fields


def _memory(estimate: Estimate, observation: Observation) -> list[FieldComparison]:
    if not observation.peaks:
        return []
    return [
        _field(
            "peak_memory_bytes.allocated",
            predicted=estimate.peak_memory_bytes.allocated,
            observed=max(peak.tensor_bytes for peak in observation.peaks),
            above=MEMORY_TOLERANCE,
            below=MEMORY_TOLERANCE,
            evidence="formula",
        )
    ]


def _field(
    name: str, *, predicted: float, observed: float, above: float, below: float, evidence: Evidence
) -> FieldComparison:
    """Equation (1); ``above`` is allowed where the prediction is the larger one, ``below`` where it is the smaller."""
    error = (predicted - observed) / observed if observed else None
    tolerance = above if predicted > observed else below
    return FieldComparison(
        name=name,
        predicted=predicted,
        observed=observed,
        relative_error=error,
        tolerance=tolerance,
        passed=predicted == observed if error is None else abs(error) <= tolerance,
        evidence=evidence,
    )


def _weakest(estimate: Estimate) -> Evidence:
    """A sum is no better founded than its weakest term."""
    order: tuple[Evidence, ...] = ("validated", "fitted", "formula")
    return max((term.evidence for term in estimate.terms), key=order.index, default="formula")


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def _excess(larger: float, smaller: float) -> float:
    return larger / smaller - 1 if smaller else 0.0

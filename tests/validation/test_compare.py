"""Prediction beside measurement, by hand."""

from dataclasses import dataclass, replace

import pytest

from costmodel.specs import Estimate, Evidence, FlopCount, Interval, Observation, PeakMemory, RankPeak, Term
from meshwright.validation.compare import compare


@dataclass(frozen=True)
class Predicted:
    """A step of 2 s, between 1.6 and 2.5, of 8000 tokens."""

    value: float = 2.0
    low: float = 1.6
    high: float = 2.5
    evidence: tuple[Evidence, ...] = ("fitted", "validated")

    def estimate(self) -> Estimate:
        terms = tuple(
            Term(name=f"term {i}", exposed_seconds=1, hidden_seconds=0, evidence=evidence, formula="")
            for i, evidence in enumerate(self.evidence)
        )
        return Estimate(
            step_time_seconds=Interval(value=self.value, low=self.low, high=self.high),
            tokens_per_second=8000 / self.value,
            tokens_per_second_per_device=2000 / self.value,
            model_flops_utilization=0.5,
            flops=FlopCount(model=1, hardware=1),
            terms=terms,
            memory=(),
            peak_memory_bytes=PeakMemory(allocated=1000, reserved=1100, device=1200),
            peak_phase="forward_backward",
            memory_capacity_bytes=2000,
            fits=True,
            host_memory_bytes=0,
            communication=(),
            bound_by="compute",
        )


def observed(seconds: float) -> Observation:
    return Observation(source="test", step_time_seconds=seconds, tokens_per_second=8000 / seconds)


def test_the_relative_error_is_of_the_observation() -> None:
    step, speed = compare(Predicted().estimate(), observed(1.8)).fields
    assert (step.name, step.predicted, step.observed) == ("step_time_seconds", 2.0, 1.8)
    assert step.relative_error == pytest.approx(0.2 / 1.8)
    assert speed.relative_error == pytest.approx(1.8 / 2.0 - 1)


@pytest.mark.parametrize(
    ("seconds", "passed", "tolerance"),
    [
        (1.601, True, 2.0 / 1.6 - 1),
        (1.599, False, 2.0 / 1.6 - 1),
        (2.499, True, 1 - 2.0 / 2.5),
        (2.501, False, 1 - 2.0 / 2.5),
    ],
)
def test_the_interval_is_the_tolerance(seconds: float, passed: bool, tolerance: float) -> None:
    comparison = compare(Predicted().estimate(), observed(seconds))
    step, speed = comparison.fields
    assert (step.passed, speed.passed, comparison.passed) == (passed, passed, passed)
    assert step.tolerance == pytest.approx(tolerance)
    assert step.relative_error is not None
    assert (abs(step.relative_error) <= step.tolerance) == passed


def test_the_fullest_rank_is_compared_within_a_tenth() -> None:
    def memory(*peaks: int) -> tuple[float, bool]:
        ranks = tuple(RankPeak(rank=rank, tensor_bytes=peak) for rank, peak in enumerate(peaks))
        (field,) = compare(Predicted().estimate(), Observation(source="test", peaks=ranks)).fields
        assert field.name == "peak_memory_bytes.allocated"
        return field.observed, field.passed

    assert memory(100, 1000, 900) == (1000, True)
    assert memory(910) == (910, True)
    assert memory(909) == (909, False)
    assert memory(1111) == (1111, True)
    assert memory(1112) == (1112, False)


def test_a_comparison_of_nothing_does_not_pass() -> None:
    comparison = compare(Predicted().estimate(), Observation(source="test", losses=(1.0,)))
    assert comparison.fields == ()
    assert not comparison.passed


def test_a_sum_is_as_well_founded_as_its_weakest_term() -> None:
    def evidence(*terms: Evidence) -> Evidence | None:
        return compare(replace(Predicted(), evidence=terms).estimate(), observed(2.0)).fields[0].evidence

    assert evidence("validated", "fitted") == "fitted"
    assert evidence("validated", "formula", "fitted") == "formula"
    assert evidence("validated") == "validated"
    assert evidence() == "formula"

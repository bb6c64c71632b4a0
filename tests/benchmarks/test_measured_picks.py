"""The choice among measured layouts, on groups whose answer is seen at a glance."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measured_picks import RUNS, judged, picks
from meshwright import replay
from meshwright.validation.results import Measured, ReplayRow

TEMPLATE = next(row for row in replay(RUNS / "nanotron_bench.jsonl").rows if row.judged and row.predicted is not None)


def row(predicted: float, measured: float | None, *, memory: int = 50, **changes: Any) -> ReplayRow:
    assert TEMPLATE.predicted is not None
    told = Measured(
        step_time_seconds=measured,
        tokens_per_second_per_device=None,
        peak_memory_bytes=None,
        reserved_memory_bytes=None,
        device_memory_bytes=None,
        oom=measured is None,
    )
    return TEMPLATE.model_copy(
        update={
            "dataset": "d",
            "rank_group": "g",
            "predicted": TEMPLATE.predicted.model_copy(update={"step_time_seconds": predicted}),
            "measured": told,
            "device_peak_bytes": memory,
            "device_capacity_bytes": 100,
            **changes,
        }
    )


def test_the_pick_is_the_fastest_predicted_and_costs_what_it_was_measured_slower() -> None:
    (pick,) = picks([row(1.0, 2.2), row(1.5, 2.0), row(1.8, 3.0)])
    assert pick.loss == pytest.approx(0.1)
    assert judged("d", [pick]).endswith("NO")


def test_repeats_of_a_layout_count_with_their_median() -> None:
    (pick,) = picks([row(1.0, 2.0), row(1.0, 9.0), row(1.0, 2.2), row(1.5, 2.2)])
    assert (pick.layouts, pick.loss) == (2, 0.0)


def test_what_is_predicted_not_to_fit_is_not_picked() -> None:
    rows = [row(1.0, 2.0, memory=101), row(1.5, 2.5)]
    assert [pick.loss for pick in picks(rows)] == [pytest.approx(0.25)]
    rows = [row(1.0, 2.0, memory=95), row(1.5, 2.5)]
    assert [pick.loss for pick in picks(rows)] == [0.0]
    assert [pick.loss for pick in picks(rows, share=0.92)] == [pytest.approx(0.25)]


def test_a_pick_that_ran_out_of_memory_is_no_answer() -> None:
    (pick,) = picks([row(1.0, None), row(1.5, 2.0)])
    assert pick.out_of_memory
    assert pick.loss is None


def test_groups_without_a_choice_or_a_run_are_left_out() -> None:
    assert picks([row(1.0, 2.0)]) == []
    assert picks([row(1.0, None), row(1.5, None)]) == []
    assert picks([row(1.0, 2.0, judged=False), row(1.5, 2.0)]) == []

"""The figures of a replay against values worked out by hand."""

from typing import Any

import pytest

from meshwright.validation.goals import worst_coverage
from meshwright.validation.metrics import Outcome, errors_of, macro_errors, pair_orders, rank_groups, regret


def outcome(predicted: float, measured: float | None, **changes: Any) -> Outcome:
    content: dict[str, Any] = {
        "dataset": "a", "runtime": "megatron", "group": "g", "predicted_seconds": predicted, "low_seconds": predicted / 1.1,
        "high_seconds": predicted * 1.1, "measured_seconds": measured, "memory": None, "fits": True, "oom": False,
    }  # fmt: skip
    return Outcome(**{**content, **changes})


def test_errors_of_step_times() -> None:
    errors = errors_of([outcome(1.1, 1.0), outcome(0.7, 1.0), outcome(2.1, 2.0), outcome(1.0, None)])
    # signed +0.10, -0.30, +0.05
    assert errors.rows == 3
    assert errors.median_absolute_error == pytest.approx(0.10)
    assert errors.mean_absolute_error == pytest.approx(0.15)
    assert errors.bias == pytest.approx(0.05)
    assert errors.within_20_percent == pytest.approx(2 / 3)
    assert errors.interval_coverage == pytest.approx(2 / 3)  # 1.0 is the lower end of the first
    assert errors.interval_mean_width == pytest.approx(1.1 - 1 / 1.1)


def test_equal_predictions_count_half_and_equal_measurements_not_at_all() -> None:
    # pairs: (1,2) right, (1,3) tie in prediction, (1,4) tie in measurement, (2,3) wrong, (2,4) right, (3,4) right
    group = [(1.0, 1.0), (2.0, 2.0), (1.0, 3.0), (0.5, 1.0)]
    assert pair_orders(group) == [1.0, 0.5, 0.0, 1.0, 1.0]


def test_regret_is_what_the_best_predicted_lose() -> None:
    group = [(1.0, 12.0), (2.0, 11.0), (3.0, 10.5), (4.0, 10.0)]
    assert regret(group, 1) == pytest.approx(0.2)
    assert regret(group, 3) == pytest.approx(0.05)
    assert regret(group, 4) == 0.0
    assert regret([(1.0, 10.0), (1.0, 12.0)], 1) == pytest.approx(
        0.2
    )  # equal predictions: the worse one is tried first


def test_pairs_count_once_or_every_group_does() -> None:
    rows = [outcome(k, k, group="four") for k in (1, 2, 3, 4)]  # 6 pairs, all right
    rows += [outcome(1, 2, group="two"), outcome(2, 1, group="two")]  # 1 pair, wrong
    rows += [outcome(1, 5, group="same"), outcome(2, 5, group="same")]  # no pair: equal measurements
    errors = errors_of(rows)
    assert (errors.groups, errors.pairs) == (3, 7)
    assert errors.pair_order == pytest.approx(6 / 7)
    assert errors.pair_order_of_groups == pytest.approx(1 / 2)
    assert errors.regret_top1 == pytest.approx((0 + 1 + 0) / 3)
    other = errors_of([outcome(1, 2, dataset="b"), outcome(1, 3, dataset="b")])
    assert macro_errors([errors, other]).pair_order == pytest.approx((6 / 7 + 1 / 2) / 2)


def test_an_interval_covers_its_ends() -> None:
    rows = [outcome(1.0, value, low_seconds=0.8, high_seconds=1.3) for value in (0.79, 0.8, 1.3, 1.31)]
    errors = errors_of(rows)
    assert errors.interval_coverage == 0.5
    assert errors.interval_mean_width == pytest.approx(0.5)


def test_the_least_coverage_is_of_a_dataset_with_ten_rows() -> None:
    parts = {
        "few": errors_of([outcome(1, 9)] * 9),
        "many": errors_of([outcome(1, 1)] * 6 + [outcome(1, 9)] * 4),
        "all": errors_of([outcome(1, 1)] * 20),
    }
    assert worst_coverage(parts) == ("many", 0.6)
    assert worst_coverage({"few": parts["few"]}) is None


def test_groups_are_of_one_dataset_and_hold_two_timed_runs() -> None:
    rows = [outcome(1, 1), outcome(2, 2), outcome(3, 3, dataset="b"), outcome(4, None), outcome(5, 5, group=None)]
    assert rank_groups(rows) == [[(1, 1), (2, 2)]]


def test_memory_and_verdicts() -> None:
    rows = [
        outcome(1, 1, memory=(110.0, 100.0)),
        outcome(1, None, fits=False, oom=True),
        outcome(1, None, fits=True, oom=True),
        outcome(1, 1, fits=False, memory=(80.0, 100.0)),
        outcome(1, 1, group="only ran", fits=False),  # a group of one kind is not judged
        outcome(1, None, oom=None, fits=False),  # failed for an unknown reason
    ]
    errors = errors_of(rows)
    assert (errors.memory_rows, errors.memory_mean_absolute_error) == (2, pytest.approx(0.15))
    assert (errors.oom_rows, errors.oom_recall, errors.fits_rows, errors.fits_recall) == (2, 0.5, 2, 0.5)


def test_every_dataset_counts_once_in_the_macro_average() -> None:
    parts = [errors_of([outcome(1.1, 1.0)] * 9), errors_of([outcome(1.3, 1.0)]), errors_of([outcome(1, None)])]
    macro = macro_errors(parts)
    assert macro.datasets == 3
    assert macro.median_absolute_error == pytest.approx(0.2)
    assert macro.memory_mean_absolute_error is None


def test_nothing_measured_is_none_and_not_zero() -> None:
    errors = errors_of([])
    assert (errors.rows, errors.median_absolute_error, errors.pair_order, errors.oom_recall) == (0, None, None, None)

"""Runs that repeat one layout are one choice."""

from meshwright.validation.metrics import merge_repeats, pair_orders, regret

GROUP = [(10.0, 125.0), (10.0, 129.0), (10.0, 225.0), (12.0, 140.0)]  # predicted, measured


def test_repeats_are_merged_into_their_median() -> None:
    assert merge_repeats(GROUP) == [(10.0, 129.0), (12.0, 140.0)]


def test_no_one_can_lose_by_choosing_between_repeats() -> None:
    assert regret(GROUP, 1) == 225.0 / 125.0 - 1  # equal predictions in the worst order
    assert regret(merge_repeats(GROUP), 1) == 0.0
    assert pair_orders(merge_repeats(GROUP)) == [1.0]

"""The benchmark of the executor's overhead: both sides train the same. How long they take is not asked here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.executor import ROWS, WARM_UP_PAIRS, main, summarise

pytestmark = pytest.mark.distributed


FAST = ("fsdp2", "pp")


@pytest.mark.parametrize("name", [row if row in FAST else pytest.param(row, marks=pytest.mark.slow) for row in ROWS])
def test_both_sides_train_the_same(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.json"
    main(["--pairs", "2", "--layers", "2", "--only", name, "--output", str(output)])
    (row,) = json.loads(output.read_text())
    assert (row["name"], row["pairs"]) == (name, 2)
    assert row["loss_difference"] < 1e-4
    assert row["first_loss"] - row["last_loss"] > 1e-3, "a model that learns nothing cannot differ"
    assert name in capsys.readouterr().out


def test_ratios_are_medians_of_pairs_after_the_warm_up() -> None:
    warm = [[9.0, 1.0]] * WARM_UP_PAIRS
    pairs = [[1.0, 1.0], [1.2, 1.0], [4.0, 1.0]]
    row = summarise("tp", {"seconds": warm + pairs, "cpu": warm + [[3.0, 2.0]] * 3, "losses": [[8.0, 8.5], [7.0, 7.0]]})
    assert row.pairs == 3
    assert (row.ratio_low, row.ratio, row.ratio_high) == pytest.approx((1.1, 1.2, 2.6))
    assert row.cpu_ratio == 1.5
    assert (row.executor_seconds, row.by_hand_seconds) == (1.2, 1.0)
    assert (row.loss_difference, row.first_loss, row.last_loss) == (0.5, 8.0, 7.0)

"""Published tables among the rows of a replay: found by name, compared by hand."""

from pathlib import Path
from typing import Any

import pytest
from replay_rows import vary, write

from meshwright import replay
from meshwright.validation import named_tables
from meshwright.validation.named_tables import Versus
from meshwright.validation.results import ReplayRow


def rows_of(tmp_path: Path, *rows: dict[str, Any]) -> tuple[ReplayRow, ...]:
    return replay(write(tmp_path / "runs.jsonl", *rows)).rows


def test_the_ratio_of_two_systems_and_its_error() -> None:
    pair = Versus(task="x", predicted=(10.0, 30.0), measured=(8.0, 20.0))
    assert pair.errors == (pytest.approx(0.25), pytest.approx(0.5))
    assert pair.ratio_error == pytest.approx(3.0 / 2.5 - 1)


def test_who_is_faster_is_told_right_wrong_or_neither() -> None:
    right = Versus(task="a", predicted=(1.0, 2.0), measured=(10.0, 11.0))
    wrong = Versus(task="b", predicted=(2.0, 1.0), measured=(10.0, 11.0))
    tie = Versus(task="c", predicted=(1.0, 1.0), measured=(10.0, 11.0))
    even = Versus(task="d", predicted=(1.0, 2.0), measured=(10.0, 10.0))
    assert named_tables.framework_order([right, wrong, tie, even]) == pytest.approx(0.5)
    assert named_tables.framework_order([right, tie]) == pytest.approx(0.75)
    assert named_tables.framework_order([even]) is None


def test_table_2_pairs_runs_on_the_same_devices(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        vary(id="sc21-t2-PTD-P-174.6B-384gpu", measured={"step_time_s": 5.0}),
        vary(id="sc21-t2-ZeRO-3-174.6B-768gpu", measured={"step_time_s": 7.0}),
        vary(id="sc21-t2-ZeRO-3-174.6B-384gpu", measured={"step_time_s": 6.0}),
        vary(id="sc21-t2-PTD-P-174.6B-1536gpu", measured={"step_time_s": 6.0}),
        vary(id="sc21-t2-ZeRO-3-174.6B-1536gpu", measured={"step_time_s": 6.0}, doubtful=True),
    )
    (pair,) = named_tables.ptd_and_zero_3(rows)
    assert pair.measured == (5.0, 6.0)
    assert pair.task == "GPT 174.6B on 384 A100"


def test_frameworks_meet_in_layouts_that_both_ran(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        vary(id="dlperf-oneflow-DP_8", measured={"step_time_s": 4.0}),
        vary(id="dlperf-oneflow-MP_8", measured={"step_time_s": 9.0}),
        vary(id="dlperf-megatron-DP_8", measured={"step_time_s": 5.0}),
    )
    (pair,) = named_tables.oneflow_and_megatron(rows)
    assert (pair.task, pair.measured) == ("DP_8", (4.0, 5.0))


def test_table_5_is_all_eight_runs_or_nothing(tmp_path: Path) -> None:
    names = [f"korthikanti-{size}-{kind}" for size in ("22B", "175B", "530B", "1T") for kind in ("full", "selective")]
    rows = rows_of(tmp_path, *(vary(id=name) for name in [*names, "korthikanti-530B-2240gpu"]))
    assert [row.id for row in named_tables.selective_recomputation_rows(rows)] == names
    assert named_tables.selective_recomputation_rows(rows[1:]) == ()

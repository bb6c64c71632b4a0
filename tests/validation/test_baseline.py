"""Folklore's prediction against values worked out by hand."""

from pathlib import Path

import pytest
from replay_rows import vary, write

from meshwright import replay
from meshwright.validation.baseline import factors_by_device, left_out_outcomes, naive_outcomes
from meshwright.validation.metrics import errors_of


def test_six_flops_per_parameter_and_token_at_40_percent(tmp_path: Path) -> None:
    (row,) = replay(write(tmp_path / "runs.jsonl", vary())).rows
    # llama 7B: 32 layers of 4 x 4096^2 + 3 x 4096 x 11008 + 2 x 4096 parameters, two tables of 32,000 x 4096, a norm
    parameters = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 32000 * 4096 + 4096
    assert parameters == 6_738_415_616
    tokens, flops = 64 * 4096, 0.40 * 16 * 312e12  # A100: 312 TFLOP/s in bf16, dense (NVIDIA's data sheet)
    assert row.naive_step_time_seconds == pytest.approx(6 * parameters * tokens / flops, rel=1e-3)


def test_the_layout_does_not_matter(tmp_path: Path) -> None:
    rows = [
        vary(runtime="torch"),
        vary(runtime="torch", parallel={"zero_stage": 3, "micro_batch": 4, "global_batch": 64, "recompute": "full"}),
    ]
    first, other = replay(write(tmp_path / "runs.jsonl", *rows)).rows
    assert first.predicted is not None
    assert other.predicted is not None
    assert first.predicted.step_time_seconds != other.predicted.step_time_seconds
    assert first.naive_step_time_seconds == other.naive_step_time_seconds


def test_one_factor_per_accelerator_is_the_median_ratio(tmp_path: Path) -> None:
    seconds = (10.0, 20.0, 60.0)
    rows = [vary(id=str(value), measured__step_time_s=value) for value in seconds]
    rows += [vary(id="doubtful", doubtful=True, measured__step_time_s=500.0), vary(id="none", measured={"oom": True})]
    found = replay(write(tmp_path / "runs.jsonl", *rows)).rows
    naive = found[0].naive_step_time_seconds
    assert naive is not None
    factors = factors_by_device(found)
    assert factors == {"A100-SXM-80GB": pytest.approx(20.0 / naive)}
    errors = errors_of(naive_outcomes(found, factors))
    # every run is then predicted at 20 s: +100%, 0, -67%
    assert errors.rows == 3
    assert errors.median_absolute_error == pytest.approx(2 / 3)
    assert errors.mean_absolute_error == pytest.approx((1 + 0 + 2 / 3) / 3)
    assert (errors.pair_order, errors.memory_rows, errors.oom_rows) == (0.5, 0, 0)  # one prediction for all: all tie


def test_a_left_out_dataset_has_the_factor_of_the_others(tmp_path: Path) -> None:
    rows = [vary(dataset="a", measured__step_time_s=10.0), vary(dataset="b", measured__step_time_s=20.0)]
    rows.append(vary(dataset="c", measured__step_time_s=5.0, hardware__gpu="H100-80GB"))
    found = replay(write(tmp_path / "runs.jsonl", *rows)).rows
    predicted = {each.dataset: each.predicted_seconds for each in left_out_outcomes(found)}
    assert predicted["a"] == pytest.approx(20.0)
    assert predicted["b"] == pytest.approx(10.0)
    assert predicted["c"] == found[2].naive_step_time_seconds  # no other dataset has an H100

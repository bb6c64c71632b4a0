"""Which combinations the parity matrix runs: every pair that is valid, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np
import pytest
from parity_axes import (
    AXES,
    DEVICES,
    FREE,
    NO_PIPELINE,
    STRUCTURE,
    Combination,
    kinds,
    name_of,
    plan_of,
    read_rows,
    structures,
    valid_structures,
    values,
)

from costmodel.runtimes.rules import check

Pair = tuple[tuple[str, str], tuple[str, str]]  # (axis, value or kind) twice

AGAIN = "run `python tests/executor/parity_covering.py` and look at what changes"
HPZ_TENSOR = ("runtime_hierarchical_partition_tensor_parallel",)
KEY_VALUE_HEADS = ("tensor_parallel_divides_num_key_value_heads",)
SCHEDULES = [value.name for value in values("schedule") if value.name != "none"]
SPLIT = ("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v")
# Pairs of values that no valid combination has, and the rules that refuse all of them.
NEVER: Mapping[tuple[str, str], tuple[str, ...]] = {
    **{
        (model, "tp4"): KEY_VALUE_HEADS
        for model in ("llama", "mistral-window", "qwen2-mixed", "qwen2", "gemma2", "phi3")
    },
    ("hpz", "tp2"): HPZ_TENSOR,
    ("hpz", "tp4"): HPZ_TENSOR,
    ("hpz", "sp"): (*HPZ_TENSOR, "sequence_parallel_needs_tensor_parallel"),
    ("hpz", "lp"): (*HPZ_TENSOR, "loss_parallel_needs_tensor_parallel"),
    ("hpz", "pp4"): (DEVICES,),
    **{(zero, schedule): ("split_backward_zero_stage",) for zero in ("zero3", "hpz") for schedule in SPLIT},
    ("tp1", "sp"): ("sequence_parallel_needs_tensor_parallel",),
    ("tp1", "lp"): ("loss_parallel_needs_tensor_parallel",),
    ("tp4", "pp4"): (DEVICES,),
    **{("pp1", schedule): ("schedule_matches_pipeline",) for schedule in SCHEDULES},
    **{(pipeline, "none"): ("schedule_matches_pipeline",) for pipeline in ("pp2", "pp4")},
    ("pp1", "uneven"): (NO_PIPELINE,),
    ("none", "uneven"): (NO_PIPELINE, "schedule_matches_pipeline"),
    **{("naive", count): ("naive_one_micro_batch",) for count in ("m3", "m6")},
    ("1f1b", "m1"): ("full_pipeline", "schedule_matches_pipeline"),
    # At least as many micro-batches as virtual stages: 4 with 2 ranks, 8 with 4.
    **{("dualpipe_v", count): ("full_pipeline", "schedule_matches_pipeline") for count in ("m1", "m3")},
    ("pp4", "dualpipe_v"): ("full_pipeline",),
}


def pairs_of(rows: Iterable[Combination], *, by_kind: bool) -> set[Pair]:
    """The pairs of values, or of kinds, that the rows have."""
    labels = {axis: kinds(axis) for axis in AXES}
    found = set()
    for row in rows:
        said = {axis: str(labels[axis][name]) if by_kind else name for axis, name in row.items()}
        found |= set(combinations(said.items(), 2))
    return found


def valid_pairs(*, by_kind: bool) -> set[Pair]:
    """All pairs that some valid combination has. Free axes go with everything."""
    names = {axis: [value.name for value in values(axis)] for axis in AXES}
    valid = {axis: column for axis, column in zip(STRUCTURE, valid_structures().T, strict=True)}
    labels = {axis: list(kinds(axis).values()) if by_kind else names[axis] for axis in AXES}
    found = set()
    for first, second in combinations(AXES, 2):
        numbers = {(one, two) for one in range(len(names[first])) for two in range(len(names[second]))}
        if second in valid:
            numbers = set(zip(valid[first].tolist(), valid[second].tolist(), strict=True))
        found |= {((first, str(labels[first][one])), (second, str(labels[second][two]))) for one, two in numbers}
    return found


def test_ci_has_every_valid_pair_of_kinds_and_every_value_in_24_rows() -> None:
    rows = list(read_rows("ci").values())
    assert len(rows) <= 24
    needed = valid_pairs(by_kind=True)
    assert len(needed) > 700
    assert needed == pairs_of(rows, by_kind=True), AGAIN
    for axis in AXES:
        assert {row[axis] for row in rows} == {value.name for value in values(axis)}, AGAIN


def test_all_runs_together_have_every_valid_pair_of_values_in_120_combinations_and_more() -> None:
    rows = {**read_rows("ci"), **read_rows("slow")}
    assert len(rows) == len(read_rows("ci")) + len(read_rows("slow")) >= 120
    needed = valid_pairs(by_kind=False)
    assert len(needed) > 1300
    assert needed == pairs_of(rows.values(), by_kind=False), AGAIN


def test_pairs_left_out_are_refused_by_rules() -> None:
    every, (rows, refused) = set(), structures()
    names = {axis: [value.name for value in values(axis)] for axis in STRUCTURE}
    for first, second in combinations(STRUCTURE, 2):
        every |= {((first, one), (second, two)) for one in names[first] for two in names[second]}
    missing = {(one, two): (first, second) for (first, one), (second, two) in every - valid_pairs(by_kind=False)}
    assert missing.keys() == NEVER.keys()
    columns = {axis: np.array(names[axis])[column] for axis, column in zip(STRUCTURE, rows.T, strict=True)}
    for (one, two), (first, second) in missing.items():
        chosen = (columns[first] == one) & (columns[second] == two)
        assert chosen.sum() > 10
        assert np.logical_or.reduce([refused[rule][chosen] for rule in NEVER[one, two]]).all(), (one, two)


@pytest.mark.parametrize("run", ["ci", "slow"])
def test_every_combination_is_a_valid_plan(run: str) -> None:
    for row in read_rows(run).values():
        plan = plan_of(row)
        assert check(plan) == []
        assert 2 <= plan.num_devices_used <= 8


def test_free_axes_are_tied_to_nothing() -> None:
    for row in read_rows("ci").values():
        for axis in FREE:
            for value in values(axis):
                changed = {**row, axis: value.name}
                assert check(plan_of(changed)) == [], name_of(changed)

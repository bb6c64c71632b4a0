"""Distances to the memory limit, against counts by hand."""

from pathlib import Path

from replay_rows import vary, write

from meshwright import replay
from meshwright.validation.memory_distance import EDGES, MemoryDistance, histogram, memory_distances


def run(distance: float, *, oom: bool = False) -> MemoryDistance:
    return MemoryDistance(id="x", dataset="a", distance=distance, oom=oom)


def test_a_run_at_the_limit_fits_and_one_above_does_not() -> None:
    bins = histogram([run(0.2), run(1.0), run(1.0 + 1e-9, oom=True), run(0.95), run(3.0, oom=True)], (0.95, 1.0, 1.05))
    assert [(each.low, each.high, each.ran, each.oom) for each in bins] == [
        (0.0, 0.95, 2, 0),
        (0.95, 1.0, 1, 0),
        (1.0, 1.05, 0, 1),
        (1.05, None, 0, 1),
    ]


def test_the_limit_is_an_end_of_a_bin_and_no_run_is_lost() -> None:
    assert 1.0 in EDGES
    assert list(EDGES) == sorted(EDGES)
    runs = [run(0.1 * k, oom=bool(k % 2)) for k in range(40)]
    assert sum(each.ran + each.oom for each in histogram(runs)) == 40


def test_distances_are_of_judged_runs_of_datasets_with_both_kinds(tmp_path: Path) -> None:
    rows = [
        vary(),
        vary(id="full", measured={"oom": True}, parallel__micro_batch=16),
        vary(id="unknown", measured={"oom": None}),
        vary(id="failed otherwise", measured={"oom": True, "error": "NCCL"}),
        vary(id="doubtful", measured={"oom": True}, doubtful=True),
        vary(id="checkpoints elsewhere", measured={"oom": True}, parallel__extra={"checkpoints_in_cpu": True}),
        vary(id="only ran", dataset="other"),
    ]
    answer = replay(write(tmp_path / "runs.jsonl", *rows))
    found = memory_distances(answer.rows)
    assert {name: [(each.id, each.oom) for each in runs] for name, runs in found.items()} == {
        "ours": [("run-1", False), ("full", True)]
    }
    for row, each in zip(answer.rows, found["ours"], strict=False):
        assert row.predicted is not None
        assert row.predicted.fits == (each.distance <= 1)
    smaller, larger = (each.distance for each in found["ours"])
    assert larger > smaller

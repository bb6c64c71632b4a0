"""`replay` from files to answer: statuses, bad lines, CSV, the command, and the published runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from replay_rows import vary, write

from costmodel.specs import InputError
from meshwright import replay
from meshwright.cli.app import main
from meshwright.validation import run_files
from meshwright.validation.results import Replay

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "benchmarks/data/published_runs").glob("*.jsonl"))
ROW_KEYS = {"id", "dataset", "status", "reason", "predicted", "measured"}
PREDICTED_KEYS = {
    "step_time_seconds", "step_time_low_seconds", "step_time_high_seconds", "tokens_per_second_per_device",
    "peak_memory_bytes", "reserved_memory_bytes", "fits",
}  # fmt: skip


@pytest.fixture(scope="module")
def published() -> Replay:
    return replay(PUBLISHED)


def test_a_run_is_predicted_beside_its_measurement(tmp_path: Path) -> None:
    answer = replay(write(tmp_path / "runs.jsonl", vary()))
    (row,) = answer.rows
    assert (row.id, row.dataset, row.runtime, row.where) == ("run-1", "ours", "megatron", "runs.jsonl:1")
    assert (row.status, row.reason, row.judged) == ("predicted", "", True)
    assert row.predicted is not None
    predicted = row.predicted
    assert predicted.step_time_low_seconds < predicted.step_time_seconds < predicted.step_time_high_seconds
    assert predicted.tokens_per_second_per_device == pytest.approx(64 * 4096 / predicted.step_time_seconds / 16)
    assert predicted.peak_memory_bytes < predicted.reserved_memory_bytes
    assert row.measured.tokens_per_second_per_device == pytest.approx(64 * 4096 / 10.0 / 16)
    error = abs(predicted.step_time_seconds / 10.0 - 1)
    assert answer.summary.pooled.median_absolute_error == pytest.approx(error)
    assert answer.summary.datasets["ours"] == answer.summary.runtimes["megatron"] == answer.summary.pooled


def test_bad_lines_are_told_by_line_and_the_rest_is_used(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mixed.jsonl",
        vary(),
        '{"id": "broken", ',
        "",
        "[1, 2]",
        vary(measured__step_time_s=0),
        vary(measured__step_time_s=-3.0),
        vary(measured__step_time_s=float("nan")),
        vary(measured__tokens_per_s_per_gpu=float("inf")),
        vary(hardware=...),
        vary(parallel__tp="two"),
        vary(id=""),
        vary(parallel__tp=0),
        vary(id="last", model__moe={"n_experts": 8}),
    )
    answer = replay([path])
    assert [row.id for row in answer.rows] == ["run-1", "last"]
    assert [row.reason for row in answer.rows] == ["", "mixture of experts"]
    reasons = {bad.where: bad.reason for bad in answer.summary.bad_lines}
    assert list(reasons) == [f"mixed.jsonl:{number}" for number in (2, 4, 5, 6, 7, 8, 9, 10, 11, 12)]
    assert "not JSON" in reasons["mixed.jsonl:2"]
    assert "found a list; needed a JSON object" in reasons["mixed.jsonl:4"]
    assert "measured.step_time_s: found 0; needed a number of at least" in reasons["mixed.jsonl:5"]
    assert "needed a finite number" in reasons["mixed.jsonl:7"]
    assert "hardware" in reasons["mixed.jsonl:9"]
    assert "parallel.tp: found 'two'; needed a whole number" in reasons["mixed.jsonl:10"]


def test_what_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InputError, match="not one line in"):  # instead of waiting for somebody to write
        replay(tmp_path / "pipe.jsonl")
    monkeypatch.setattr(run_files, "MAX_RUNS_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes"):
        replay(write(tmp_path / "long.jsonl", vary()))


def test_bytes_that_are_no_text_are_one_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(json.dumps(vary()).encode() + b"\n\xff\xfe{}\n")
    assert [bad.reason for bad in replay(path).summary.bad_lines] == ["the line is not UTF-8 text"]


@pytest.mark.parametrize("content", [[], ["{"], [vary(hardware__gpu="TPU v4")], [vary(hardware__gpu="TPU v4"), "x"]])
def test_nothing_usable_is_bad_input(tmp_path: Path, content: list[str]) -> None:
    said = "no line is a run on a known accelerator" if content else "no runs to replay: not one line in"
    with pytest.raises(InputError, match=said):
        replay(write(tmp_path / "runs.jsonl", *content))


def test_a_missing_file_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"cannot read the runs file no\.jsonl"):
        replay("no.jsonl")


def test_doubtful_and_incomplete_rows_are_predicted_but_not_judged(tmp_path: Path) -> None:
    answer = replay(write(tmp_path / "r.jsonl", vary(doubtful=True), vary(config_complete=False), vary()))
    assert [row.judged for row in answer.rows] == [False, False, True]
    assert (answer.summary.predicted, answer.summary.pooled.rows, answer.summary.coverage) == (3, 1, 1.0)


def test_a_csv_file_says_the_same(tmp_path: Path) -> None:
    columns, cells = [], []
    for name, value in vary().items():
        for key, inner in value.items() if isinstance(value, dict) else [("", value)]:
            columns.append(f"{name}.{key}" if key else name)
            cells.append("" if inner is None else str(inner))
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(columns)}\n{','.join(cells)}\n{','.join(['x'] * len(columns))}\n")
    answer = replay(path)
    (row,) = answer.rows
    (same,) = replay(write(tmp_path / "runs.jsonl", vary())).rows
    assert row.predicted == same.predicted
    assert row.measured == same.measured
    assert row.where == "runs.csv:2"
    assert [bad.where for bad in answer.summary.bad_lines] == ["runs.csv:3"]


def test_amounts_beyond_any_machine_are_bad_lines(tmp_path: Path) -> None:
    rows = [
        vary(),
        vary(measured__step_time_s=1e-300),
        vary(parallel__global_batch=10**9),
        vary(model__n_layers=10**400),
    ]
    answer = replay(write(tmp_path / "runs.jsonl", *rows))
    assert [bad.where for bad in answer.summary.bad_lines] == [f"runs.jsonl:{number}" for number in (2, 3, 4)]


def test_a_csv_file_without_columns_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="found the columns a, b; needed 'id'"):
        replay(path)


def test_the_command_prints_json_alone_and_warnings_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "runs.jsonl", vary(), "{", vary(id="b", hardware__gpu="TPU v4"))
    assert main(["replay", str(path), "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert set(document) == {"summary", "rows"}
    assert all(set(row) >= ROW_KEYS for row in document["rows"])
    assert set(document["rows"][0]["predicted"]) == PREDICTED_KEYS
    assert document["rows"][1]["status"] == "unsupported"
    assert document["rows"][1]["predicted"] is None
    assert "runs.jsonl:2: the line is not JSON" in shown.err
    assert Replay.model_validate(document).summary.reasons[0].first == "runs.jsonl:3"


def test_the_command_prints_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(write(tmp_path / "runs.jsonl", vary(), vary(parallel__offload="cpu")))]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 runs predicted" in text
    assert "Step time by framework" in text
    assert "1: offload 'cpu' (runs.jsonl:2)" in text


def test_the_command_ends_with_2_when_nothing_is_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(write(tmp_path / "runs.jsonl", "{"))]) == 2
    assert capsys.readouterr().err.startswith("error: no line is a run")


def test_replaying_loads_no_torch_and_no_solver(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", vary())
    code = f"import sys; from meshwright import replay; replay({str(path)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(done.stdout.split()) & {"torch", "transformers", "pulp", "highspy", "typer"}


def test_every_published_row_is_predicted_or_says_why_not(published: Replay) -> None:
    assert len(published.rows) == 1207
    assert published.summary.bad_lines == ()
    for row in published.rows:
        assert (row.status == "predicted") == (row.predicted is not None) == (row.reason == ""), row.id
    assert sum(reason.rows for reason in published.summary.reasons) == published.summary.unsupported


def test_published_megatron_rows_are_predicted(published: Replay) -> None:
    # arXiv 2205.05198, table 5: eight runs, every one within 12%.
    names = {f"korthikanti-{size}-{kind}" for size in ("22B", "175B", "530B", "1T") for kind in ("full", "selective")}
    rows = [row for row in published.rows if row.id in names]
    assert len(rows) == 8
    for row in rows:
        assert row.predicted is not None
        assert row.measured.step_time_seconds is not None
        assert row.predicted.step_time_seconds == pytest.approx(row.measured.step_time_seconds, rel=0.12), row.id


def test_published_peaks_are_of_the_kind_their_source_counts(published: Replay) -> None:
    measured = {row.dataset: row.measured for row in published.rows if row.measured.peak_memory_bytes is not None}
    assert "simumax_b200" in measured  # allocated, with the reserved peak beside it
    assert measured["simumax_b200"].reserved_memory_bytes is not None
    device = {row.dataset for row in published.rows if row.measured.device_memory_bytes is not None}
    assert device == {"bigscience_gpt2_v100", "bloom_prequel", "oneflow_dlperf"}

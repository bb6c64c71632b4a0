"""The report of a replay: its figures, its accounting, its files, and what it refuses."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from replay_rows import vary, write

from meshwright import replay
from meshwright.cli.app import main
from meshwright.validation.calibration_record import CalibrationRecord
from meshwright.validation.goals import Goal, goals
from meshwright.validation.report import BEGIN, END, ReportContext, accuracy_report, readme_block, replace_block
from meshwright.validation.report_errors import ranked_by_error
from meshwright.validation.report_files import name_runs
from meshwright.validation.report_plot import scatter_plot
from meshwright.validation.results import Replay

CONTEXT = ReportContext(command="meshwright replay runs.jsonl --report accuracy.md --force", plot="accuracy.svg")
RECORD = {
    "date": "2026-02-03",
    "in_sample": {"ours": {"rows": 4, "median": 0.041, "mean": 0.052, "bias": -0.01}},
    "leave_one_dataset_out": {
        "ours": {"rows": 4, "median": 0.131, "mean": 0.142, "bias": 0.03, "runtime_known": True},
        "theirs": {"rows": 9, "median": 0.25, "mean": 0.3, "bias": 0.2, "runtime_known": False},
        "all": {"rows": 13, "median": 0.2, "mean": 0.24, "bias": 0.1, "runtime_known": None},
    },
    "five_fold": {"ours": {"rows": 4, "median": 0.061, "mean": 0.072, "bias": 0.0}},
    "constants": [
        {
            "name": "max_fraction",
            "owner": "A100",
            "value": 0.87,
            "prior": 0.85,
            "low": 0.5,
            "high": 1,
            "uncertainty": 0.02,
        }
    ],
    "bands": [{"knowledge": "known", "evidence": "fitted", "factor": 1.13}],
}


def predicted_seconds(tmp_path: Path) -> float:
    (row,) = replay(write(tmp_path / "one.jsonl", vary())).rows
    assert row.predicted is not None
    return row.predicted.step_time_seconds


@pytest.fixture
def answer(tmp_path: Path) -> Replay:
    """Errors of 0, +25%, -60% and +10%; the last one derived, and one row of each kind that is not judged."""
    exact = predicted_seconds(tmp_path)
    rows = [
        vary(id="exact", measured={"step_time_s": exact}),
        vary(id="slow", measured={"step_time_s": exact / 1.25}, notes="a | b", flags=["odd"]),
        vary(id="fast", measured={"step_time_s": exact / 0.4}),
        vary(id="from-tflops", measured={"extra": {"step_time_s_derived": exact / 1.1}}),
        vary(id="doubted", doubtful=True),
        vary(id="tpu", hardware__gpu="TPU v4"),
        vary(id="empty", measured={}),
        "{",
    ]
    return replay(write(tmp_path / "runs.jsonl", *rows))


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def cells(text: str, first: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_table_holds_the_errors_of_the_rows(answer: Replay) -> None:
    text = section(accuracy_report(answer, CONTEXT), "Step time by dataset")
    # absolute 0, 25, 60, 10%: median 17.5, mean 23.75; signed 0, 25, -60, 10: median 5
    assert cells(text, "**all**")[1:6] == ["4", "17.5%", "23.8%", "+5.0%", "50%"]
    assert cells(text, "ours")[-1].strip() == "fast (-60%)"
    # without the derived one: 0, 25, 60
    assert cells(text, "all but derived")[1:4] == ["3", "25.0%", "28.3%"]
    assert "1 of the judged rows are such" in text


def test_the_worst_rows_come_first_with_what_their_file_remarks(answer: Replay) -> None:
    assert [row.id for row in ranked_by_error(answer)] == ["fast", "slow", "from-tflops", "exact"]
    text = section(accuracy_report(answer, CONTEXT), "The worst rows")
    assert cells(text, "slow")[-1].strip() == "odd; a \\| b"
    assert cells(text, "from-tflops")[-1].strip() == "step time derived from TFLOP/s"
    assert "All 2 judged rows that are off by more than 20%" in text


def test_every_line_is_accounted_for(answer: Replay) -> None:
    text = section(accuracy_report(answer, CONTEXT), "What became of every row")
    counts = {name: int(number) for name, number in re.findall(r"^\| ([^|]+) \| (\d+) \|$", text, re.MULTILINE)}
    assert counts == {
        "lines that are no run": 1,
        "not predicted": 1,
        "predicted, not judged: doubtful or incomplete": 1,
        "judged by step time": 4,
        "judged by memory alone": 0,
        "to be judged, but nothing was measured": 1,
    }
    assert sum(counts.values()) == 8  # lines of the file
    assert cells(text, "unknown accelerator 'TPU v4'")[1:] == ["1", "1", "runs.jsonl:6"]
    assert cells(text, "runs.jsonl:8")[1].startswith("the line is not JSON")


def test_folklore_is_scored_on_the_same_rows(answer: Replay) -> None:
    text = section(accuracy_report(answer, CONTEXT), "Beside folklore and other predictors")
    assert cells(text, "6ND at 40% of peak")[1] == cells(text, "meshwright")[1] == "4"
    assert "calculon" not in text  # its figures are of the published runs, and these are others
    published = Replay.model_validate(
        {**answer.model_dump(), "rows": [{**row.model_dump(), "dataset": "aleph"} for row in answer.rows]}
    )
    assert "calculon caa4b11" in accuracy_report(published, CONTEXT)


def test_a_goal_is_met_inside_its_range() -> None:
    assert [Goal(what="x", found=value, low=0.76, high=0.86).met for value in (0.75, 0.76, 0.86, 0.87)] == [
        False,
        True,
        True,
        False,
    ]
    assert Goal(what="x", found=0.7, low=0.76, high=0.86).missed_by == pytest.approx(0.06)
    assert Goal(what="x", found=-0.05, low=-0.03, high=0.03, signed=True).missed_by == pytest.approx(0.02)
    assert Goal(what="x", found=-0.02, low=-0.03, high=0.03, signed=True).met


def test_goals_that_the_rows_cannot_tell_are_left_out(answer: Replay) -> None:
    found = {goal.what: goal for goal in goals(answer, CalibrationRecord.model_validate(RECORD))}
    assert found["step time: median absolute error"].found == pytest.approx(0.175)
    assert not found["step time: median absolute error"].met
    assert found["dataset left out, runtime known from another: median error, mean over datasets"].found == 0.131
    assert found["dataset left out, runtime unknown: median error, mean over datasets"].found == 0.25
    assert not any("SimuMax" in what or "table 5" in what or "out of memory" in what for what in found)


def test_unseen_data_and_constants_come_from_the_record(answer: Replay) -> None:
    title = "Runs that the constants had not seen"
    assert "No record of a calibration was given" in section(accuracy_report(answer, CONTEXT), title)
    record = CalibrationRecord.model_validate(RECORD)
    context = ReportContext(command="c", plot="p.svg", record=record, notes="## Notes\n\ntried")
    text = accuracy_report(answer, context)
    shown = section(text, title)
    assert "calibration of 2026-02-03" in shown
    assert cells(shown, "ours")[1:] == ["4", "4.1%", "5.2%", "yes", "13.1%", "14.2%", "+3.0%", "6.1%", "7.2%"]
    assert cells(shown, "theirs")[1:] == ["9", "-", "-", "no", "25.0%", "30.0%", "+20.0%", "-", "-"]
    assert cells(shown, "**all**")[4:8] == ["", "20.0%", "24.0%", "+10.0%"]
    assert cells(shown, "max_fraction")[1:] == ["A100", "0.87", "0.02", "0.85", "0.5", "1"]
    assert cells(shown, "known")[1:] == ["fitted", "1.13"]
    assert text.endswith("## Notes\n\ntried\n")


def test_runs_without_any_judged_one_still_make_a_report(tmp_path: Path) -> None:
    answer = replay(write(tmp_path / "runs.jsonl", vary(doubtful=True)))
    text = accuracy_report(answer, CONTEXT)
    assert "predicted, not judged: doubtful or incomplete | 1" in text
    assert "nan" not in text.casefold().replace("nanotron", "")
    assert "no run has a step time" in scatter_plot(answer.rows)


def dots(svg: str) -> dict[str, list[tuple[float, float]]]:
    """Places of the dots by the legend's text beside each path; the last one is the legend's own."""
    root = ElementTree.fromstring(svg)
    space = {"s": "http://www.w3.org/2000/svg"}
    paths = [path.get("d", "") for path in root.findall("s:path", space) if path.get("class") == "dots"]
    names = [text.text or "" for text in root.findall("s:text", space)][-len(paths) :]
    found = [[(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path)] for path in paths]
    return {name.rsplit(" (", 1)[0]: points[:-1] for name, points in zip(names, found, strict=True)}


def test_the_plot_has_a_dot_a_run_at_its_place(answer: Replay) -> None:
    svg = scatter_plot(answer.rows)
    (points,) = dots(svg).values()
    assert len(points) == 4
    guides = re.findall(r'class="guide" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)
    (x0, y0, x1, y1), (upper_x, upper_y, *_), (lower_x, lower_y, *_) = [tuple(map(float, each)) for each in guides]
    assert (x1 - x0) == pytest.approx(y0 - y1)  # both axes have the same scale
    # on the line of equal prediction and measurement x - x0 = y0 - y; above it where the prediction is larger
    heights = [(y0 - y) - (x - x0) for x, y in points]
    exact, slow, fast, derived = heights
    assert exact == pytest.approx(0, abs=0.11)
    assert slow > (y0 - upper_y) - (upper_x - x0) > derived > 0 > (y0 - lower_y) - (lower_x - x0) > fast


def test_datasets_are_told_apart_in_the_plot(tmp_path: Path) -> None:
    names = [f"set {number:02}" for number in range(16)]
    answer = replay(write(tmp_path / "runs.jsonl", *(vary(dataset=name) for name in names)))
    svg = scatter_plot(answer.rows)
    assert list(dots(svg)) == names
    looks = re.findall(r'class="dots" (stroke="#\w+" stroke-linecap="\w+")', svg)
    assert len(set(looks)) == 16
    assert "prefers-color-scheme:dark" in svg


def test_a_block_replaces_only_what_stands_between_the_markers(answer: Replay) -> None:
    block = readme_block(answer, report="docs/accuracy.md")
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    changed = replace_block(text, block)
    assert changed == f"before\n{block}\nafter\n"
    assert replace_block(changed, block) == changed
    assert "[docs/accuracy.md](docs/accuracy.md)" in block
    for broken in ("", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"):
        assert replace_block(broken, block) is None


def test_all_files_of_a_folder_are_named_by_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "all runs"
    folder.mkdir()
    one, two = write(folder / "a.jsonl"), write(folder / "b.jsonl")
    table = write(folder / "c.csv")
    assert name_runs([one, two, table]) == [f"'{folder}'/*.jsonl", f"'{folder / 'c.csv'}'"]
    assert name_runs([two]) == [f"'{two}'"]


def run(folder: Path, *arguments: object) -> int:
    return main(["replay", str(folder / "runs.jsonl"), *map(str, arguments)])


def test_the_command_writes_the_report_its_plot_and_the_readme(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path / "runs.jsonl", vary())
    (tmp_path / "docs").mkdir()
    report, readme, record = tmp_path / "docs" / "accuracy.md", tmp_path / "README.md", tmp_path / "c.json"
    readme.write_text(f"# x\n{BEGIN}\n{END}\ny\n")
    record.write_text(json.dumps(RECORD))
    (tmp_path / "notes.md").write_text("## What was tried\n\nmuch\n")
    options = ["--report", report, "--readme", readme, "--calibration", record, "--notes", tmp_path / "notes.md"]
    assert run(tmp_path, *options, "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["summary"]["rows"] == 1
    assert shown.err.count("wrote ") == 3
    assert "[docs/accuracy.md](docs/accuracy.md)" in readme.read_text()
    assert report.read_text().endswith("## What was tried\n\nmuch\n")
    assert f"--readme {readme} --calibration {record}" in report.read_text()
    ElementTree.fromstring((tmp_path / "docs" / "accuracy.svg").read_text())
    before = report.read_text()
    assert run(tmp_path, *options) == 2  # exists
    assert "pass --force" in capsys.readouterr().err
    assert run(tmp_path, *options, "--force") == 0
    assert report.read_text() == before  # the same rows make the same text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--readme", "README.md"], "needed --report FILE.md too"),
        (["--calibration", "c.json"], "needed --report FILE.md too"),
        (["--report", "r.txt"], "use .md"),
        (["--report", "no/r.md"], "does not exist"),
        (["--report", "r.md", "--readme", "none.md"], "README none.md does not exist"),
        (["--report", "r.md", "--readme", "./r.md"], "is the report itself"),
        (["--report", "r.md", "--readme", "runs.jsonl"], "needed the lines"),
        (["--report", "r.md", "--calibration", "bad.json"], "in_sample.a.median: found 'x'; needed a number"),
        (["--report", "r.md", "--calibration", "runs.jsonl"], "calibration record"),
        (["--report", "r.md", "--notes", "none.md"], "notes file none.md does not exist"),
    ],
)
def test_what_cannot_become_a_report_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "runs.jsonl", vary())
    (tmp_path / "bad.json").write_text('{"date": "d", "in_sample": {"a": {"rows": 1, "median": "x"}}}')
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["replay", "runs.jsonl", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before

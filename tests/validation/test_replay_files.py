"""Files of runs as users write them: the examples, and everything that can be wrong with a line."""

import codecs
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_rows import vary, write

from costmodel.specs import InputError
from meshwright import replay
from meshwright.cli.app import main
from meshwright.validation.run_files import read_runs

EXAMPLES = Path(__file__).parents[2] / "examples"
COLUMNS = (
    "id,model.n_layers,model.hidden,model.seq_len,model.gated_mlp,hardware.gpu,hardware.n_gpus,"
    "parallel.micro_batch,parallel.global_batch,measured.step_time_s"
)
CELLS = "24,2048,1024,false,A100-80GB,8,4,32,1.5"


def write_csv(path: Path, *lines: str, columns: str = COLUMNS) -> Path:
    path.write_text("\n".join([columns, *lines, ""]))
    return path


def reasons(path: Path) -> dict[str, str]:
    return {line.where: line.reason for line in read_runs([path]) if line.row is None}


def ids(path: Path) -> list[str]:
    return [line.row.id for line in read_runs([path]) if line.row is not None]


def test_the_examples_are_the_published_runs_and_say_the_same() -> None:
    table, lines = replay(EXAMPLES / "runs.csv"), replay(EXAMPLES / "runs.jsonl")
    assert table.summary.bad_lines == lines.summary.bad_lines == ()
    assert [row.predicted for row in table.rows] == [row.predicted for row in lines.rows]
    # arXiv 2205.05198, table 5: seconds of one iteration, 22B and 175B with full and with selective recomputation
    assert [row.measured.step_time_seconds for row in table.rows] == [1.42, 1.10, 18.13, 13.75]
    assert table.summary.predicted == table.summary.pooled.rows == 4
    assert table.summary.pooled.pairs == 2


def test_every_bad_line_is_told_by_its_number_and_the_rest_is_used(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "runs.csv",
        f"good,{CELLS}",
        f"nan,{CELLS.replace('1.5', 'nan')}",
        f"infinite,{CELLS.replace('1.5', '-Infinity')}",
        f"zero,{CELLS.replace('1.5', '0')}",
        f"negative,{CELLS.replace('1.5', '-1.5')}",
        "",
        ",,,,,,,,,",
        "short,24,2048",
        f"long,{CELLS},7",
        f"word,{CELLS.replace('2048', 'wide')}",
        f",{CELLS}",
        f"last,{CELLS},,",
    )
    assert ids(path) == ["good", "last"]
    found = reasons(path)
    assert list(found) == [f"runs.csv:{number}" for number in (3, 4, 5, 6, 9, 10, 11, 12)]
    assert "measured.step_time_s: found 'nan'; needed a finite number" in found["runs.csv:3"]
    assert "needed a finite number" in found["runs.csv:4"]
    assert "measured.step_time_s: found 0; needed a number of at least" in found["runs.csv:5"]
    assert "measured.step_time_s: found -1.5" in found["runs.csv:6"]
    assert "hardware.gpu: missing" in found["runs.csv:9"]
    assert found["runs.csv:10"].startswith("found 11 cells; needed 10")
    assert "model.hidden: found 'wide'; needed a whole number" in found["runs.csv:11"]
    assert "id: missing" in found["runs.csv:12"]


def test_an_open_quote_costs_its_own_line_only(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "runs.csv", f"a,{CELLS}", f'"open,{CELLS}', f"b,{CELLS}", f'c"d,{CELLS}', f"e,{CELLS}")
    assert ids(path)[:2] == ["a", "b"]
    assert ids(path)[-1] == "e"
    assert reasons(path)["runs.csv:3"] == "the line is not CSV: a quote is not closed"


def test_a_quoted_cell_may_hold_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    lines = f'a,{CELLS},"one, ""two""\nthree"', f"b,{CELLS},"
    path = write_csv(tmp_path / "runs.csv", *lines, columns=f"{COLUMNS},notes")
    rows = [line for line in read_runs([path]) if line.row is not None]
    assert [line.where for line in rows] == ["runs.csv:2", "runs.csv:4"]
    assert rows[0].row is not None
    assert rows[0].row.notes == 'one, "two"\nthree'


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_line_ends_and_marks_of_other_systems_are_read(tmp_path: Path, end: str, mark: bytes) -> None:
    table, lines = tmp_path / "runs.csv", tmp_path / "runs.jsonl"
    table.write_bytes(mark + end.join([COLUMNS, f"a,{CELLS}", f"b,{CELLS}", ""]).encode())
    lines.write_bytes(mark + "\n".join([json.dumps(vary()), json.dumps(vary())]).encode())
    assert ids(table) == ["a", "b"]
    assert len(ids(lines)) == 2
    assert reasons(table) == reasons(lines) == {}


def test_bytes_of_another_encoding_are_one_bad_line_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(
        f"{COLUMNS}\na,{CELLS}\n".encode() + "Zürich".encode("latin-1") + f",{CELLS}\nb,{CELLS}\n".encode()
    )
    assert ids(path) == ["a", "b"]
    assert reasons(path) == {"runs.csv:3": "the line is not UTF-8 text"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("", "found the columns none"),
        ("name,model.hidden", "found the columns name, model.hidden; needed 'id'"),
        ("id;model.hidden", "with commas between them"),
        ("id,model.hidden,id", "found the column 'id' twice"),
    ],
)
def test_a_table_without_proper_columns_is_one_bad_line_and_other_files_are_used(
    tmp_path: Path, columns: str, message: str
) -> None:
    bad, good = write_csv(tmp_path / "bad.csv", f"a,{CELLS}", columns=columns), write(tmp_path / "good.jsonl", vary())
    (line,) = replay([bad, good]).summary.bad_lines
    assert line.where == ("bad.csv:2" if not columns else "bad.csv:1")
    assert message in line.reason or not columns
    with pytest.raises(InputError, match=r"no line is a run on a known accelerator .*bad\.csv:"):
        replay(bad)


def test_a_column_that_is_nearly_a_field_is_told(tmp_path: Path) -> None:
    columns = COLUMNS.replace("parallel.micro_batch", "parallel.micro_bacth") + ",cluster,measured.comment"
    path = write_csv(tmp_path / "runs.csv", f"a,{CELLS},Selene,fine", columns=columns)
    assert ids(path) == ["a"]
    (hint,) = reasons(path).values()
    assert hint == "the column 'parallel.micro_bacth' is no field and ignored; did you mean 'parallel.micro_batch'?"


def test_cells_that_look_like_numbers_may_be_text(tmp_path: Path) -> None:
    columns = f"{COLUMNS},rank_group,parallel.recompute,parallel.flash_attention,model.name"
    path = write_csv(tmp_path / "runs.csv", f"7,{CELLS},12,none,2,350", f"8,{CELLS},12,none,TRUE,350", columns=columns)
    (first, second) = [line.row for line in read_runs([path])]
    assert first is not None
    assert second is not None
    assert (first.id, first.rank_group, first.parallel.flash_attention, first.model.name) == ("7", "12", "2", "350")
    assert second.parallel.flash_attention is True


def test_remarks_never_cost_a_line(tmp_path: Path) -> None:
    rows = [vary(notes=None, flags=None), vary(notes={"a": 1}, flags="odd"), vary(notes=3, flags=["x", 4])]
    found = replay(write(tmp_path / "runs.jsonl", *rows)).rows
    assert [row.flags for row in found] == [(), ("odd",), ("x", "4")]
    assert [row.notes for row in found] == ["", "{'a': 1}", "3"]


def test_no_control_character_of_a_file_is_shown_or_costs_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a terminal's escapes, nor halves of surrogate pairs, nor what XML has no place for."""
    odd = "a\x1b[31mb\x07\ud800\x00"
    lines = [vary(id=odd, dataset=odd, notes=odd), vary(hardware__gpu=odd), vary(measured__step_time_s=odd)]
    path = tmp_path / "runs\x1b[31m.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = tmp_path / "report.md"
    assert main(["replay", str(path), "--json", "--report", str(report)]) == 0
    out, err = capsys.readouterr()
    row = json.loads(out)["rows"][0]
    assert row["status"] == "predicted"
    assert row["id"] == row["dataset"] == row["notes"] == r"a\x1b[31mb\x07\ud800\x00"
    assert r"runs\x1b[31m.jsonl:2: unknown accelerator" in err
    assert main(["replay", str(path)]) == 0
    for text in (out, err, *capsys.readouterr(), report.read_text(), report.with_suffix(".svg").read_text()):
        assert all(character.isprintable() or character in "\t\n" for character in text)
    ElementTree.parse(report.with_suffix(".svg"))


def test_a_header_with_control_characters_is_told_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "runs.csv", "1,2", columns="\x1b[31mid,\x00")
    assert main(["replay", str(path)]) == 2
    assert r"found the columns \x1b[31mid, \x00; needed 'id'" in capsys.readouterr().err


def test_cells_and_lines_that_nest_too_deeply_cost_themselves_only(tmp_path: Path) -> None:
    columns = f"{COLUMNS},parallel.extra,model.moe"
    deep = "[" * 50_000
    path = write_csv(
        tmp_path / "runs.csv", f"deep,{CELLS},,{deep}", f"half,{CELLS},,{'[' * 700}{']' * 700}", f"good,{CELLS},,",
        columns=columns,
    )  # fmt: skip
    assert "good" in ids(path)
    assert {"runs.csv:2", "runs.csv:3"} == reasons(path).keys()
    nested = json.dumps(vary()).replace('"moe": null', '"moe": {"a": ' + "[" * 800 + "]" * 800 + "}")
    assert nested != json.dumps(vary())
    assert len(list(read_runs([write(tmp_path / "runs.jsonl", nested, vary())]))) == 2


def test_files_without_a_line_are_named(tmp_path: Path) -> None:
    path = tmp_path / "nothing.jsonl"
    path.write_text("\n \n")
    with pytest.raises(InputError, match=r"not one line in .*nothing\.jsonl; needed one JSON object a line"):
        replay(path)


def test_a_list_of_runs_in_one_document_is_told_how_to_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([vary(), vary()], indent=1))
    with pytest.raises(InputError, match="needed one whole object a line"):
        replay(path)


def test_unknown_accelerators_are_warned_of_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        vary(),
        vary(id="a", hardware__gpu="Z100"),
        vary(id="b", model__hidden=None),
        vary(id="c", hardware__gpu="Z1"),
    ]
    path = write(tmp_path / "runs.jsonl", *rows)
    assert main(["replay", str(path)]) == 0
    shown = capsys.readouterr()
    warnings = [line for line in shown.err.splitlines() if line.startswith("warning:")]
    assert [line.split(": ")[1] for line in warnings] == ["runs.jsonl:2", "runs.jsonl:4"]
    assert "1: the row lacks model.hidden (runs.jsonl:3)" in shown.out
    assert [each.where for each in replay(path).summary.unknown_accelerators] == ["runs.jsonl:2", "runs.jsonl:4"]


def test_a_step_time_from_tflops_is_marked_and_told_apart(tmp_path: Path) -> None:
    rows = [
        vary(id="timed", measured={"step_time_s": 10.0, "extra": {"step_time_s_derived": 9.0}}),
        vary(id="throughput", measured={"tokens_per_s_per_gpu": 64 * 4096 / 16 / 10.0}),
        vary(id="derived", measured={"extra": {"step_time_s_derived": 20.0}}),
        vary(id="untimed", measured={}),
    ]
    answer = replay(write(tmp_path / "runs.jsonl", *rows))
    assert [row.derived for row in answer.rows] == [False, False, True, False]
    assert [row.measured.step_time_seconds for row in answer.rows] == [10.0, 10.0, 20.0, None]
    assert (answer.summary.pooled.rows, answer.summary.pooled_without_derived.rows) == (3, 2)


@given(
    content=st.one_of(
        st.binary(max_size=300),
        st.lists(
            st.sampled_from([COLUMNS, f"a,{CELLS}", '"', ",", "\n", "\r", "\x00", "{", '{"id": 1}', "1e999"]),
            max_size=9,
        )
        .map("".join)
        .map(str.encode),
    ),
    suffix=st.sampled_from([".csv", ".jsonl"]),
)
def test_whatever_a_file_holds_every_line_is_a_run_or_has_a_reason(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"runs{suffix}"
    path.write_bytes(content)
    for line in read_runs([path]):
        assert (line.row is None) == bool(line.reason)
        assert line.where.startswith(f"runs{suffix}:")


def test_a_path_that_is_none_is_bad_input() -> None:
    with pytest.raises(InputError, match="runs file is"):
        replay("a\0b")

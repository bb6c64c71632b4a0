"""Exit codes, streams and files of the real commands."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from costmodel.specs import ExecutionError, Recommendation
from costmodel.specs.write_schemas import FOLDER
from meshwright import load_plan
from meshwright.cli import app
from meshwright.cli.app import main
from meshwright.cli.output import print_warnings

ROOT = Path(__file__).parents[2]
INPUTS = ("--model", "llama-3-8b", "--cluster", "8xH100-SXM", "--global-batch-size", "64", "--sequence-length", "2048")
BIG = (
    "--model",
    "gpt3-175b",
    "--cluster",
    "8xV100-SXM-32GB",
    "--global-batch-size",
    "1536",
    "--sequence-length",
    "2048",
)
Cli = Callable[..., Any]


def validate(text: str, name: str) -> dict[str, Any]:
    document = json.loads(text)
    jsonschema.validate(document, json.loads((FOLDER / f"{name}.schema.json").read_text()))
    assert isinstance(document, dict)
    return document


def test_plan_json_is_the_recommendation_alone(cli: Cli) -> None:
    result = cli("plan", *INPUTS, "--json", "--top", "3", "--tokens", "1e12")
    assert result.code == 0
    answer = validate(result.out, "recommendation")
    assert set(answer) >= {"best", "alternatives", "rejections", "certificate", "guide"}
    assert answer["best"]["estimate"]["fits"] is True
    assert len(answer["alternatives"]) <= 2
    steps = answer["duration"]["num_steps"]
    assert steps == -(-(10**12) // (64 * 2048))
    assert answer["duration"]["seconds"] == pytest.approx(
        steps * answer["best"]["estimate"]["step_time_seconds"]["value"]
    )
    assert Recommendation.model_validate(answer).best.num_devices_used <= 8


def test_fewest_devices_as_json(cli: Cli) -> None:
    result = cli("plan", *INPUTS, "--minimum-devices", "--json", "-o", "plan.json")
    assert result.code == 0
    answer = validate(result.out, "recommendation")
    objective = answer["objective"]
    assert (objective["name"], objective["value"]) == ("devices", answer["best"]["num_devices_used"])
    assert [trial["fits"] for trial in objective["trials"]] == [False] * (len(objective["trials"]) - 1) + [True]
    assert load_plan("plan.json").num_devices_used == objective["value"]


def test_the_price_may_stand_in_the_cluster_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "priced.yaml").write_text("base: 8xH100-SXM\nprice_per_device_hour: 2.5\n")
    inputs = (
        "--model",
        "llama-3-8b",
        "--global-batch-size",
        "64",
        "--sequence-length",
        "2048",
        "--objective",
        "cost",
        "--json",
    )
    in_file = validate(cli("plan", "--cluster", "priced.yaml", *inputs).out, "recommendation")["objective"]
    stated = validate(cli("plan", "--cluster", "8xH100-SXM", "--price", "5", *inputs).out, "recommendation")[
        "objective"
    ]
    assert in_file["price_per_device_hour"] == 2.5
    assert stated["value"] == pytest.approx(2 * in_file["value"])


def test_the_longest_sequence_needs_no_sequence_length(cli: Cli) -> None:
    inputs = ("--model", "llama-3-8b", "--cluster", "8xH100-SXM", "--global-batch-size", "64")
    result = cli("plan", *inputs, "--maximize", "sequence_length", "--json")
    assert result.code == 0
    answer = validate(result.out, "recommendation")
    assert answer["best"]["training"]["sequence_length"] == answer["maximum"]["value"]
    assert answer["maximum"]["next_value"] == answer["maximum"]["value"] + 1024
    assert answer["maximum"]["nearest_miss"]["needed_bytes"] > answer["maximum"]["nearest_miss"]["capacity_bytes"]


def test_scaling_as_json(cli: Cli) -> None:
    inputs = ("--model", "llama-3-8b", "--cluster", "4x8xH100-SXM", "--sequence-length", "2048")
    result = cli("scale", *inputs, "--global-batch-size", "64", "--price", "2", "--tokens", "1T", "--json")
    assert result.code == 0
    points = validate(result.out, "scaling")["points"]
    assert [point["num_nodes"] for point in points] == [1, 2, 4]
    for point in points:
        hours = 1e12 / point["tokens_per_second"] / 3600
        assert point["cost"] == pytest.approx(2 * point["num_devices"] * hours)
        assert point["best"]["provenance"]["command"].startswith("meshwright scale --model llama-3-8b")


@pytest.mark.parametrize(
    "question",
    [
        ("plan", "--minimum-devices"),
        ("plan", "--objective", "cost", "--price", "2"),
        ("plan", "--objective", "memory-headroom"),
        ("scale",),
    ],
    ids=lambda question: question[-1],
)
def test_questions_without_a_plan_hold_the_nearest_miss(question: tuple[str, ...], cli: Cli) -> None:
    result = cli(*question, *BIG, "--json")
    assert result.code == 3
    assert validate(result.out, "infeasible")["nearest_miss"] is not None


def test_progress_is_told_on_stderr_when_it_takes_longer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.cli.output._PATIENCE_SECONDS", 0.0)
    result = cli("plan", *INPUTS, "--minimum-devices", "--json")
    validate(result.out, "recommendation")
    assert result.err.startswith("trying 1 device ...\n")
    monkeypatch.setattr("meshwright.cli.output._PATIENCE_SECONDS", 3600.0)
    assert "..." not in cli("plan", *INPUTS, "--minimum-devices", "--json").err


def test_a_written_plan_is_estimated_explained_and_exported(cli: Cli) -> None:
    assert cli("plan", *INPUTS, "-o", "plan.yaml").code == 0
    plan = load_plan("plan.yaml")
    assert plan.provenance is not None
    assert plan.provenance.command.startswith("meshwright plan --model llama-3-8b")
    result = cli("estimate", "plan.yaml", "--json")
    assert plan.estimate is not None
    assert validate(result.out, "estimate") == json.loads(plan.estimate.model_dump_json())
    told = cli("explain", "plan.yaml")
    assert told.code == 0
    assert "Certificate" in told.out
    assert cli("export", "plan.yaml", "--to", "json", "-o", "plan.json").out == "plan.json\n"
    assert load_plan("plan.json") == plan


def test_every_plan_argument_takes_a_recommendation(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(cli("plan", *INPUTS, "--json").out)
    for command in (("explain",), ("estimate",), ("export", "--to", "yaml", "-o", "best.yaml")):
        assert cli(command[0], "answer.json", *command[1:]).code == 0
    assert load_plan("best.yaml") == load_plan("answer.json")


def test_force_replaces_and_nothing_else_does(cli: Cli) -> None:
    assert cli("plan", *INPUTS, "-o", "plan.json").code == 0
    before = Path("plan.json").read_bytes()
    assert cli("plan", *INPUTS, "-o", "plan.json", "--optimizer", "sgd").code == 2
    assert Path("plan.json").read_bytes() == before
    assert cli("plan", *INPUTS, "-o", "plan.json", "--optimizer", "sgd", "--force").code == 0
    assert load_plan("plan.json").training.optimizer.name == "sgd"


def test_fixed_axes_are_held(cli: Cli) -> None:
    fixed = ("--fix", "tensor_parallel_size=2", "--fix", "pipeline_parallel_size=2", "--allow", "zero_stage=0,1")
    best = json.loads(cli("plan", *INPUTS, *fixed, "--json").out)["best"]["parallel"]
    assert (best["tensor_parallel_size"], best["pipeline_parallel_size"]) == (2, 2)
    assert best["zero_stage"] in (0, 1)


def test_nothing_fits_is_three(cli: Cli) -> None:
    result = cli("plan", *BIG, "--runtime", "megatron", "--json")
    assert result.code == 3
    answer = validate(result.out, "infeasible")
    assert answer["nearest_miss"]["needed_bytes"] > answer["nearest_miss"]["capacity_bytes"]
    assert answer["nearest_miss"]["fixes"]
    Path("answer.json").write_text(result.out)
    told = cli("explain", "answer.json")
    assert told.code == 0
    assert "No plan fits." in told.out
    assert answer["guide"]["branch"] in " ".join(told.out.split())


SIZES = ("--runtime", "megatron", "--precision", "fp16", "--tensor-parallel-size", "8", "--recompute", "full")


def test_a_stated_plan_that_does_not_fit_is_three(cli: Cli) -> None:
    result = cli("estimate", *BIG, *SIZES, "-o", "plan.json")
    assert result.code == 3
    assert "This plan does not fit." in result.out
    assert "What would fix it" in result.out
    assert not Path("plan.json").exists()
    miss = validate(cli("estimate", *BIG, *SIZES, "--json").out, "infeasible")["nearest_miss"]
    total = sum(term["bytes"] for term in miss["terms"])
    assert total == pytest.approx(miss["needed_bytes"], rel=0.01)  # the terms are the whole


def test_a_long_sequence_cut_in_fp8_is_estimated(cli: Cli) -> None:
    inputs = ("--model", "llama-3-8b", "--cluster", "8xH100-SXM", "--global-batch-size", "8", "--runtime", "megatron")
    cut = [
        "--precision",
        "fp8",
        "--context-parallel-size",
        "4",
        "--context-parallel-method",
        "ring",
        "--zero-stage",
        "1",
    ]
    cut += ["--tensor-parallel-size", "2", "--sequence-parallel"]
    result = cli("estimate", *inputs, *cut, "--sequence-length", "32768", "--recompute", "core_attention")
    assert result.code == 0
    for found in ("context_parallel_size  4, ring", "bf16 with fp8 projections (delayed scaling)", "fp8_weights"):
        assert found in result.out
    result = cli("estimate", *inputs, *cut, "--sequence-length", "524288")
    assert result.code == 3  # the planner has no space to look for fixes in: its own has no such cuts
    assert "cp4 ring" in result.out


def test_ignoring_memory_is_zero_and_labelled(cli: Cli) -> None:
    result = cli("estimate", *BIG, *SIZES, "--ignore-memory", "--tokens", "300B")
    assert result.code == 0
    assert "memory ignored" in result.out
    assert "years" in result.out
    estimate = json.loads(cli("estimate", *BIG, *SIZES, "--ignore-memory", "--json").out)
    assert (estimate["fits"], estimate["memory_ignored"]) == (False, True)


def test_edits_are_accepted_on_request(cli: Cli) -> None:
    assert cli("plan", *INPUTS, "-o", "plan.json", "--fix", "micro_batch_size=1").code == 0
    edited = json.loads(Path("plan.json").read_text())
    edited["training"]["sequence_length"] = 1024
    Path("edited.json").write_text(json.dumps(edited))
    assert cli("estimate", "edited.json").code == 2
    assert cli("estimate", "edited.json", "--accept-edits", "-o", "new.json").code == 0
    new = load_plan("new.json")
    assert new.training.sequence_length == 1024
    assert new.estimate is not None
    assert new.plan_hash != load_plan("plan.json").plan_hash


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out.startswith("meshwright 0.")
    for command in ((), *((name,) for name in app.COMMANDS)):
        result = cli(*command, "--help", columns=80)
        assert result.code == 0
        assert result.out.startswith("Usage: meshwright")


def test_without_arguments_the_help_is_shown(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert "Usage: meshwright" in result.out + result.err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ExecutionError("rank 3: out of memory"), 1, "error: rank 3: out of memory"),
        (KeyError("x"), 1, "error: internal error: KeyError"),
        (RecursionError("deep"), 1, "internal error"),
        (OSError(28, "No space left on device", "plan.json"), 1, "error: No space left on device: plan.json"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_goes_wrong_inside(
    error: BaseException, code: int, words: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("meshwright.planning.plan", fail)
    result = cli("plan", *INPUTS)
    assert result.code == code
    assert words in result.err
    assert len(result.err.splitlines()) == (1 if words else 0)
    assert "Traceback" not in result.err


def test_debugging_shows_where(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_DEBUG", "1")
    monkeypatch.setattr("meshwright.planning.plan", lambda *_, **__: 1 / 0)
    assert "Traceback" in cli("plan", *INPUTS).err


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwright.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, **options)


def test_a_planning_process_imports_nothing_heavy() -> None:
    """At most the modules it needs: no torch, no transformers, and no solver where bounds close the gap."""
    script = (
        "import sys\n"
        "from meshwright.cli.app import main\n"
        f"code = main(['plan', *{INPUTS!r}, '--json'])\n"
        "heavy = {'torch', 'transformers', 'pulp', 'highspy', 'rich'} & set(sys.modules)\n"
        "print(code, sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    json.loads(done.stdout)
    assert done.stderr.splitlines()[-1] == "0 []"


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m meshwright.cli.app models list | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 1)])
def test_streams_that_take_nothing_are_no_internal_error(closed: str, code: int) -> None:
    command = f"{sys.executable} -m meshwright.cli.app models list {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code
    assert done.stderr == ("error: No space left on device: the answer could not be written\n" if code else "")


def test_warnings_are_written_as_the_stream_can(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(taken, encoding="ascii", errors="backslashreplace"))
    print_warnings(["[bold] :smile: \u00e9\x1b"])
    assert taken.getvalue() == b"warning: [bold] :smile: \\xe9\\x1b\n"


def test_names_that_are_no_text_are_kept_out_of_the_plan(cli: Cli, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.json")
    assert cli("plan", *INPUTS, "-o", name).code == 0
    made_by = load_plan(tmp_path / name).provenance
    assert made_by is not None
    assert made_by.command.endswith("-o '?.json'")


@pytest.mark.parametrize("columns", [0, 1])
def test_a_terminal_without_columns_still_shows_the_answer(columns: int, cli: Cli) -> None:
    assert "gpt2-xl" in cli("models", "list", columns=columns).out


def test_the_module_is_the_command() -> None:
    done = run_process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert run_process("plan", "--colour").returncode == 2


def test_numpy_s_thread_setting_is_not_left_behind() -> None:
    script = "from meshwright.cli.light_numpy import import_numpy; import os; import_numpy(); print(dict(os.environ))"
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True, env=environment
    )
    assert "OPENBLAS" not in done.stdout


def test_main_takes_the_process_s_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["meshwright", "--version"])
    monkeypatch.setattr(app, "_collect_rarely", lambda: None)  # is for processes that end with the answer
    assert main() == 0
    assert capsys.readouterr().out.startswith("meshwright ")


@pytest.mark.parametrize(
    ("arguments", "rarely"), [(["--version"], True), (["models", "--help"], True), (["run", "--help"], False)]
)
def test_garbage_is_looked_for_rarely_only_where_the_process_trains_nothing(arguments: list[str], rarely: bool) -> None:
    """Called with arguments, in somebody's process, nothing of the collector is changed."""
    script = (
        "import gc, sys; from meshwright.cli.app import main; usual = gc.get_threshold(); main(['--version']); "
        "same = usual == gc.get_threshold(); main(); print(same, gc.get_threshold() == usual)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split()[-2:] == ["True", str(not rarely)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_is_printed_where_warnings_cannot_be() -> None:
    script = "from meshwright.cli.output import print_notice; print_notice('lost'); print('kept')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, text=True, cwd=ROOT, check=True
        )
    assert done.stdout == "kept\n"


@pytest.mark.distributed
def test_run_reports_prediction_and_reference(cli: Cli) -> None:
    small = ("--model", "llama-tiny-demo", "--cluster", "2xcpu", "--global-batch-size", "4", "--sequence-length", "16")
    assert cli("plan", *small, "--fix", "data_parallel_size=2", "-o", "small.json").code == 0
    result = cli("run", "small.json", "--steps", "3", "--reference", "-o", "run.json")
    assert result.code == 0, result.err
    assert "largest loss difference" in result.out
    assert "step_time_seconds" in result.out
    observation = validate(Path("run.json").read_text(), "observation")
    assert len(observation["losses"]) == 3
    assert observation["plan_hash"] == load_plan("small.json").plan_hash


def test_a_config_is_estimated_and_improved(cli: Cli, tmp_path: Path) -> None:
    """Export for another launcher, read its script back, and see what would be better."""
    made = ("--model", "llama-3-8b", "--cluster", "8xH100-SXM")
    sizes = ("--global-batch-size", "64", "--sequence-length", "2048", "--tensor-parallel-size", "8")
    stated = cli("estimate", *made, *sizes, "--runtime", "megatron", "--recompute", "full", "-o", "plan.json")
    assert stated.code == 0
    written = cli("export", "plan.json", "--to", "megatron", "-o", "out")
    assert (written.code, written.out) == (0, "out/launch.sh\n")
    read = cli("estimate", "--from", "out", *made)
    assert read.code == 0
    assert "read as megatron; without effect on time and memory: " in read.err
    assert read.out == cli("estimate", "plan.json").out
    improved = cli("estimate", "--from", "out/launch.sh", *made, "--improve")
    assert improved.code == 0
    assert improved.out.startswith(read.out)
    assert "the best plan of runtime megatron" in improved.out
    assert "recomputation of activations" in improved.out

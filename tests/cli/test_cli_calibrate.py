"""`calibrate`, `--site` and `plan --top` as a user types them."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sample_documents import sample_site

from costmodel.specs import Recommendation
from costmodel.specs.write_schemas import FOLDER
from meshwright import load_plan, load_site, make_plan, save_plan, save_site

INPUTS = (
    "--model",
    "llama-3-8b",
    "--cluster",
    "2x8xA100-SXM-80GB",
    "--global-batch-size",
    "64",
    "--sequence-length",
    "2048",
)
MEGATRON = ("--runtime", "megatron")
Cli = Callable[..., Any]


def observe(plan_file: str, run_file: str, factor: float) -> None:
    """What `meshwright run -o` leaves, made up: the predicted time times a factor."""
    plan = load_plan(plan_file)
    assert plan.estimate is not None
    seconds = factor * plan.estimate.step_time_seconds.value
    observation = {"source": "made up", "plan_hash": plan.plan_hash, "step_time_seconds": seconds}
    Path(run_file).write_text(json.dumps(observation))


def commands_of(text: str) -> list[list[str]]:
    body = text.partition("\nWorth measuring")[2].partition("\nNext\n")[0]
    return [shlex.split(line) for line in body.splitlines() if line.startswith(("  meshwright ", "  echo "))]


def test_the_printed_commands_lead_from_plan_to_site_and_back(cli: Cli) -> None:
    result = cli("plan", *INPUTS, *MEGATRON, "--top", "3")
    assert result.code == 0
    commands = commands_of(result.out)
    answer = Recommendation.model_validate_json(cli("plan", *INPUTS, *MEGATRON, "--top", "3", "--json").out)
    wanted = [plan.plan_hash for plan in (answer.best, *answer.alternatives)]
    made = [command for command in commands if command[1] == "estimate"]
    for command in made:
        assert cli(*command[1:]).code == 0
        assert cli("export", command[-1], "--to", "yaml", "-o", command[-1].replace(".json", ".yaml")).code == 0
    hashes = [load_plan(command[-1]).plan_hash for command in made]
    assert hashes == wanted[: len(hashes)]
    assert len(hashes) >= 2
    for command in (command for command in commands if command[0] == "echo"):
        assert json.loads(command[1].replace("SECONDS", "1.0"))["plan_hash"] in hashes
    (calibrate,) = [command for command in commands if command[1] == "calibrate"]
    for number in range(1, len(made) + 1):
        observe(f"top-{number}.json", f"top-{number}-run.json", 1.3)
    assert cli(*calibrate[1:]).code == 0
    assert load_site("site.yaml").efficiency.value < 0.9
    told = cli("plan", *INPUTS, *MEGATRON, "--site", "site.yaml", "-o", "with.json")
    assert told.code == 0
    assert "site      megatron on A100-SXM-80GB" in told.out
    carrying = load_plan("with.json")
    assert carrying.site == load_site("site.yaml")
    assert carrying.estimate is not None
    assert json.loads(cli("estimate", "with.json", "--json").out) == json.loads(carrying.estimate.model_dump_json())


def test_runs_of_our_own_executor_are_run_commands(cli: Cli) -> None:
    result = cli("plan", *INPUTS, "--top", "2", "-o", "best.json", columns=80)
    body = result.out.partition("\nWorth measuring")[2].partition("\nNext\n")[0]
    commands = commands_of(result.out)
    assert [command[1] for command in commands] == ["run", "estimate", "run", "calibrate"]
    assert commands[0][2:5] == ["best.json", "--steps", "5"]
    assert commands[0][-2:] == ["-o", "best-1-run.json"]
    table = [line for line in body.splitlines() if not line.startswith(("  meshwright ", "  echo "))]
    assert max(len(line.rstrip()) for line in table) <= 80
    assert "Worth measuring" not in cli("plan", *INPUTS).out


def test_calibrate_prints_and_writes_the_same_site(cli: Cli) -> None:
    assert cli("plan", *INPUTS, *MEGATRON, "-o", "plan.json").code == 0
    observe("plan.json", "run.json", 1.25)
    shown = cli("calibrate", "plan.json", "run.json", "-o", "site.yaml", columns=80)
    assert shown.code == 0
    assert "warning: 1 run to calibrate with" in shown.err
    for words in (
        "before",
        "after",
        "efficiency",
        "launch",
        "overlap",
        "memory_margin",
        "80% interval",
        "What would tell more",
    ):
        assert words in shown.out
    assert max(len(line.rstrip()) for line in shown.out.splitlines()) <= 80
    told = json.loads(cli("calibrate", "plan.json", "run.json", "--json").out)
    jsonschema.validate(told["site"], json.loads((FOLDER / "site.schema.json").read_text()))
    assert told["site"] == load_site("site.yaml").model_dump(mode="json")
    again = cli("calibrate", "plan.json", "run.json", "-o", "site.yaml")
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    save_site(sample_site(), tmp_path / "site.yaml")
    text = (tmp_path / "site.yaml").read_text()
    (tmp_path / "beyond.yaml").write_text(text.replace("value: 0.8", "value: 40"))
    (tmp_path / "unknown.yaml").write_text(text + "colour: red\n")
    (tmp_path / "broken.yaml").write_text("device: [A100\n")
    (tmp_path / "other.yaml").write_text("a: 1\n")
    (tmp_path / "empty.jsonl").write_text("")
    plan = make_plan(
        "llama-3-8b", "8xH100-SXM", global_batch_size=64, sequence_length=2048, runtime="megatron",
        sizes={"zero_stage": 1, "tensor_parallel_size": 2},
    )  # fmt: skip
    save_plan(plan, tmp_path / "h100.json")
    return tmp_path


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", *INPUTS, "--site", "site.yaml"), "site file is of runtime megatron"),
        (
            ("plan", *INPUTS, *MEGATRON, "--site", "beyond.yaml"),
            "efficiency.value: found 40; needed a number of at most 2",
        ),
        (("plan", *INPUTS, *MEGATRON, "--site", "unknown.yaml"), "colour"),
        (("plan", *INPUTS, *MEGATRON, "--site", "broken.yaml"), "broken.yaml"),
        (("plan", *INPUTS, *MEGATRON, "--site", "other.yaml"), "not a site file"),
        (("plan", *INPUTS, *MEGATRON, "--site", "missing.yaml"), "does not exist"),
        (("estimate", "h100.json", "--site", "site.yaml"), "found a cluster of H100-SXM"),
        (("explain", "h100.json", "--site", "site.yaml"), "found a cluster of H100-SXM"),
        (("calibrate", "missing.jsonl", "-o", "new.yaml"), "missing.jsonl"),
        (("calibrate", "empty.jsonl", "-o", "new.yaml"), "no usable run"),
        (("calibrate", "h100.json", "-o", "new.yaml"), "no observation of this plan"),
        (("calibrate", "empty.jsonl", "-o", "site.json"), "use one of .yaml"),
        (("calibrate", "empty.jsonl", "--runtime", "nothing"), "unknown runtime"),
        (("calibrate", "empty.jsonl", "--cluster", "nothing"), "nothing"),
    ],
)
def test_bad_input_is_one_message(arguments: tuple[str, ...], words: str, cli: Cli) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert words in result.err
    assert len([line for line in result.err.splitlines() if line.startswith("error:")]) == 1
    assert not Path("new.yaml").exists()


def test_a_site_of_other_constants_or_far_smaller_runs_is_named(cli: Cli, tmp_path: Path) -> None:
    save_site(sample_site(), tmp_path / "site.yaml")
    large = ["32x8xA100-SXM-80GB" if word == "2x8xA100-SXM-80GB" else word for word in INPUTS]
    large[large.index("64")] = "512"
    sizes = ("--tensor-parallel-size", "2", "--zero-stage", "1", *MEGATRON)
    result = cli("estimate", *large, *sizes, "--site", "site.yaml")
    assert result.code == 0
    assert "corrects other constants than this version has" in result.err
    assert "calibrated on at most 16 devices; this plan uses 256" in result.err

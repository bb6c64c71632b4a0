"""What people read: golden texts at 80 and 120 columns, made from documents with round numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_documents import (
    sample_cluster,
    sample_comparison,
    sample_estimate,
    sample_infeasible,
    sample_maximum,
    sample_objective,
    sample_plan,
    sample_recommendation,
    sample_scaling,
)

from costmodel.specs import Observation, RecomputeSpec
from hardware_profiles.loader import save_cluster
from meshwright import save_plan
from meshwright.cli.output import answer_console
from meshwright.cli.render.observation import render_comparison, render_observation, render_reference
from meshwright.running import loss_difference

INPUTS = ("--model", "m", "--cluster", "c", "--global-batch-size", "1024", "--sequence-length", "8192")
Cli = Callable[..., Any]
Golden = Callable[[str, str], None]


def widest(text: str) -> int:
    return max(len(line.rstrip()) for line in text.splitlines())


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner and the cost model answer with the sample documents."""
    monkeypatch.setattr("meshwright.planning.plan", lambda *_, **__: sample_recommendation())
    monkeypatch.setattr("meshwright.estimating.estimate", lambda *_, **__: sample_estimate())


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("columns", [80, 120])
def test_plan(columns: int, cli: Cli, golden: Golden) -> None:
    result = cli("plan", *INPUTS, "-o", "plan.json", columns=columns)
    assert result.code == 0
    golden(f"plan_{columns}.txt", result.out)
    body, _, commands = result.out.partition("\nNext\n")
    assert widest(body) <= columns
    assert "…" not in body  # nothing is cut
    assert all(line.startswith("  meshwright ") for line in commands.splitlines())
    assert result.err == "wrote the best plan to plan.json\nwarning: dropout 0.1 of the model is set to 0\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_recomputation_stage_by_stage_cuts_no_number(columns: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = sample_recommendation()
    other = answer.alternatives[0]
    stages = [stage.model_copy(update={"recompute": RecomputeSpec(kind="full", num_layers=n)}) for n in (14, 16, 15, 6)
              for stage in other.stages[:1]]  # fmt: skip
    changed = answer.model_copy(update={"alternatives": (other.model_copy(update={"stages": tuple(stages)}),)})
    monkeypatch.setattr("meshwright.planning.plan", lambda *_, **__: changed)
    result = cli("plan", *INPUTS, columns=columns)
    block = result.out[result.out.index("\nAlternatives") : result.out.index("\nTies")]
    assert "…" not in block
    assert widest(block) <= columns
    assert all(f"full:{count}" in block for count in (14, 16, 15, 6))


@pytest.mark.parametrize("columns", [80, 120])
def test_alternatives_show_over_how_many_devices_sequences_are_cut(
    columns: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = sample_recommendation()
    other = answer.alternatives[0]
    cut = other.parallel.model_copy(update={"context_parallel_size": 4, "context_parallel_method": "ring"})
    changed = answer.model_copy(update={"alternatives": (other.model_copy(update={"parallel": cut}),)})
    monkeypatch.setattr("meshwright.planning.plan", lambda *_, **__: changed)
    block = cli("plan", *INPUTS, columns=columns).out.split("\nAlternatives")[1].split("\nTies")[0]
    head, best, alternative = (line.split() for line in block.splitlines()[1:4])
    assert head[:3] == ["tp", "cp", "pp"]
    assert (best[2], alternative[2]) == ("-", "4")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("question", ["objective", "maximum"])
def test_questions(question: str, columns: int, cli: Cli, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    update = {"objective": sample_objective()} if question == "objective" else {"maximum": sample_maximum()}
    answer = sample_recommendation().model_copy(update=update)
    monkeypatch.setattr("meshwright.planning.plan", lambda *_, **__: answer)
    result = cli("plan", *INPUTS, columns=columns)
    assert result.code == 0
    block = result.out[result.out.index("\n" + question.capitalize()) : result.out.index("\nPlan  ")]
    golden(f"{question}_{columns}.txt", block)
    assert widest(block) <= columns
    assert "…" not in block


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("price", [None, 2.5])
def test_scale(price: float | None, columns: int, cli: Cli, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.scaling.scale", lambda *_, **__: sample_scaling(price))
    result = cli("scale", *INPUTS, columns=columns)
    assert result.code == 0
    golden(f"scale_{'priced_' if price else ''}{columns}.txt", result.out)
    assert widest(result.out) <= columns
    assert "…" not in result.out
    assert result.err == "warning: on 2, 4, 8 nodes: only nominal rates of InfiniBand NDR 400G are known\n"


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("columns", [80, 120])
def test_estimate(columns: int, cli: Cli, golden: Golden, tmp_path: Path) -> None:
    save_plan(sample_plan(), tmp_path / "plan.json")
    result = cli("estimate", "plan.json", "--tokens", "300B", columns=columns)
    assert result.code == 0
    golden(f"estimate_{columns}.txt", result.out)
    assert widest(result.out) <= columns


def test_estimate_with_memory_ignored(
    cli: Cli, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.estimating.estimate", lambda *_, **__: sample_estimate(fits=False))
    save_plan(sample_plan(), tmp_path / "plan.json")
    result = cli("estimate", "plan.json", "--ignore-memory", columns=80)
    assert result.code == 0
    golden("estimate_memory_ignored_80.txt", result.out)
    assert "memory ignored: this plan does not fit" in result.out


@pytest.mark.parametrize("columns", [80, 120])
def test_infeasible(columns: int, cli: Cli, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.planning.plan", lambda *_, **__: sample_infeasible())
    result = cli("plan", *INPUTS, "-o", "plan.json", columns=columns)
    assert result.code == 3
    golden(f"infeasible_{columns}.txt", result.out)
    assert not Path("plan.json").exists()


@pytest.mark.parametrize("columns", [80, 120])
def test_hardware_show(columns: int, cli: Cli, golden: Golden, tmp_path: Path) -> None:
    save_cluster(sample_cluster(), tmp_path / "sample.yaml")
    result = cli("hardware", "show", "sample.yaml", "--sources", columns=columns)
    assert result.code == 0
    golden(f"hardware_show_{columns}.txt", result.out)
    assert widest(result.out) <= columns
    # 990e12 / 3.35e12 = 295.5 FLOP/byte, and 60e12 / 3.35e12 = 17.9
    assert "296 FLOP/byte" in result.out
    assert "17.9 FLOP/byte" in result.out


def test_models_show(cli: Cli, golden: Golden) -> None:
    golden("models_show_80.txt", cli("models", "show", "llama-3-8b", columns=80).out)


def test_run_report(golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    console = answer_console()
    run = Observation(
        source="run of 4 processes", losses=tuple(3 - 0.1 * step for step in range(12)), step_time_seconds=0.5
    )
    single = run.model_copy(update={"losses": (*run.losses[:-1], run.losses[-1] + 0.001)})
    render_observation(console, run)
    render_comparison(console, sample_comparison())
    render_reference(console, run, single, loss_difference(run, single))
    golden("run_80.txt", capsys.readouterr().out)


@pytest.mark.parametrize("columns", [80, 120])
def test_lists_fit_their_width(columns: int, cli: Cli) -> None:
    for command in ("hardware", "models"):
        result = cli(command, "list", columns=columns)
        assert result.code == 0
        assert widest(result.out) <= columns
        assert "…" not in result.out


def test_a_plan_that_the_executor_would_refuse_is_offered_neither_to_run_nor_for_torchrun(cli: Cli) -> None:
    """V100 has no bf16, and fp16 is not run."""
    inputs = ("--model", "gpt2", "--cluster", "8xV100-SXM-32GB", "--global-batch-size", 8, "--sequence-length", 128)
    commands = cli("plan", *inputs, "-o", "plan.json").out.partition("\nNext\n")[2].split("\n")
    assert [line.split()[1] for line in commands if line] == ["explain", "export"]
    assert "--to yaml" in commands[1]

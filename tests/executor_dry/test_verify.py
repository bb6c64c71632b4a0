"""`verify`: one dry run of a small plan, right and with wrong formulas planted in the cost model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from dry_worlds import PIPELINE, SEQUENCE, make_plan, zero

from costmodel.collectives import Group
from costmodel.specs import Observation, Plan
from costmodel.specs.write_schemas import FOLDER
from costmodel.torch_communication import _Rank
from costmodel.torch_rank import TorchRank
from costmodel.traffic import Call
from meshwright import save_plan, verify
from meshwright.cli.app import main

PLAN = make_plan(**{**SEQUENCE, **PIPELINE, **zero(2), "num_micro_batches": 4})


@pytest.fixture(scope="module")
def observed() -> Observation:
    """What the executor does, in processes of their own."""
    return verify(PLAN)[0]


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch, observed: Observation) -> None:
    """The dry run's answer without running it again."""

    def answer(plan: Plan, *, progress: bool = False) -> Observation:
        del progress
        assert plan.plan_hash == observed.plan_hash
        return observed

    monkeypatch.setattr("executor.verify.dry_run", answer)


def test_an_observation_of_every_pipeline_rank(observed: Observation) -> None:
    assert [rank.rank for rank in observed.pipeline_ranks] == [0, 1]
    assert observed.world_size == 8
    assert observed.flops == 4 * sum(rank.flops for rank in observed.pipeline_ranks)
    for rank in observed.pipeline_ranks:
        assert sum(term.bytes for term in rank.terms) == rank.peak_bytes
        assert {entry.axis for entry in rank.communication} == {"pp", "dp_shard", "tp", "world"}


@pytest.mark.usefixtures("dry")
def test_communication_and_state_agree_to_the_byte_and_the_rest_within_tolerance() -> None:
    _, comparison = verify(PLAN)
    exact = [field for field in comparison.fields if field.tolerance == 0]
    assert len(exact) >= 2 * (3 + 2 * 6)
    assert [field.name for field in comparison.fields if not field.passed] == []
    assert comparison.passed


def _one_gather_more(self: _Rank) -> list[Call]:
    calls = ORIGINAL_DATA(self)
    first = calls[0]
    members: Group = first.members
    return [*calls, Call("dp_shard", "all_gather", 1, first.total_bytes / first.count, members)]


ORIGINAL_DATA = _Rank.data


def _forgotten_outputs(self: TorchRank) -> Any:
    return self.receive_buffers * 0


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a gather more": lambda patch: patch.setattr(_Rank, "data", _one_gather_more),
    "no norm gradients": lambda patch: patch.setattr(_Rank, "partial_gradients", lambda self: []),
    "half of the layers' traffic": lambda patch: patch.setattr(_Rank, "layers", lambda self: ORIGINAL_LAYERS(self)[:1]),
    "activations of a norm forgotten": lambda patch: patch.setattr(
        "costmodel.activation_memory._norm_bytes", lambda model, compute, tokens: 0 * tokens
    ),
    "attention counted whole": lambda patch: patch.setattr(
        "costmodel.layers.causal_scores", lambda length, window: float(length * length)
    ),
}
ORIGINAL_LAYERS = _Rank.layers


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_formula_fails(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    assert main(["verify", str(path)]) == 0
    FAULTS[fault](monkeypatch)
    capsys.readouterr()
    assert main(["verify", str(path), "--json"]) == 1
    comparison = json.loads(capsys.readouterr().out)
    jsonschema.validate(comparison, json.loads((FOLDER / "comparison.schema.json").read_text()))
    assert not comparison["passed"]


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    save_plan(PLAN, tmp_path / "plan.json")
    assert main(["verify", str(tmp_path / "plan.json"), "-o", str(tmp_path / "seen.json")]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= columns
    assert "…" not in text
    assert "everything within tolerance" in text
    assert "GFLOP, predicted" in text
    Observation.model_validate_json((tmp_path / "seen.json").read_text())


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("columns", [80, 120])
def test_a_figure_that_is_off_cuts_no_other(
    columns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    save_plan(PLAN, tmp_path / "plan.json")
    assert main(["verify", str(tmp_path / "plan.json"), "--memory-tolerance", "0"]) == 1
    text = capsys.readouterr().out
    assert "OFF" in text
    assert "NOT within tolerance" in text
    assert max(len(line) for line in text.splitlines()) <= columns
    assert "…" not in text


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(PLAN, tmp_path / "plan.json")
    assert main(["verify", str(tmp_path / "none.json")]) == 2
    assert main(["verify", str(tmp_path / "plan.json"), "--memory-tolerance", "2"]) == 2
    assert main(["verify", str(tmp_path / "plan.json"), "-o", str(tmp_path / "plan.json"), "--force"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_same_agrees_with_data_outermost() -> None:
    """Groups of ranks are told apart by the plan's own order, on stage 1 from the rank where it begins."""
    plan = make_plan(**{**SEQUENCE, **PIPELINE, **zero(2), "num_micro_batches": 4, "axis_order": "data_outermost"})
    seen, comparison = verify(plan)
    assert [rank.rank for rank in seen.pipeline_ranks] == [0, 1]
    for rank in seen.pipeline_ranks:
        assert {entry.axis for entry in rank.communication} == {"pp", "dp_shard", "tp", "world"}
    assert [field.name for field in comparison.fields if not field.passed] == []

"""The verbs as functions: the same semantics as the commands, on specs, names and files alike."""

from pathlib import Path

import pytest
from sample_documents import sample_plan

import meshwright
from benchmarks.explanations import check
from costmodel.specs import Observation, RecomputeSpec
from meshwright import (
    Infeasible,
    InputError,
    Plan,
    Recommendation,
    compare,
    estimate,
    explain,
    export,
    load_cluster,
    load_model,
    load_runtime,
    make_plan,
    plan,
    save_plan,
    training_duration,
)
from meshwright.running import loss_difference, require_torch

BATCH = {"global_batch_size": 64, "sequence_length": 2048}


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    found = plan("llama-3-8b", "8xH100-SXM", **BATCH, top=3, tokens="1T")
    assert isinstance(found, Recommendation)
    return found


def test_names_and_specs_give_the_same_answer(answer: Recommendation) -> None:
    same = plan(load_model("llama-3-8b"), load_cluster("8xH100-SXM"), runtime=load_runtime("torch"), **BATCH, top=3)
    assert isinstance(same, Recommendation)
    assert same.best.plan_hash == answer.best.plan_hash


def test_the_best_plan_can_be_stated_and_costs_the_same(answer: Recommendation) -> None:
    best = answer.best
    stated = make_plan(
        "llama-3-8b",
        "8xH100-SXM",
        sizes=best.parallel.model_dump(),
        recompute=best.stages[0].recompute.kind,
        **BATCH,
    )
    assert stated.plan_hash == best.plan_hash
    assert estimate(stated) == best.estimate == estimate(answer)


@pytest.mark.parametrize("schedule", ["looped_bfs", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v"])
def test_a_fixed_schedule_is_planned_estimated_explained_and_exported(schedule: str, tmp_path: Path) -> None:
    fix = {"pipeline_schedule": schedule, "pipeline_parallel_size": 2, "tensor_parallel_size": 4}
    found = plan("llama-3-8b", "8xH100-SXM", **BATCH, fix=fix, top=2)
    assert isinstance(found, Recommendation)
    assert found.best.parallel.pipeline_schedule == schedule
    assert estimate(found) == found.best.estimate
    assert explain(found)
    assert export(found.best, "torchrun", output=tmp_path / "run")


def test_recomputation_is_stated_stage_by_stage() -> None:
    sizes = {"pipeline_parallel_size": 2, "tensor_parallel_size": 4}
    stated = [
        make_plan("llama-3-8b", "8xH100-SXM", sizes=sizes, recompute=recompute, **BATCH)
        for recompute in (
            "full:2,none",
            ["full:2", "none"],
            [RecomputeSpec(kind="full", num_layers=2), RecomputeSpec()],
        )
    ]
    assert {made.plan_hash for made in stated} == {stated[0].plan_hash}
    assert [stage.num_recomputed_layers for stage in stated[0].stages] == [2, 0]
    with pytest.raises(InputError, match="recompute lists 3 stages; needed 2"):
        make_plan("llama-3-8b", "8xH100-SXM", sizes=sizes, recompute="full,none,full", **BATCH)
    with pytest.raises(InputError, match="num_layers 17 of its 16 layers"):
        make_plan("llama-3-8b", "8xH100-SXM", sizes=sizes, recompute="full:17", **BATCH)


def test_a_file_is_as_good_as_a_plan(answer: Recommendation, tmp_path: Path) -> None:
    path = save_plan(answer.best, tmp_path / "plan.yaml")
    assert estimate(path) == estimate(answer.best)
    assert explain(path, search=False) == explain(answer.best, search=False)


def test_alternatives_are_slower_and_top_counts_the_best(answer: Recommendation) -> None:
    steps = [found.estimate.step_time_seconds.value for found in (answer.best, *answer.alternatives) if found.estimate]
    assert len(steps) <= 3
    assert steps == sorted(steps)


def test_the_duration_is_steps_times_step_time(answer: Recommendation) -> None:
    """1e12 tokens / (64 x 2048) = 7,629,394.5, so 7,629,395 steps."""
    assert answer.duration is not None
    assert answer.best.estimate is not None
    assert answer.duration.num_steps == 7_629_395
    assert answer.duration.seconds == pytest.approx(7_629_395 * answer.best.estimate.step_time_seconds.value)
    assert answer.duration == training_duration(answer.best, 10**12)


def test_axes_take_python_values() -> None:
    fixed = {
        "tensor_parallel_size": 2,
        "sequence_parallel": True,
        "pipeline_parallel_size": 2,
        "layers_per_stage": (15, 17),
        "hierarchical_partition_size": None,
    }
    found = plan(
        "llama-3-8b", "8xH100-SXM", **BATCH, fix=fixed, allow={"zero_stage": [0, 1], "micro_batch_size": "1,2"}
    )
    assert isinstance(found, Recommendation)
    parallel = found.best.parallel
    assert (parallel.tensor_parallel_size, parallel.sequence_parallel, parallel.pipeline_parallel_size) == (2, True, 2)
    assert parallel.zero_stage in (0, 1)
    assert parallel.micro_batch_size in (1, 2)
    assert [stage.num_layers for stage in found.best.stages][-1] == 17


def test_infeasible_is_data() -> None:
    found = plan("llama-3-70b", "1xL4", global_batch_size=1, sequence_length=128)
    assert isinstance(found, Infeasible)
    assert found.nearest_miss is not None
    assert found.nearest_miss.needed_bytes > found.nearest_miss.capacity_bytes


def test_an_estimate_tells_whether_it_fits() -> None:
    big = make_plan("llama-3-70b", "1xL4", global_batch_size=1, sequence_length=128)
    made = estimate(big)
    assert (made.fits, made.memory_ignored) == (False, False)
    ignored = estimate(big, ignore_memory=True)
    assert (ignored.fits, ignored.memory_ignored) == (False, True)
    assert ignored.step_time_seconds == made.step_time_seconds


def test_a_stated_plan_must_keep_the_rules() -> None:
    with pytest.raises(InputError, match="zero_stage"):
        make_plan("llama-3-8b", "8xH100-SXM", sizes={"data_parallel_shard_size": 8}, **BATCH)


def test_a_plan_is_explained_beside_its_rivals(answer: Recommendation) -> None:
    other = answer.alternatives[-1]
    sentences = explain(other)
    assert sentences[-1].section == "search"
    assert other.estimate is not None
    assert answer.best.estimate is not None
    slower = other.estimate.step_time_seconds.value / answer.best.estimate.step_time_seconds.value - 1
    assert f"{slower:.1%} longer" in sentences[-1].sentence
    told = [sentence.model_dump(mode="json") for sentence in sentences]
    assert check(other.model_dump(mode="json"), told, search=answer.model_dump(mode="json")) == []
    again = explain(answer.best)
    assert {sentence.section for sentence in again} >= {"guide", "neighbours", "usual layouts", "certificate"}
    assert all(path.startswith("search:") for one in again for number in one.numbers for path in number.paths)


def test_an_answer_without_a_plan_is_explained_from_its_file(tmp_path: Path) -> None:
    found = plan("llama-3-8b", "1xRTX-4090", **BATCH)
    assert isinstance(found, Infeasible)
    assert found.guide is not None
    path = tmp_path / "answer.json"
    path.write_text(found.model_dump_json(), encoding="utf-8")
    told = explain(path)
    assert told == explain(found)
    assert any("'single device, the model does not fit'" in sentence.sentence for sentence in told)
    with pytest.raises(InputError, match="the answer that no plan is feasible"):
        estimate(path)


def test_dropout_in_the_config_is_said() -> None:
    found = plan("gpt2", "1xH100-SXM", global_batch_size=8, sequence_length=512)
    assert isinstance(found, Recommendation)
    assert any("dropout 0.1" in warning for warning in found.warnings)


def test_compare_holds_prediction_against_measurement() -> None:
    predicted = sample_plan(8.0).estimate
    assert predicted is not None
    comparison = compare(predicted, Observation(source="a run", step_time_seconds=10.0))
    assert comparison.fields[0].relative_error == pytest.approx(-0.2)


def test_loss_difference_is_the_largest() -> None:
    left, right = (Observation(source="x", losses=losses) for losses in ((3.0, 2.0, 1.0), (3.0, 2.25, 0.9)))
    assert loss_difference(left, right) == pytest.approx(0.25)
    with pytest.raises(InputError, match="found 3 steps, and 2"):
        loss_difference(left, Observation(source="x", losses=(1.0, 2.0)))


def test_without_the_run_extra_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'meshwright\[run\]'"):
        require_torch()


def test_provenance_names_the_version_and_the_command() -> None:
    made = make_plan("gpt2", "1xH100-SXM", global_batch_size=8, sequence_length=512, command="by hand")
    assert isinstance(made, Plan)
    assert made.provenance is not None
    assert (made.provenance.meshwright_version, made.provenance.command) == (meshwright.__version__, "by hand")


@pytest.mark.parametrize("top", [0, -1, 1.5, True, 10**9])
def test_top_is_a_sane_number(top: object) -> None:
    with pytest.raises(InputError, match="top is"):
        plan("gpt2", "1xH100-SXM", global_batch_size=8, sequence_length=512, top=top)  # type: ignore[arg-type]

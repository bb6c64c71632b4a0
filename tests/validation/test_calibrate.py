"""Calibration of known truths, of published runs it has not seen, and of bad input."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replay_rows import vary, write
from sample_documents import sample_site

import meshwright
from benchmarks import calibrate_site
from costmodel.site import apply_site
from costmodel.specs import InputError, Observation, RateCorrection, SiteProfile
from meshwright.validation.adapters.layout import adapt
from meshwright.validation.calibrate import calibrate_runs, predict_seconds
from meshwright.validation.run_rows import RunRow
from meshwright.validation.site_runs import MeasuredRun, gather_runs

ROOT = Path(__file__).parents[2]

LAYOUTS = (
    {"tp": 2, "pp": 2, "dp": 4},
    {"tp": 4, "pp": 1, "dp": 4},
    {"tp": 1, "pp": 4, "dp": 4},
    {"tp": 8, "pp": 1, "dp": 2},
)


def layout_row(number: int, **changes: Any) -> dict[str, Any]:
    sizes = {f"parallel__{name}": size for name, size in LAYOUTS[number % len(LAYOUTS)].items()}
    return vary(id=f"run-{number}", **sizes, **changes)


def predicted(row: dict[str, Any], site: SiteProfile | None = None) -> float:
    run = adapt(RunRow.model_validate(row))
    measured = MeasuredRun(id="", where="", plan=run.plan, runtime=run.runtime, seconds=1.0, allocated_bytes=None)
    return predict_seconds(measured, run.runtime if site is None else apply_site(run.runtime, site))


def timed(row: dict[str, Any], factor: float = 1.0, site: SiteProfile | None = None) -> dict[str, Any]:
    row["measured"] = {**row["measured"], "step_time_s": factor * predicted(row, site)}
    return row


def rows(count: int, factor: float = 1.1, **changes: Any) -> list[dict[str, Any]]:
    return [timed(layout_row(number, **changes), factor) for number in range(count)]


def test_runs_that_agree_with_the_model_correct_nothing(tmp_path: Path) -> None:
    answer = meshwright.calibrate(write(tmp_path / "runs.jsonl", *rows(4, 1.0)))
    assert answer.site.efficiency.value == pytest.approx(1.0, abs=1e-6)
    assert answer.site.launch.value == pytest.approx(1.0, abs=1e-6)
    assert answer.site.overlap.value == pytest.approx(0.0, abs=1e-6)
    assert answer.site.error_band < answer.band_before
    assert [run.id for run in answer.site.runs] == ["run-0", "run-1", "run-2", "run-3"]


def test_a_slower_site_is_found_and_predicted(tmp_path: Path) -> None:
    slow = sample_site().model_copy(update={"efficiency": RateCorrection(value=0.85)})
    slow = SiteProfile.model_validate(slow.model_dump() | {"launch": {}, "overlap": {}, "memory_margin": {}})
    path = write(tmp_path / "runs.jsonl", *(timed(layout_row(number), site=slow) for number in range(4)))
    answer = meshwright.calibrate(path)
    assert answer.before.mean > 0.1
    assert answer.after.mean < 0.05  # shrunk by the runtime's band of 10%: four runs are not believed whole
    assert 0.84 < answer.site.efficiency.value < 0.90
    again = meshwright.replay(path, site=answer.site).summary.pooled.mean_absolute_error
    assert again == pytest.approx(answer.after.mean, abs=1e-6)


def test_shrinkage_follows_the_band(tmp_path: Path) -> None:
    """The same relative miss moves a stack without a profile further than a well-known one."""
    told = {}
    for name in ("megatron", "unknown"):
        made = [timed(vary(id=name, runtime=name, parallel__recompute="none"), 1.06)]
        answer = meshwright.calibrate(write(tmp_path / f"{name}.jsonl", *made))
        told[name] = answer.after.mean / answer.before.mean
        assert answer.warnings == (
            "1 run to calibrate with: corrections stay close to the model's own; 3 to 10 runs are better",
        )
    assert told["unknown"] < told["megatron"] < 1


def test_memory_is_corrected_by_measured_peaks(tmp_path: Path) -> None:
    plain = meshwright.replay(write(tmp_path / "plain.jsonl", *rows(4))).rows
    made = rows(4)
    for row, told in zip(made, plain, strict=True):
        assert told.predicted is not None
        row["measured"]["peak_memory_gb"] = 1.2 * told.predicted.peak_memory_bytes / 2**30
    answer = meshwright.calibrate(write(tmp_path / "runs.jsonl", *made))
    assert answer.memory_runs == 4
    assert 1.05 < answer.site.memory_margin.value < 1.2
    assert meshwright.calibrate(write(tmp_path / "less.jsonl", *rows(4))).site.memory_margin.value == 1.0


def test_a_run_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", *rows(4))
    once, twice = meshwright.calibrate(path), meshwright.calibrate([path, path])
    assert twice.site == once.site
    assert [line.where for line in twice.left_out] == [f"runs.jsonl:{number}" for number in (1, 2, 3, 4)]


def test_a_peak_that_cannot_be_one_is_left_out_and_told(tmp_path: Path) -> None:
    """MiB in place of GiB: the run's time is used, its peak is not."""
    made = rows(3)
    for row in made:
        row["measured"]["peak_memory_gb"] = 40_000
    answer = meshwright.calibrate(write(tmp_path / "runs.jsonl", *made))
    assert (len(answer.site.runs), answer.memory_runs, answer.site.memory_margin.value) == (3, 0, 1.0)
    assert len(answer.warnings) == 3
    assert "runs.jsonl:1: measured peak memory 4e+04 GiB, predicted" in answer.warnings[0]


def test_observations_are_matched_to_their_plans(tmp_path: Path) -> None:
    files = []
    for number, tensor in enumerate((1, 2, 4)):
        plan = meshwright.make_plan(
            "llama-3-8b", "8xH100-SXM", global_batch_size=64, sequence_length=2048,
            sizes={"tensor_parallel_size": tensor, "zero_stage": 1 if tensor < 8 else 0},
        )  # fmt: skip
        seconds = 1.2 * meshwright.estimate(plan, ignore_memory=True).step_time_seconds.value
        observation = Observation(source="run", plan_hash=plan.plan_hash, step_time_seconds=seconds)
        files.append(meshwright.save_plan(plan, tmp_path / f"plan-{number}.json"))
        (tmp_path / f"run-{number}.json").write_text(observation.model_dump_json())
        files.append(tmp_path / f"run-{number}.json")
    answer = meshwright.calibrate(files)
    assert (answer.site.runtime, answer.site.device, len(answer.site.runs)) == ("torch", "H100-SXM", 3)
    assert answer.after.mean < 0.05 < answer.before.mean
    lonely = meshwright.calibrate(
        [*files, tmp_path / "run-0.json", *files[:1], write(tmp_path / "no.json", '{"source": "x"}')]
    )
    first = lonely.site.runs[0].id
    assert [line.reason for line in lonely.left_out] == [
        "the plan that it observed (plan_hash none) is not given; name its plan file too",
        f"the same run as {tmp_path / 'run-0.json'}: equal id, plan and step time",
    ]
    assert first == answer.site.runs[0].id
    assert lonely.site.efficiency == answer.site.efficiency


def test_broken_documents_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "plan.json").write_text('{"schema_version": 1}')
    (tmp_path / "nan.json").write_text('{"source": "x", "plan_hash": "y", "step_time_seconds": NaN}')
    paths = [
        write(tmp_path / "runs.jsonl", *rows(3)),
        *(tmp_path / name for name in ("broken.yaml", "plan.json", "nan.json")),
    ]
    answer = meshwright.calibrate(paths)
    assert len(answer.site.runs) == 3
    assert {Path(line.where).name for line in answer.left_out} == {"broken.yaml", "plan.json", "nan.json"}
    assert all(line.reason for line in answer.left_out)


def test_a_stated_cluster_replaces_what_rows_say(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", *rows(3))
    slow = meshwright.load_cluster("2x8xA100-SXM-80GB")
    level = slow.levels[1]
    link = level.link.model_copy(update={"measured_bytes_per_second": level.link.nominal_bytes_per_second / 40})
    slow = slow.model_copy(update={"levels": (slow.levels[0], level.model_copy(update={"link": link}))})
    assert meshwright.calibrate(path, cluster=slow).before.mean != meshwright.calibrate(path).before.mean
    with pytest.raises(InputError, match="used 16 devices; 8xA100-SXM-80GB has fewer"):
        meshwright.calibrate(path, cluster="8xA100-SXM-80GB")
    with pytest.raises(InputError, match="megatron on A100-SXM-80GB; the site is of"):
        meshwright.calibrate(path, cluster="2x8xH100-SXM")


def test_bad_lines_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    good = rows(3)
    path = write(
        tmp_path / "runs.jsonl",
        *good,
        vary(measured__step_time_s=0.0),
        vary(measured__step_time_s=-1.0),
        json.dumps(vary()).replace('"step_time_s": 10.0', '"step_time_s": NaN'),
        vary(measured={"oom": True}),
        vary(measured={}),
        vary(doubtful=True),
        vary(hardware__gpu="TPU-v9"),
        "{broken",
        vary(measured__step_time_s=10_000.0),
        timed(vary(runtime="nemo")),
    )
    answer = meshwright.calibrate(path)
    assert len(answer.site.runs) == 3
    reasons = {line.where.rpartition(":")[2]: line.reason for line in answer.left_out}
    assert set(reasons) == {str(number) for number in range(4, 14)}
    for number, words in {
        "4": "measured.step_time_s: found 0", "5": "found -1", "6": "finite", "7": "out of memory", "8": "no measured step time",
        "9": "doubtful", "10": "unknown accelerator", "11": "not JSON", "12": "check the unit",
        "13": "nemo on A100-SXM-80GB; the site is of megatron on A100-SXM-80GB",
    }.items():  # fmt: skip
        assert words in reasons[number]


def test_runtime_chooses_and_names_stacks(tmp_path: Path) -> None:
    mixed = write(tmp_path / "mixed.jsonl", timed(vary(id="a")), timed(vary(id="b", runtime="nemo")))
    with pytest.raises(InputError, match=r"several stacks .*1 of megatron .*1 of nemo .*choose one with --runtime"):
        meshwright.calibrate(mixed)
    assert meshwright.calibrate(mixed, runtime="nemo").site.runtime == "nemo"
    nameless = write(tmp_path / "own.jsonl", vary(runtime="our-own-stack"))
    runs, _ = gather_runs([nameless], runtime="nemo")
    assert runs[0].runtime.name == "nemo"
    with pytest.raises(InputError, match="unknown runtime 'colossal'"):
        meshwright.calibrate(mixed, runtime="colossal")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([vary(measured={"oom": True})], "no usable run to calibrate with .*out of memory"),
        ([vary(measured__step_time_s=1e6)], "no usable run .*check the unit"),
        (["nothing"], "no usable run .*not JSON"),
        ([], "no usable run"),
    ],
)
def test_nothing_usable_is_an_error(content: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        meshwright.calibrate(write(tmp_path / "runs.jsonl", *content))


def test_replay_predicts_only_runs_of_the_site(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", vary(), vary(runtime="nemo"))
    first, second = meshwright.replay(path, site=sample_site()).rows
    assert (first.status, second.status) == ("predicted", "unsupported")
    assert "the site file is of megatron on A100-SXM-80GB; found nemo" in second.reason
    with pytest.raises(InputError, match="site file"):
        meshwright.replay(write(tmp_path / "other.jsonl", vary(runtime="nemo")), site=sample_site())


def site_outcomes(names: tuple[str, ...], *, unknown: bool) -> list[calibrate_site.Outcome]:
    files = [calibrate_site.RUNS / f"{name}.jsonl" for name in names]
    return calibrate_site.evaluate(
        calibrate_site.load_sites(files, unknown=unknown), draws=(1, 3), seeds=2, held_out=10
    )


def test_published_runs_not_seen_do_not_get_worse_where_the_model_is_good() -> None:
    """InternEvo's and Megatron-LM's runs are predicted to a few percent: few others may not spoil them."""
    outcomes = [o for o in site_outcomes(("internevo", "megatron"), unknown=False) if "deepspeed" not in o.site]
    _, before, _, after, _ = calibrate_site.mean_errors(outcomes)
    assert before < 0.08
    assert after <= before + 0.01


def test_published_runs_not_seen_get_better_on_an_unknown_stack() -> None:
    """With the profile ``unknown``, OneFlow's, SimuMax's and Megatron-LM's runs are far off; one to three others help."""
    outcomes = site_outcomes(("oneflow_dlperf", "simumax_b200", "megatron"), unknown=True)
    _, before, _, after, covered = calibrate_site.mean_errors(outcomes)
    assert before > 0.12
    assert after < 0.8 * before
    assert math.isfinite(covered)


def test_calibration_takes_any_order_and_gives_the_same_answer() -> None:
    make: Callable[[dict[str, Any]], MeasuredRun] = lambda row: MeasuredRun(  # noqa: E731
        id=row["id"],
        where="",
        plan=adapt(RunRow.model_validate(row)).plan,
        runtime=adapt(RunRow.model_validate(row)).runtime,
        seconds=row["measured"]["step_time_s"],
        allocated_bytes=None,
    )
    runs = [make(row) for row in rows(3, 1.15)]
    one, other = calibrate_runs(runs).site, calibrate_runs(runs[::-1]).site
    assert one.efficiency.value == pytest.approx(other.efficiency.value, rel=1e-9)
    assert one.error_band == pytest.approx(other.error_band, rel=1e-9)

"""Configs of other launchers as plans, what would be better than they are, and the nearest plan that a target can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.specs import InputError, Plan, Recommendation, Rejection
from meshwright import estimate, export, make_plan
from meshwright.estimating import with_estimate
from meshwright.exporters import EXPORTERS, find_exporter, reject
from meshwright.exporters.imported import Imported, ModelFact
from meshwright.importing import import_plan, model_fact, read_config
from meshwright.improving import changes, improve
from meshwright.nearest import nearest_plan, precision_word

INPUTS = {"global_batch_size": 64, "sequence_length": 2048}


def plan_of(runtime: str = "megatron", *, recompute: str = "none", **sizes: object) -> Plan:
    return make_plan("llama-3-8b", "8xH100-SXM", runtime=runtime, sizes=sizes, recompute=recompute, **INPUTS)  # type: ignore[arg-type]


def test_a_folder_and_a_file_are_read_alike(tmp_path: Path) -> None:
    plan = plan_of(tensor_parallel_size=2, zero_stage=1)
    written = export(plan, "megatron", tmp_path / "out")
    assert isinstance(written, tuple)
    assert read_config(tmp_path / "out") == read_config(written[0]) == read_config(written[0], target="megatron")
    made = import_plan(written[0], plan.model, plan.cluster)
    assert made.plan_hash == plan.plan_hash


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("notes.txt", "nothing", "is no config that is known here; name its format with --format: .*megatron"),
        ("cut.sh", "torchrun x.py --micro-batch-size 1 --num-layers '3", "line 1 of the script opens '"),
        ("empty.sh", " \n", "the file is empty"),
        ("binary.sh", "\0", "binary data; needed a launch script"),
    ],
)
def test_files_that_are_no_config(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(tmp_path / name)


def test_an_unknown_format_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is an empty folder"):
        read_config(tmp_path)
    (tmp_path / "x").write_text("x")
    with pytest.raises(InputError, match=r"unknown format 'megatorn'.*megatron"):
        read_config(tmp_path / "x", target="megatorn")


def test_what_the_file_leaves_open_is_stated_beside_it() -> None:
    read = Imported(target="megatron", runtime="megatron", sizes={"tensor_parallel_size": 2}, num_devices=8)
    with pytest.raises(InputError, match="does not say global_batch_size; state it with --global-batch-size"):
        import_plan(read, "llama-3-8b", "8xH100-SXM")
    plan = import_plan(read, "llama-3-8b", "8xH100-SXM", **INPUTS)
    assert plan.parallel.data_parallel_size == 4


def test_fewer_processes_than_devices() -> None:
    sharded = Imported(target="x", runtime="megatron", sizes={"zero_stage": 1}, num_devices=4)
    plan = import_plan(sharded, "llama-3-8b", "8xH100-SXM", **INPUTS)
    assert (plan.num_devices_used, plan.parallel.data_parallel_shard_size) == (4, 4)
    odd = Imported(target="x", runtime="megatron", sizes={"tensor_parallel_size": 8}, num_devices=4)
    with pytest.raises(
        InputError, match=r"num_devices is 4, which tensor_parallel_size 8 \(8 together\) do not divide"
    ):
        import_plan(odd, "llama-3-8b", "8xH100-SXM", **INPUTS)


def test_an_error_says_what_the_file_calls_it() -> None:
    read = Imported(
        target="x", runtime="megatron", sizes={"tensor_parallel_size": 64}, keys={"tensor_parallel_size": "--tp"}
    )
    with pytest.raises(InputError, match=r"\(in the file tensor_parallel_size is --tp\)"):
        import_plan(read, "llama-3-8b", "8xH100-SXM", **INPUTS)


def test_facts_of_a_model() -> None:
    model = plan_of().model
    facts = {
        name: model_fact(model, name) for name in ("num_hidden_layers", "num_key_value_heads", "gated", "norm", "x")
    }
    assert facts == {"num_hidden_layers": 32, "num_key_value_heads": 8, "gated": True, "norm": "rmsnorm", "x": None}
    unknown = Imported(target="x", runtime="megatron", model=(ModelFact(key="--x", name="x", value=1),))
    assert import_plan(unknown, "llama-3-8b", "8xH100-SXM", **INPUTS).num_devices_used == 8


def test_the_better_plan_and_what_it_changes() -> None:
    given = plan_of(tensor_parallel_size=8, recompute="full")
    given = with_estimate(given, estimate(given))
    found = improve(given)
    assert isinstance(found.answer, Recommendation)
    best = found.answer.best
    assert best.estimate is not None
    assert given.estimate is not None
    assert (best.runtime, best.cluster, best.training) == (given.runtime, given.cluster, given.training)
    assert found.gained_seconds == given.estimate.step_time_seconds.value - best.estimate.step_time_seconds.value > 0
    assert found.saved_bytes == given.estimate.peak_memory_bytes.device - best.estimate.peak_memory_bytes.device
    told = {change.field: (change.given, change.better) for change in found.changes}
    assert told["tensor_parallel_size"] == ("8", str(best.parallel.tensor_parallel_size))
    assert told["recompute"][0] == "full"
    assert any(term.name == "recompute" for term in found.deciding)
    again = improve(best)
    assert (again.changes, again.gained_seconds, again.deciding) == ((), 0.0, ())


def test_changes_name_stages_in_runs() -> None:
    first = plan_of(pipeline_parallel_size=4, recompute="full:1")
    second = plan_of(pipeline_parallel_size=4)
    (change,) = changes(first, second)
    assert (change.field, change.given, change.better) == ("recompute", "4 x full:1", "4 x none")


def test_the_nearest_plan_keeps_what_goes() -> None:
    """A ZeRO-3 plan of our executor for Megatron: everything stays but the sharding of parameters."""
    plan = plan_of("torch", tensor_parallel_size=2, zero_stage=3, micro_batch_size=2)
    megatron = EXPORTERS["megatron"]
    assert isinstance(reject(megatron, plan), Rejection)
    nearest = nearest_plan(plan, megatron)
    assert nearest is not None
    made = nearest.plan
    assert made.runtime.name == "megatron"
    assert reject(megatron, made) is None
    assert (made.parallel.tensor_parallel_size, made.parallel.micro_batch_size) == (2, 2)
    assert {"tensor_parallel_size", "micro_batch_size"} <= set(nearest.kept)
    assert "--runtime megatron" in nearest.command
    assert "--fix tensor_parallel_size=2" in nearest.command


def test_nothing_is_near_a_target_of_all_runtimes() -> None:
    assert nearest_plan(plan_of(), find_exporter("json")) is None


def test_precision_in_the_words_of_another_runtime() -> None:
    from costmodel.runtimes.loader import load_runtime

    plan = plan_of()
    assert precision_word(plan, load_runtime("megatron")) == "bf16"
    assert precision_word(plan, load_runtime("torch")) == "bf16"  # other formats, the same kind


@pytest.mark.parametrize(
    ("runtime", "sizes"), [("torch", {"tensor_parallel_size": 2}), ("megatron", {"pipeline_parallel_size": 2})]
)
def test_the_nearest_plan_leaves_no_devices_idle(runtime: str, sizes: dict[str, int]) -> None:
    """Without its tensor or pipeline ranks the data-parallel size grows; half of the devices would be twice as slow."""
    plan = make_plan(
        "llama-3-8b", "8xH100-SXM", global_batch_size=64, sequence_length=4096, runtime=runtime,
        sizes={**sizes, "zero_stage": 1, "micro_batch_size": 1},
    )  # fmt: skip
    nearest = nearest_plan(plan, find_exporter("transformers"))
    assert nearest is not None
    assert nearest.plan.num_devices_used == 8
    assert nearest.plan.parallel.data_parallel_size == 8

"""What is asked of checkpoints and model folders before a process is started."""

from pathlib import Path
from typing import Any

import pytest
from tiny_plans import tiny_gpt2, tiny_model, tiny_plan

from costmodel.specs import InputError, OptimizerSpec, Plan, with_hash
from executor.checkpoint_record import (
    COMPLETE_FILE,
    RECORD_FILE,
    changes,
    check_same_training,
    claim,
    make_record,
    newest_checkpoint,
    read_record,
    step_folder,
)
from executor.outputs import Outputs, check_apart, outputs_of
from executor.worker import parse_arguments


def write_checkpoint(folder: Path, step: int, plan: Plan, *, complete: bool = True) -> Path:
    target = step_folder(folder, step)
    target.mkdir(parents=True)
    (target / RECORD_FILE).write_text(make_record(plan, step=step, seed=0, data="d").model_dump_json())
    if complete:
        (target / COMPLETE_FILE).touch()
    return target


def with_optimizer(plan: Plan, **fields: Any) -> Plan:
    training = plan.training.model_copy(update={"optimizer": OptimizerSpec(**fields)})
    return with_hash(plan.model_copy(update={"training": training}))


def test_the_newest_complete_step_counts(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "nowhere") is None
    assert newest_checkpoint(tmp_path) is None
    for step in (999_999, 1_000_000, 20):
        write_checkpoint(tmp_path, step, tiny_plan())
    write_checkpoint(tmp_path, 1_000_007, tiny_plan(), complete=False)
    (tmp_path / "step-12").mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "step-1000000"


def test_a_checkpoint_suits_every_plan_of_its_training(tmp_path: Path) -> None:
    record = read_record(write_checkpoint(tmp_path, 3, tiny_plan()))
    model = tiny_model(name="renamed", weights_path="/elsewhere", tokenizer_path="/elsewhere")
    other = tiny_plan(model=model, tensor_parallel_size=2, global_batch_size=4)
    check_same_training(tmp_path, record, other)
    check_same_training(tmp_path, record, with_optimizer(other, learning_rate=1.0))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (tiny_plan(model=tiny_model(vocab_size=512)), "another model: vocab_size 256 there, 512 in the plan"),
        (tiny_plan(model=tiny_gpt2()), "another model: model_type llama there, gpt2 in the plan"),
        (
            tiny_plan(model=tiny_model(hf_config={**tiny_model().hf_config, "rms_norm_eps": 1e-5})),
            "another model: rms_norm_eps 1e-06 there, 1e-05 in the plan",
        ),
        (
            with_optimizer(tiny_plan(), name="sgd"),
            "trained with the optimizer adamw, the plan says sgd without momentum",
        ),
        (tiny_plan(precision="fp32"), "trained with the parameter format fp64, the plan says fp32"),
    ],
    ids=["vocabulary", "family", "config", "optimizer", "format"],
)
def test_other_training_is_refused_with_what_differs(tmp_path: Path, plan: Plan, message: str) -> None:
    write_checkpoint(tmp_path, 3, tiny_plan())
    with pytest.raises(InputError, match=message):
        Outputs(checkpoint=tmp_path, resume=True).check(plan, steps=5)


def test_other_data_and_batches_are_told() -> None:
    plan = tiny_plan()
    record = make_record(plan, step=3, seed=0, data="d")
    assert changes(record, plan, seed=0, data="d") == []
    other = with_optimizer(tiny_plan(global_batch_size=4), learning_rate=0.5)
    assert changes(record, other, seed=1, data="e") == [
        "seed 0 becomes 1",
        "global_batch_size 8 becomes 4",
        f"learning_rate {plan.training.optimizer.learning_rate} becomes 0.5",
        "the data are others",
    ]


def test_a_record_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training\.json cannot be read: No such file"):
        read_record(tmp_path)
    (tmp_path / RECORD_FILE).write_text('{"step": 3}')
    with pytest.raises(InputError, match=r"training\.json is not a record of training"):
        read_record(tmp_path)


def test_steps_count_from_the_start(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, tiny_plan())
    resumed = Outputs(checkpoint=tmp_path, resume=True)
    resumed.check(tiny_plan(), steps=6)
    for steps in (4, 5):
        with pytest.raises(InputError, match=rf"is of step 5, and steps, which counts from the start, is {steps}"):
            resumed.check(tiny_plan(), steps=steps)
    saving = Outputs(checkpoint=tmp_path, resume=True, save_hf=tmp_path / "model")
    saving.check(tiny_plan(), steps=5)  # nothing is left to train: the model is saved
    with pytest.raises(InputError, match="is 4"):
        saving.check(tiny_plan(), steps=4)


def test_one_run_at_a_time_writes_checkpoints(tmp_path: Path) -> None:
    held = claim(tmp_path / "new" / "states")
    with pytest.raises(InputError, match=r"states is written by another run now; wait for its end"):
        claim(tmp_path / "new" / "states")
    other = claim(tmp_path / "others")
    assert held is not None
    assert other is not None
    held.close()  # as the end of its process does
    again = claim(tmp_path / "new" / "states")
    assert again is not None
    again.close()
    other.close()
    assert newest_checkpoint(tmp_path / "new" / "states") is None


def test_a_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, tiny_plan())
    with pytest.raises(InputError, match="holds step-000005 already; pass --resume to go on from it"):
        Outputs(checkpoint=tmp_path).check(tiny_plan(), steps=9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"resume": True}, "resume is set without checkpoint"),
        ({"checkpoint_every": 2}, "checkpoint_every is set without checkpoint"),
        ({"checkpoint": Path("new"), "checkpoint_every": 0}, "checkpoint_every is 0; needed: at least 1"),
        ({"save_hf_dtype": "bf16"}, "save_hf_dtype is set without save_hf"),
        (
            {"save_hf": Path("new"), "save_hf_dtype": "int8"},
            "save_hf_dtype is 'int8'; needed one of fp64, fp32, bf16, fp16",
        ),
        ({"save_hf": Path("file")}, "save_hf file needs a folder, but .*file is a file"),
        ({"checkpoint": Path("file/below")}, "checkpoint file/below needs a folder, but .*file is a file"),
        ({"checkpoint": Path("/proc/states")}, "checkpoint /proc/states cannot be written: "),  # even by root
        ({"save_hf": Path("/proc/model")}, "save_hf /proc/model cannot be written: "),
        ({"checkpoint": Path("c" * 300)}, "checkpoint c+ cannot be written: File name too long"),
        ({"save_hf": Path("full")}, "save_hf full exists already and is not empty; .* pass --force"),
        ({"save_hf": Path("start"), "force": True}, "save_hf start is the folder that the model is read from"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "start").mkdir()
    plan = tiny_plan(model=tiny_model(weights_path=str(tmp_path / "start")))
    with pytest.raises(InputError, match=message):
        Outputs(**given).check(plan, steps=5)


@pytest.mark.parametrize(
    ("save_hf", "checkpoint", "output", "message"),
    [
        ("a", None, "a", "output a is the same place as save_hf a"),
        ("a", None, "a/config.json", "output a/config.json is inside of save_hf a"),
        (None, "a.json", "a.json", "checkpoint a.json is the same place as output a.json"),
        ("a", "a", None, "checkpoint a is the same place as save_hf a"),
        ("a", "a/states", None, "checkpoint a/states is inside of save_hf a"),
        ("a/step-000001", "a", None, "save_hf a/step-000001 is inside of checkpoint a"),
        ("b/../a", "link", None, "checkpoint link is the same place as save_hf b/../a"),
    ],
)
def test_outputs_lie_apart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save_hf: str | None,
    checkpoint: str | None,
    output: str | None,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("a")
    folders = Outputs(save_hf=save_hf and Path(save_hf), checkpoint=checkpoint and Path(checkpoint))
    with pytest.raises(InputError, match=f"{message}; choose separate places"):
        check_apart(folders, output=output and Path(output))
    check_apart(
        Outputs(save_hf=Path("a"), checkpoint=Path("states")), output=Path("states/run.json"), data=Path("text")
    )


def test_a_model_is_not_saved_over_what_the_run_reads(tmp_path: Path) -> None:
    for name in ("plan", "data"):
        with pytest.raises(InputError, match=f"{name} .*/config.json is inside of save_hf"):
            check_apart(Outputs(save_hf=tmp_path, force=True), output=None, **{name: tmp_path / "config.json"})


def test_folders_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "old").touch()
    Outputs(save_hf=tmp_path / "a" / "b", checkpoint=tmp_path / "empty", resume=True).check(tiny_plan(), steps=5)
    Outputs(save_hf=tmp_path / "full", save_hf_dtype="bf16", force=True).check(tiny_plan(), steps=5)


def test_a_process_is_told_the_same(tmp_path: Path) -> None:
    asked = Outputs(
        save_hf=tmp_path / "a",
        save_hf_dtype="bf16",
        checkpoint=tmp_path / "b",
        checkpoint_every=7,
        resume=True,
        force=True,
    )
    required = ["--plan", "p", "--steps", "1", "--output", "o"]
    assert outputs_of(parse_arguments([*required, *asked.arguments()]), restarted=False) == asked
    assert outputs_of(parse_arguments([*required, *Outputs().arguments()]), restarted=True) == Outputs()
    again = outputs_of(parse_arguments([*required, "--checkpoint", "b"]), restarted=True)
    assert again == Outputs(checkpoint=Path("b"), resume=True)  # what torchrun starts again goes on

"""What a checkpoint says about itself beside its tensors, and whether a plan may go on from it. No torch here.

A checkpoint folder holds one folder per saved step::

    DIR/step-000010/training.json    this record
    DIR/step-000010/*.distcp         tensors, by torch.distributed.checkpoint
    DIR/step-000010/.metadata        written last: a step without it was interrupted and is passed over
    DIR/.lock                        empty; locked by the run that writes here
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from costmodel.specs import InputError, OptimizerSpec, Plan

RECORD_FILE = "training.json"
COMPLETE_FILE = ".metadata"
LOCK_FILE = ".lock"
_STEP = re.compile(r"step-(\d{6,12})", re.ASCII)
_NOT_THE_MODEL = {"name", "family", "weights_path", "tokenizer_path"}
_NOT_THE_ARCHITECTURE = {
    "_name_or_path", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "auto_map",
    "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
}  # fmt: skip


class Record(BaseModel):
    """The state of training that is no tensor.

    ``step``: optimizer steps done; the next batch is a function of it and of what stands here. ``data``: digest of the tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    step: int
    plan_hash: str
    model: dict[str, JsonValue]
    optimizer: OptimizerSpec
    parameter_format: str
    seed: int
    sequence_length: int
    global_batch_size: int
    data: str


def make_record(plan: Plan, *, step: int, seed: int, data: str) -> Record:
    """The record of a plan's training after ``step`` steps."""
    training = plan.training
    return Record(
        step=step,
        plan_hash=plan.plan_hash,
        model=plan.model.model_dump(mode="json", exclude=_NOT_THE_MODEL),
        optimizer=training.optimizer,
        parameter_format=training.precision.parameter,
        seed=seed,
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        data=data,
    )


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step stands."""
    return folder / f"step-{step:06d}"


def claim(folder: Path) -> IO[str] | None:
    """Keep other runs from writing into a folder of checkpoints: files of two runs in one step would be of neither.

    Returns:
        What holds the claim until it is closed or its process ends; None on a file system without locks.

    Raises:
        InputError: when another run has it.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK_FILE).open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InputError(
                f"checkpoint {folder} is written by another run now; wait for its end, or choose another folder"
            ) from None
        return file
    return None


def newest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint of the latest step in a folder; None when there is none, or no folder."""
    if not folder.is_dir():
        return None
    matches = ((_STEP.fullmatch(path.name), path) for path in folder.iterdir())
    steps = [(int(match[1]), path) for match, path in matches if match and (path / COMPLETE_FILE).is_file()]
    return max(steps)[1] if steps else None


def read_record(checkpoint: Path) -> Record:
    """The record of one step's folder.

    Raises:
        InputError: when it is missing or no record.
    """
    path = checkpoint / RECORD_FILE
    try:
        return Record.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"checkpoint {checkpoint}: {RECORD_FILE} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise InputError(f"checkpoint {checkpoint}: {RECORD_FILE} is not a record of training") from error


def check_same_training(checkpoint: Path, record: Record, plan: Plan) -> None:
    """Make sure that a plan trains what a checkpoint holds; how it is laid out may differ.

    Raises:
        InputError: for another model, optimizer or parameter format, with what differs.
    """
    own = make_record(plan, step=0, seed=0, data="")
    differences = list(_differences(record.model, own.model))
    if differences:
        found = "; ".join(differences[:3]) + ("; ..." if len(differences) > 3 else "")
        raise InputError(f"checkpoint {checkpoint} is of another model: {found}; needed: the model of the plan")
    for what, there, here in (
        ("optimizer", _state_kind(record.optimizer), _state_kind(own.optimizer)),
        ("parameter format", record.parameter_format, own.parameter_format),
    ):
        if there != here:
            raise InputError(
                f"checkpoint {checkpoint} was trained with the {what} {there}, the plan says {here}: plan with {there}, or "
                "start from its weights alone (save them with --save-hf)"
            )


def changes(record: Record, plan: Plan, *, seed: int, data: str) -> list[str]:
    """What the plan does differently from here on, in words: allowed, but the run is not the uninterrupted one."""
    own = make_record(plan, step=record.step, seed=seed, data=data)
    names = ("seed", "sequence_length", "global_batch_size")
    pairs = [(name, getattr(record, name), getattr(own, name)) for name in names]
    there, here = record.optimizer.model_dump(), own.optimizer.model_dump()
    pairs += [(name, there[name], here[name]) for name in there]
    found = [f"{name} {was} becomes {now}" for name, was, now in pairs if was != now]
    return found if record.data == data else [*found, "the data are others"]


def _state_kind(optimizer: OptimizerSpec) -> str:
    """Optimizers with the same state have the same kind."""
    if optimizer.name != "sgd":
        return optimizer.name
    return "sgd with momentum" if optimizer.momentum else "sgd without momentum"


def _differences(there: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    """Fields that differ. Of the two configs only what both state: defaults may be written out in one of them."""
    for name, value in here.items():
        if name != "hf_config" and there.get(name) != value:
            yield f"{name} {there.get(name)} there, {value} in the plan"
    config, own = there.get("hf_config") or {}, here["hf_config"]
    for name in sorted(config.keys() & own.keys() - _NOT_THE_ARCHITECTURE):
        if name not in here and config[name] != own[name]:
            yield f"{name} {config[name]} there, {own[name]} in the plan"

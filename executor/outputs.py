"""What a run leaves behind beside its observation, and what is asked of it before anything is started. No torch here."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from costmodel.specs import InputError, Plan
from executor.checkpoint_record import check_same_training, newest_checkpoint, read_record

SAVED_FORMATS = ("fp64", "fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Folders that a run writes.

    Attributes:
        save_hf: Hugging Face folder for the trained model; None saves none.
        save_hf_dtype: of `SAVED_FORMATS`; None keeps the format of the plan's parameters.
        checkpoint: folder for distributed checkpoints, one subfolder a step; None saves none.
        checkpoint_every: save after every so many steps too, not only after the last.
        resume: go on from the newest checkpoint, if there is one.
        force: save_hf may replace the model in an existing folder.
    """

    save_hf: Path | None = None
    save_hf_dtype: str | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    force: bool = False

    def check(self, plan: Plan, *, steps: int) -> None:
        """Make sure that everything can be written, and resumed, for a run up to ``steps`` steps.

        Raises:
            InputError: for options without the one they belong to, folders that cannot be used, a checkpoint of other training.
        """
        for name, given, needs, there in (
            ("save_hf_dtype", self.save_hf_dtype, "save_hf", self.save_hf),
            ("checkpoint_every", self.checkpoint_every, "checkpoint", self.checkpoint),
            ("resume", self.resume or None, "checkpoint", self.checkpoint),
        ):
            if given is not None and there is None:
                raise InputError(f"{name} is set without {needs}; give the folder as {needs}")
        if self.save_hf_dtype not in (None, *SAVED_FORMATS):
            raise InputError(f"save_hf_dtype is {self.save_hf_dtype!r}; needed one of {', '.join(SAVED_FORMATS)}")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise InputError(f"checkpoint_every is {self.checkpoint_every}; needed: at least 1")
        if self.save_hf is not None:
            check_model_folder(self.save_hf, (plan.model.weights_path, plan.model.tokenizer_path), force=self.force)
        if self.checkpoint is not None:
            self._check_checkpoint(self.checkpoint, plan, steps)

    def _check_checkpoint(self, folder: Path, plan: Plan, steps: int) -> None:
        check_folder("checkpoint", folder)
        newest = newest_checkpoint(folder)
        if newest is None:
            return
        if not self.resume:
            raise InputError(
                f"checkpoint {folder} holds {newest.name} already; pass --resume to go on from it, or choose another folder"
            )
        record = read_record(newest)
        check_same_training(newest, record, plan)
        if record.step > steps or (record.step == steps and self.save_hf is None):
            raise InputError(
                f"checkpoint {newest} is of step {record.step}, and steps, which counts from the start, is {steps}; needed: more"
                " steps than that, or as many to save the model with --save-hf"
            )

    def arguments(self) -> list[str]:
        """The options of `executor.worker` that say the same."""
        given = {
            "--save-hf": None if self.save_hf is None else self.save_hf.resolve(),
            "--save-hf-dtype": self.save_hf_dtype,
            "--checkpoint": None if self.checkpoint is None else self.checkpoint.resolve(),
            "--checkpoint-every": self.checkpoint_every,
        }
        words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        return [*words, *(["--resume"] if self.resume else []), *(["--force"] if self.force else [])]


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """The options that `Outputs.arguments` writes, but for ``--force``."""
    parser.add_argument("--save-hf", type=Path, help="Hugging Face folder for the trained model")
    parser.add_argument("--save-hf-dtype", choices=SAVED_FORMATS, help="its format; default: the plan's parameters'")
    parser.add_argument("--checkpoint", type=Path, help="folder for checkpoints, the same on every node")
    parser.add_argument("--checkpoint-every", type=int, help="steps between checkpoints; default: only after the last")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")


def outputs_of(options: argparse.Namespace, *, restarted: bool) -> Outputs:
    """What a process's command line asks for; one that torchrun started again goes on from its checkpoint."""
    return Outputs(
        save_hf=options.save_hf,
        save_hf_dtype=options.save_hf_dtype,
        checkpoint=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
        resume=options.resume or (restarted and options.checkpoint is not None),
        force=options.force,
    )


def check_apart(outputs: Outputs, *, output: Path | None, **inputs: Path | None) -> None:
    """Make sure that nothing is written where something else is, nor a model over what is read: ``force`` asks for neither.

    Args:
        outputs: the folders.
        output: file for the observation.
        inputs: files that the run reads, by their names.

    Raises:
        InputError: names both.
    """
    save_hf, checkpoint = ("save_hf", outputs.save_hf), ("checkpoint", outputs.checkpoint)
    observation = ("output", output)
    for (name, path), (other, place) in (
        (observation, save_hf),
        (save_hf, observation),
        (checkpoint, observation),
        (checkpoint, save_hf),
        (save_hf, checkpoint),
        *((each, save_hf) for each in inputs.items()),
    ):
        if path is not None and place is not None and path.resolve().is_relative_to(place.resolve()):
            where = "the same place as" if path.resolve() == place.resolve() else "inside of"
            raise InputError(f"{name} {path} is {where} {other} {place}; choose separate places")


def check_model_folder(folder: Path, read: Iterable[str | None], *, force: bool) -> None:
    """Make sure that a model may be written into a folder.

    Raises:
        InputError: when it is not empty (without ``force``), is one that the run reads, or cannot be written.
    """
    check_folder("save_hf", folder)
    if folder.is_dir() and any(source is not None and Path(source).resolve() == folder.resolve() for source in read):
        raise InputError(f"save_hf {folder} is the folder that the model is read from; choose another")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise InputError(
            f"save_hf {folder} exists already and is not empty; choose another folder, or pass --force to replace the model in it"
        )


def check_folder(name: str, folder: Path) -> None:
    """Make sure that a folder can be made or written to.

    Raises:
        InputError: when a file is in the way, or the folder or the first one above it that exists is not writable.
    """
    try:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise InputError(f"{name} {folder} needs a folder, but {existing} is a file")
        with tempfile.TemporaryFile(dir=existing):  # asks the file system itself; leaves no trace
            pass
    except PermissionError:
        raise InputError(f"{name} {folder}: no permission to write in the folder {existing}") from None
    except OSError as error:
        raise InputError(f"{name} {folder} cannot be written: {error.strerror or error}") from None

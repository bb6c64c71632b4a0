"""The batch of a torchtitan command: samples in 0.3.0, tokens after it."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.specs import InputError
from meshwright.exporters.torchtitan.command import Command
from meshwright.exporters.torchtitan.presets import Preset

_P, _T = "parallelism.", "training."


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``per_pass``: micro-batches that one pass through the pipeline takes. ``global_batch_size`` None: one pass of all ranks."""

    micro_batch_size: int
    per_pass: int
    sequence_length: int
    global_batch_size: int | None


def read_batch(command: Command, preset: Preset | None, *, piped: bool) -> Batch:
    """What the command says of its batch, with what its config function sets.

    Args:
        command: the command.
        preset: of its config function, None where that is unknown.
        piped: whether it has a pipeline.

    Raises:
        InputError: when a number is missing, or does not divide.
    """
    if f"{_T}num_tokens_per_microbatch_per_dp_rank" in command.flags or f"{_T}max_context_length" in command.flags:
        return _of_tokens(command, preset, piped=piped)
    length = _stated(command, f"{_T}seq_len", preset.seq_len if preset else None)
    local = _stated(command, f"{_T}local_batch_size", preset.local_batch_size if preset else None)
    micro = (command.whole(f"{_P}pipeline_parallel_microbatch_size") or 1) if piped else local
    if local % micro:
        raise InputError(
            f"--{_T}local_batch_size {local} is not divisible by --{_P}pipeline_parallel_microbatch_size {micro}; torchtitan "
            "needs whole micro-batches"
        )
    total = command.whole(f"{_T}global_batch_size", lowest=-1)
    return Batch(
        micro_batch_size=micro,
        per_pass=local // micro,
        sequence_length=length,
        global_batch_size=None if total in (None, -1) else total,
    )


def _of_tokens(command: Command, preset: Preset | None, *, piped: bool) -> Batch:
    length = _stated(command, f"{_T}max_context_length", preset.seq_len if preset else None)
    default = preset.seq_len * preset.local_batch_size if preset else None
    key = f"{_T}num_tokens_per_microbatch_per_dp_rank"
    tokens = _whole_sequences(key, _stated(command, key, default), length)
    key = f"{_T}num_tokens_per_train_step"
    total = command.whole(key, lowest=-1)
    return Batch(
        micro_batch_size=tokens,
        per_pass=(command.whole(f"{_P}num_pp_microbatches") or 1) if piped else 1,
        sequence_length=length,
        global_batch_size=None if total is None or total == -1 else _whole_sequences(key, total, length),
    )


def _stated(command: Command, key: str, default: int | None) -> int:
    value = command.whole(key)
    if value is None and default is None:
        raise InputError(f"--{key} is missing, and its config function is not one of torchtitan's; write it")
    found = default if value is None else value
    assert found is not None
    return found


def _whole_sequences(key: str, tokens: int, length: int) -> int:
    if tokens % length or tokens < length:
        raise InputError(f"--{key} {tokens} is not a multiple of --{_T}max_context_length {length}")
    return tokens // length

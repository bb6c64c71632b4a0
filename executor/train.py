"""The training loop of one process, with what it saves on the way."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from costmodel.specs import InputError, Observation, Plan
from executor.adapter import set_timeouts
from executor.checkpoint import load_checkpoint, save_checkpoint
from executor.checkpoint_record import changes, check_same_training, claim, make_record, newest_checkpoint, read_record
from executor.checks import notices
from executor.data import GlobalBatches
from executor.hf_models import DTYPES
from executor.observe import Recorder, gather, make_observation
from executor.outputs import Outputs
from executor.progress import ProgressReport
from executor.save_hf import save_hf
from executor.training_run import TrainingRun

FILE_TIMEOUT_SECONDS = 3600.0
"""How long a process waits for another's files: disks are slow, and a process that dies is noticed without this."""


class Saver:
    """Checkpoints and the exported model of one run. Its methods are called by all processes.

    Args:
        run: what is saved.
        outputs: where to and when.
        seed: of the data order.
        data: digest of the data.
    """

    def __init__(self, run: TrainingRun, outputs: Outputs, *, seed: int, data: str) -> None:
        self._run, self._outputs, self._seed, self._data = run, outputs, seed, data
        self._start: Path | None = None
        writes = outputs.checkpoint is not None or outputs.save_hf is not None
        timeout = timedelta(seconds=FILE_TIMEOUT_SECONDS)
        self._group = dist.new_group(backend="gloo", timeout=timeout) if writes else None
        folder = outputs.checkpoint if dist.get_rank() == 0 else None
        self._claim = None if folder is None else claim(folder)  # until this process ends

    def find_start(self, progress: ProgressReport) -> int:
        """Choose the newest checkpoint to go on from; the number of steps it has done, 0 without one.

        Raises:
            InputError: when it is of other training.
        """
        if not self._outputs.resume:
            return 0
        folder, plan = self._outputs.checkpoint, self._run.plan
        assert folder is not None  # `Outputs.check` saw to it
        found: list[Path | None] = [newest_checkpoint(folder)]
        dist.broadcast_object_list(found, src=0, group=self._group)
        self._start = found[0]
        if self._start is None:
            progress.notice(f"no complete checkpoint in {folder} yet: training from the start")
            return 0
        record = read_record(self._start)
        check_same_training(self._start, record, plan)
        progress.notice(f"going on after step {record.step}, from {self._start}")
        for change in changes(record, plan, seed=self._seed, data=self._data):
            progress.notice(f"different from here on: {change}")
        return record.step

    def load(self) -> None:
        """Load what `find_start` found."""
        if self._start is not None and self._group is not None:
            load_checkpoint(self._run, self._start, self._group)

    def after_step(self, done: int, *, last: bool) -> None:
        """Save a checkpoint if one is due after ``done`` steps."""
        outputs = self._outputs
        if outputs.checkpoint is None or self._group is None:
            return
        if last or (outputs.checkpoint_every and done % outputs.checkpoint_every == 0):
            record = make_record(self._run.plan, step=done, seed=self._seed, data=self._data)
            save_checkpoint(self._run, outputs.checkpoint, record, self._group)

    def finish(self) -> None:
        """Export the model if that is asked for."""
        outputs = self._outputs
        if outputs.save_hf is not None and self._group is not None:
            dtype = None if outputs.save_hf_dtype is None else DTYPES[outputs.save_hf_dtype]
            save_hf(self._run, outputs.save_hf, self._group, dtype=dtype, replace=outputs.force)


def train(
    plan: Plan,
    batches: GlobalBatches,
    outputs: Outputs,
    *,
    steps: int,
    device_kind: str,
    seed: int,
    data: str,
    timeout_seconds: float,
    progress: bool,
) -> Observation:
    """Train up to ``steps`` steps inside the process group that exists; the observation, the same on every process.

    Args:
        plan: checked.
        batches: of its data.
        outputs: checked.
        steps: counted from the start of training, also when it is resumed.
        device_kind: cpu or cuda.
        seed: of weights and data order.
        data: digest of the data.
        timeout_seconds: how long a process waits for another.
        progress: show it, on rank 0.

    Raises:
        InputError: when the processes have different data, or the checkpoint is of other training.
    """
    # A schedule that lost a peer logs itself step by step on every rank; the failure is told once, by the launcher.
    logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
    device = torch.device("cuda", torch.cuda.current_device()) if device_kind == "cuda" else torch.device("cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    _check_same_data(data)
    run = TrainingRun(plan, device=device, seed=seed)
    set_timeouts(timeout_seconds)
    saver = Saver(run, outputs, seed=seed, data=data)
    share = {"rank": run.data_parallel_rank, "size": run.data_parallel_size}
    tokens_per_step = plan.training.global_batch_size * plan.training.sequence_length
    with ProgressReport(steps, enabled=rank == 0 and progress) as report:
        for notice in notices(plan):
            report.notice(notice)
        start = saver.find_start(report)
        recorder = Recorder(run, device, rank, steps - start)  # looks at the state before anything is loaded
        saver.load()
        for number in range(start, steps):
            result = recorder.step(number - start, batches.batch(number, **share).to(device))
            speed = tokens_per_step / recorder.record.seconds[-1]
            report.step(number + 1, loss=result.loss, tokens_per_second=speed)
            saver.after_step(number + 1, last=number + 1 == steps)
        saver.finish()
    records = gather(recorder.record)
    dist.barrier()
    dist.destroy_process_group()
    return make_observation(plan, records, source=f"run of {world} processes on {plan.cluster.device.name}")


def _check_same_data(digest: str) -> None:
    """Nodes read their own copy of the data; training on different ones would be silently wrong."""
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise InputError(f"rank {rank} reads other data than rank 0: every node needs the same text and tokenizer")

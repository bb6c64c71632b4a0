"""What one process measures while it trains, and how the processes' measurements become one Observation.

Of the steps of a run the first is a warm-up (sharding propagation, allocator), the second is watched (state at
the three instants of docs/architecture.md, peak of live tensor storages) and the others are timed and nothing
else. A run of one step watches that step; a run of fewer than three has no timed step.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from costmodel.specs import Instant, Observation, Plan, RankMemory, RankPeak
from executor.storage import resident_bytes, storage_bytes, track_peak
from executor.training_run import StepResult, TrainingRun

WATCHED_STEP = 1


@dataclass(slots=True)
class RankRecord:
    """The measurements of one process. ``seconds[i]`` is the time of step i, of every step."""

    rank: int
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[RankMemory] = field(default_factory=list)
    peak_bytes: int | None = None
    resident_bytes: int | None = None


def state_snapshot(run: TrainingRun, *, memoryless: bool = False) -> tuple[int, int, int]:
    """Bytes of distinct storages under this process's parameters, gradients and optimizer state."""
    return (
        storage_bytes(run.parameter_tensors(), memoryless=memoryless),
        storage_bytes(run.gradient_tensors(), memoryless=memoryless),
        storage_bytes(run.optimizer_state_tensors(), memoryless=memoryless),
    )


class Recorder:
    """Runs steps and keeps what this process sees.

    Args:
        run: the training run; its hooks are used during the watched step.
        device: where its tensors live.
        rank: global rank of this process.
        num_steps: steps that the run will have.
    """

    def __init__(self, run: TrainingRun, device: torch.device, rank: int, num_steps: int) -> None:
        self._run = run
        self._device = device
        self._watched = min(WATCHED_STEP, num_steps - 1)
        self.record = RankRecord(rank)
        self._snapshot("after_init")

    def step(self, number: int, batch: torch.Tensor) -> StepResult:
        """Train on one batch, int64 [sequences of this rank, sequence_length + 1]."""
        self._synchronise()
        start = time.perf_counter()
        result = self._watch(batch) if number == self._watched else self._run.step(batch)
        self._synchronise()
        self.record.seconds.append(time.perf_counter() - start)
        self.record.losses.append(result.loss)
        self.record.resident_bytes = resident_bytes()
        return result

    def _watch(self, batch: torch.Tensor) -> StepResult:
        self._run.before_reduction = lambda: self._snapshot("before_reduction")
        self._run.after_optimizer = lambda: self._snapshot("after_step")
        try:
            with track_peak(self._device) as meter:
                result = self._run.step(batch)
        finally:
            self._run.before_reduction = self._run.after_optimizer = None
        self.record.peak_bytes = meter.peak_bytes
        return result

    def _snapshot(self, instant: Instant) -> None:
        parameters, gradients, optimizer_state = state_snapshot(self._run)
        self.record.memory.append(
            RankMemory(
                rank=self.record.rank,
                instant=instant,
                parameters=parameters,
                gradients=gradients,
                optimizer_state=optimizer_state,
            )
        )

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def gather(record: RankRecord) -> list[RankRecord]:
    """The records of all processes, by rank, on every process."""
    records: list[RankRecord | None] = [None] * dist.get_world_size()
    dist.all_gather_object(records, record)
    return [found for found in records if found is not None]


def make_observation(plan: Plan, records: list[RankRecord], *, source: str) -> Observation:
    """One Observation of a run: a step takes as long as on its slowest process."""
    num_steps = len(records[0].losses)
    slowest = [max(record.seconds[number] for record in records) for number in range(num_steps)]
    timed = slowest[WATCHED_STEP + 1 :]
    step_time = statistics.median(timed) if timed else None
    training = plan.training
    tokens = training.global_batch_size * training.sequence_length
    return Observation(
        source=source,
        plan_hash=plan.plan_hash,
        world_size=len(records),
        step_time_seconds=step_time,
        step_times_seconds=tuple(timed),
        tokens_per_second=tokens / step_time if step_time else None,
        losses=tuple(records[0].losses),
        memory=tuple(memory for record in records for memory in record.memory),
        peaks=tuple(
            RankPeak(rank=record.rank, tensor_bytes=record.peak_bytes, resident_bytes=record.resident_bytes)
            for record in records
            if record.peak_bytes is not None
        ),
    )

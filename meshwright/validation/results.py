"""What `replay` answers: every row beside its prediction, and the errors over them."""

from __future__ import annotations

from typing import Literal

from costmodel.specs import Spec

Status = Literal["predicted", "unsupported"]


class Predicted(Spec):
    """The prediction; ``peak_memory_bytes`` counts tensors allocated, ``fits`` all that the device holds."""

    step_time_seconds: float
    step_time_low_seconds: float
    step_time_high_seconds: float
    tokens_per_second_per_device: float
    peak_memory_bytes: int
    reserved_memory_bytes: int
    fits: bool


class Measured(Spec):
    """The measurement; None where the row has none. ``device_memory_bytes``: what the device holds in all."""

    step_time_seconds: float | None
    tokens_per_second_per_device: float | None
    peak_memory_bytes: int | None
    reserved_memory_bytes: int | None
    device_memory_bytes: int | None
    oom: bool | None


class ReplayRow(Spec):
    """One run.

    Attributes:
        where: ``file:line``.
        description: model, devices and layout in one line.
        device: catalogue name of the accelerator; None when the run is not predicted.
        expected: dense, complete and not doubtful, so that a prediction is owed.
        judged: expected and predicted, so that it enters the errors.
        derived: the measured step time was worked out from TFLOP/s by the source's formula, not timed.
        relative_error: (predicted - measured) / measured step time.
        device_peak_bytes: predicted bytes on the fullest device with allocator, contexts and communicators; None also where
            the run saves memory in a way that is not modelled.
        device_capacity_bytes: what that device holds; a run fits when the peak is not larger.
        naive_step_time_seconds: what `baseline.naive_step_time_seconds` says of the same run.
        flags, notes: what the file says about the row.
    """

    id: str
    dataset: str
    runtime: str
    where: str
    description: str
    rank_group: str | None
    device: str | None
    status: Status
    reason: str
    expected: bool
    judged: bool
    derived: bool
    relative_error: float | None
    predicted: Predicted | None
    measured: Measured
    device_peak_bytes: int | None
    device_capacity_bytes: int | None
    naive_step_time_seconds: float | None
    flags: tuple[str, ...]
    notes: str


class BadLine(Spec):
    """A line that is no run."""

    where: str
    reason: str


class ReplayErrors(Spec):
    """Errors over a set of judged rows; a figure is None where no row can tell it.

    Relative errors are (predicted - measured) / measured, of step times unless named otherwise. ``bias`` is the median of
    the signed ones. ``interval_mean_width`` is (high - low) / predicted. Pairs and regrets compare rows of one rank group;
    ``pair_order`` counts every pair once, ``pair_order_of_groups`` every rank group; ``regret_top3`` is what measuring the
    best three predicted leaves to lose; ``layouts_...`` are the same figures with repeats of one layout
    merged. OOM and fits recall are over rank groups that hold both.
    """

    rows: int
    median_absolute_error: float | None
    mean_absolute_error: float | None
    bias: float | None
    within_20_percent: float | None
    interval_coverage: float | None
    interval_mean_width: float | None
    pairs: int
    pair_order: float | None
    groups: int
    pair_order_of_groups: float | None
    regret_top1: float | None
    regret_top3: float | None
    layouts_pair_order: float | None
    layouts_regret_top1: float | None
    memory_rows: int
    memory_mean_absolute_error: float | None
    oom_rows: int
    oom_recall: float | None
    fits_rows: int
    fits_recall: float | None


class MacroErrors(Spec):
    """Each figure's mean over the datasets that have it, every dataset counting once."""

    datasets: int
    median_absolute_error: float | None
    mean_absolute_error: float | None
    bias: float | None
    within_20_percent: float | None
    interval_coverage: float | None
    interval_mean_width: float | None
    pair_order: float | None
    pair_order_of_groups: float | None
    regret_top1: float | None
    regret_top3: float | None
    layouts_pair_order: float | None
    layouts_regret_top1: float | None
    memory_mean_absolute_error: float | None
    oom_recall: float | None
    fits_recall: float | None


class Reason(Spec):
    """Why rows are not predicted: how many, how many of them are expected rows, the first of them, and all."""

    reason: str
    rows: int
    expected: int
    first: str
    where: tuple[str, ...]


class ReplaySummary(Spec):
    """Counts and errors.

    ``coverage`` is the predicted share of the expected rows: dense, complete and not doubtful. ``pooled_without_derived``
    leaves out the rows whose step time was worked out from TFLOP/s. ``unknown_accelerators``: rows on a device without a
    profile; they are among the unsupported.
    """

    rows: int
    predicted: int
    unsupported: int
    expected: int
    coverage: float | None
    pooled: ReplayErrors
    pooled_without_derived: ReplayErrors
    macro: MacroErrors
    datasets: dict[str, ReplayErrors]
    runtimes: dict[str, ReplayErrors]
    reasons: tuple[Reason, ...]
    bad_lines: tuple[BadLine, ...]
    unknown_accelerators: tuple[BadLine, ...]


class Replay(Spec):
    """The answer of `meshwright.replay`."""

    summary: ReplaySummary
    rows: tuple[ReplayRow, ...]

"""What every script opens with, and every manifest holds: target version, plan, prediction, the commands that made it."""

from __future__ import annotations

from meshwright import units
from meshwright.exporters.base import Job
from meshwright.version import __version__


def comment(lines: list[str]) -> str:
    """The lines as comments of a shell script or YAML file; a line break in one of them ends nothing."""
    return "\n".join(f"# {' '.join(line.split())}" for line in lines)


def header(job: Job, target: str) -> list[str]:
    """Facts of one export, a line each.

    Args:
        job: the export.
        target: what reads the files, with its version ("torchrun and torch 2.13.0").
    """
    plan = job.plan
    lines = [
        f"{plan.model.name} on {plan.cluster.name}, for {target} (meshwright {__version__})",
        f"plan {plan.plan_hash}",
    ]
    if (predicted := prediction(job)) is not None:
        lines.append(f"predicted: {predicted}")
    if plan.provenance is not None and plan.provenance.command:
        lines.append(f"made by: {plan.provenance.command}")
    if job.command:
        lines.append(f"written by: {job.command}")
    return [*lines, *(f"warning: {loss.field}: {loss.message}" for loss in job.losses)]


def prediction(job: Job) -> str | None:
    """Step time with its interval and peak memory, or None where the plan has no estimate."""
    made = job.plan.estimate
    if made is None:
        return None
    interval, peak = made.step_time_seconds, made.peak_memory_bytes
    low, high = units.seconds(interval.low), units.seconds(interval.high)
    return (
        f"step time {units.seconds(interval.value)} ({interval.level:.0%} interval {low} to {high}), "
        f"peak memory {units.memory(peak.device)} of {units.memory(made.memory_capacity_bytes)} a device"
    )

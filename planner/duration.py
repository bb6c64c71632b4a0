"""Time to train on a number of tokens."""

from __future__ import annotations

from costmodel.specs import Plan, TrainingDuration
from planner.evaluation import step_seconds


def training_duration(plan: Plan, total_tokens: int) -> TrainingDuration:
    """Steps, seconds and device hours for ``total_tokens`` with an estimated plan.

    The last step is counted whole. Idle devices are reserved all the same, so all devices of the cluster count.

    Args:
        plan: a plan with an estimate.
        total_tokens: tokens to train on, at least 1.
    """
    tokens_per_step = plan.training.global_batch_size * plan.training.sequence_length
    num_steps = -(-total_tokens // tokens_per_step)
    seconds = num_steps * step_seconds(plan)
    return TrainingDuration(
        total_tokens=total_tokens,
        num_steps=num_steps,
        seconds=seconds,
        device_hours=seconds * plan.cluster.num_devices / 3600,
    )

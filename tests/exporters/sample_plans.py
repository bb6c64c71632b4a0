"""A plan that each target can express, made up with round numbers, and options of sbatch."""

from __future__ import annotations

from typing import Any

from sample_documents import sample_plan

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Plan, with_hash
from meshwright.exporters import EXPORTERS, TARGETS, Loss

# Long options of sbatch, https://slurm.schedmd.com/sbatch.html, as far as a job of ours could use them.
_OPTIONS = """
    account array begin chdir comment constraint container cpu-bind cpus-per-gpu cpus-per-task dependency distribution error
    exclude exclusive export gpu-bind gpus gpus-per-node gpus-per-task gres hint hold input job-name licenses mail-type
    mail-user mem mem-per-cpu mem-per-gpu network no-requeue nodelist nodes ntasks ntasks-per-gpu ntasks-per-node open-mode
    output partition qos requeue reservation signal switches threads-per-core time time-min wait-all-nodes wckey
"""
SBATCH_OPTIONS = frozenset(_OPTIONS.split())


# What the runtime of a target lacks, instead of the sample's own.
_ONE_STAGE: dict[str, Any] = {
    "tensor_parallel_size": 1, "sequence_parallel": False, "loss_parallel": False, "pipeline_parallel_size": 1,
    "pipeline_schedule": "none", "data_parallel_shard_size": 64, "num_micro_batches": 16, "zero_stage": 3, "recompute": "full",
}  # fmt: skip
_WITHIN: dict[str, dict[str, Any]] = {
    "torchtitan": {"zero_stage": 2, "recompute": "full"},
    "deepspeed": _ONE_STAGE,
    "accelerate": _ONE_STAGE,
    "transformers": _ONE_STAGE,
}


def plan_for(target: str) -> Plan:
    """A plan that the target takes."""
    if target not in EXPORTERS:  # slurm, around the launcher of the plan's runtime
        return sample_plan()
    runtimes = EXPORTERS[target].runtimes
    if runtimes is None:
        return sample_plan()
    plan = sample_plan(runtime=runtimes[0], **_WITHIN.get(target, {}))
    precision = load_runtime(runtimes[0]).precisions["bf16"]
    return with_hash(plan.model_copy(update={"training": plan.training.model_copy(update={"precision": precision})}))


def neutral(plan: Plan, losses: tuple[Loss, ...] = ()) -> dict[str, object]:
    """What identifies a plan, without the fields that its target said it holds otherwise.

    One layer of a stage of one layer is all of them, so recomputation is told by the number of layers.
    """
    content = plan.model_dump(exclude={"plan_hash", "estimate", "provenance", "site"})
    for written, stage in zip(content["stages"], plan.stages, strict=True):
        written["recompute"] = (stage.recompute.kind, stage.num_recomputed_layers)
    for loss in losses:
        *path, last = loss.field.split(".")
        holder = content
        for name in path:
            holder = holder[name]
        for one in holder if isinstance(holder, tuple | list) else (holder,):
            one.pop(last)
    return content


__all__ = ["SBATCH_OPTIONS", "TARGETS", "neutral", "plan_for"]

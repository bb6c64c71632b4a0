"""transformers' Trainer, both ways: a JSON file of TrainingArguments with a script for torchrun, and such JSON read back.

The file holds everything: FSDP2 in fsdp_config, or DeepSpeed's own configuration in ``deepspeed``.
"""

from __future__ import annotations

from typing import Any

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Plan, Rejection
from meshwright.exporters.accelerate import script_losses
from meshwright.exporters.base import Exporter, Job, Loss
from meshwright.exporters.deepspeed import document as deepspeed
from meshwright.exporters.environment import environment
from meshwright.exporters.fsdp2 import write_fsdp
from meshwright.exporters.manifest import manifest
from meshwright.exporters.script import Setting, opening, torchrun, unequal_nodes
from meshwright.exporters.transformers.read import read, recognises
from meshwright.files import dump_document

CONFIG = "training_args.json"
_CHECKS = """\
[ -n "$TRAIN_SCRIPT" ] || fail "TRAIN_SCRIPT is not set; needed your script, which reads TrainingArguments from JSON"
[ -f "$TRAIN_SCRIPT" ] || fail "the training script $TRAIN_SCRIPT does not exist"
"""
_RUN = """\
export SEQUENCE_LENGTH
# Options of this script are the training script's own; HfArgumentParser.parse_json_file reads the file.
exec torchrun "${{launch[@]}}" "$TRAIN_SCRIPT" "$HERE"/{config} "$@"
"""


def _is_deepspeed(plan: Plan) -> bool:
    return plan.runtime.name == "deepspeed"


def _render(job: Job) -> dict[str, str]:
    plan, target = job.plan, f"transformers {job.version}"
    length = str(plan.training.sequence_length)
    settings = (
        Setting(name="TRAIN_SCRIPT", value="", what="your training script; it gets the JSON file of TrainingArguments"),
        Setting(name="SEQUENCE_LENGTH", value=length, what="tokens of a sequence, for your script"),
    )
    fsdp = plan.parallel.zero_stage > 0 and not _is_deepspeed(plan)
    script = (
        opening(job, target=target, settings=settings, wholes=(("SEQUENCE_LENGTH", 1),), checks=_CHECKS)
        + torchrun(
            job,
            variables=environment(plan, in_order=False, fsdp=fsdp),
            install="install transformers and accelerate, and activate their environment",
        )
        + _RUN.format(config=CONFIG)
    )
    return {
        job.name: script,
        CONFIG: dump_document(_config(plan), suffix=".json"),
        **manifest(job, "transformers"),
    }


def _config(plan: Plan) -> dict[str, Any]:
    parallel, optimizer = plan.parallel, plan.training.optimizer
    word, full = _precision_word(plan), plan.stages[0].recompute.kind == "full"
    content: dict[str, Any] = {
        "output_dir": "output",
        "per_device_train_batch_size": parallel.micro_batch_size,
        "gradient_accumulation_steps": parallel.num_micro_batches,
        "bf16": word == "bf16",
        "fp16": word == "fp16",
        "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.epsilon,
        "max_grad_norm": optimizer.max_grad_norm or 0.0,
        "seed": plan.training.seed,
    }
    if _is_deepspeed(plan):
        return content | {"gradient_checkpointing": full, "deepspeed": deepspeed.config(plan)}
    if parallel.zero_stage == 0:
        return content | {"gradient_checkpointing": full}
    return content | {"fsdp": True, "fsdp_config": write_fsdp(plan)}


def _precision_word(plan: Plan) -> str | None:
    offered = load_runtime(plan.runtime.name).precisions
    return next((word for word, formats in offered.items() if formats == plan.training.precision), None)


def _refuse(plan: Plan) -> Rejection | None:
    if (uneven := unequal_nodes(plan, "transformers")) is not None:
        return uneven
    if _is_deepspeed(plan):
        if plan.training.optimizer.name != "adamw":
            return Rejection(
                rule="export_transformers_optimizer",
                message=f"the Trainer's arguments are compared with AdamW's; found {plan.training.optimizer.name}",
                numbers={"optimizer": plan.training.optimizer.name},
                fix="plan with AdamW, or export to deepspeed",
            )
        return deepspeed.refuse(plan, "transformers")
    if _precision_word(plan) is None:
        compute = plan.training.precision.compute
        return Rejection(
            rule="export_transformers_precision",
            message=f"TrainingArguments say bf16, fp16 or neither, in the runtime's formats; found others around {compute}",
            numbers={"compute": compute},
            fix="plan with --precision bf16",
        )
    return None


def _losses(plan: Plan) -> tuple[Loss, ...]:
    found = script_losses(plan, optimizer=plan.training.optimizer)
    return tuple(loss for loss in found if loss.field != "training.seed")


TRANSFORMERS = Exporter(
    name="transformers",
    target="a JSON file of TrainingArguments and a script for torchrun",
    tested_versions=("5.24.0",),
    fields=frozenset(
        {
            "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage", "hierarchical_partition_size",
            "micro_batch_size", "num_micro_batches",
        }
    ),
    runtimes=("transformers", "deepspeed"),
    render=_render,
    reject=_refuse,
    losses=_losses,
    recognises=recognises,
    read=read,
)  # fmt: skip

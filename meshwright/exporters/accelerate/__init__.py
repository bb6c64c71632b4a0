"""accelerate, both ways: its YAML with a script for its launcher, and such YAML read back.

FSDP2, DistributedDataParallel with or without a parallelism_config, or DeepSpeed by its stage. What a YAML has no key for (micro
batch, accumulation under FSDP, sequence) stands as settings in the script, for the training script to read.
"""

from __future__ import annotations

from typing import Any

import yaml

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import OptimizerSpec, Plan, Rejection
from meshwright.exporters.accelerate.read import read, recognises
from meshwright.exporters.base import Exporter, Job, Loss
from meshwright.exporters.deepspeed import document as deepspeed
from meshwright.exporters.environment import environment
from meshwright.exporters.fsdp2 import write_fsdp
from meshwright.exporters.header import comment, header
from meshwright.exporters.manifest import manifest
from meshwright.exporters.script import Setting, opening, unequal_nodes

CONFIG = "accelerate.yaml"
_FIELDS = frozenset(
    {
        "tensor_parallel_size", "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage", "micro_batch_size",
        "num_micro_batches", "context_parallel_size", "context_parallel_method",
    }
)  # fmt: skip
_CHECKS = """\
[ -n "$TRAIN_SCRIPT" ] || fail "TRAIN_SCRIPT is not set; needed your training script, which makes an Accelerator"
[ -f "$TRAIN_SCRIPT" ] || fail "the training script $TRAIN_SCRIPT does not exist"
command -v accelerate > /dev/null || fail "accelerate is not on the PATH; install accelerate and activate its environment"
[ "$NNODES" -eq 1 ] || [ -n "$RDZV_ENDPOINT" ] || fail "RDZV_ENDPOINT is not set; needed host:port of node 0"
"""
_RUN = """\
: "${{RDZV_ENDPOINT:=127.0.0.1:29500}}"
{variables}export MICRO_BATCH_SIZE SEQUENCE_LENGTH ACCELERATE_GRADIENT_ACCUMULATION_STEPS
launch=(--config_file "$HERE"/{config} --num_processes $((NPROC_PER_NODE * NNODES)))
launch+=(--num_machines "$NNODES" --machine_rank "$NODE_RANK")
launch+=(--main_process_ip "${{RDZV_ENDPOINT%:*}}" --main_process_port "${{RDZV_ENDPOINT##*:}}")
# Options of this script are the training script's own.
exec accelerate launch "${{launch[@]}}" "$TRAIN_SCRIPT" "$@"
"""


def _is_deepspeed(plan: Plan) -> bool:
    return plan.runtime.name == "deepspeed"


def _render(job: Job) -> dict[str, str]:
    plan, target = job.plan, f"accelerate {job.version}"
    parallel, training = plan.parallel, plan.training
    settings = (
        Setting(name="TRAIN_SCRIPT", value="", what="your training script"),
        Setting(
            name="MICRO_BATCH_SIZE", value=str(parallel.micro_batch_size), what="samples of a batch, for your script"
        ),
        Setting(
            name="ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            value=str(parallel.num_micro_batches),
            what="batches of an optimizer step; accelerate reads it",
        ),
        Setting(
            name="SEQUENCE_LENGTH", value=str(training.sequence_length), what="tokens of a sequence, for your script"
        ),
    )
    variables = environment(plan, in_order=False, fsdp=parallel.zero_stage > 0 and not _is_deepspeed(plan))
    wholes = tuple((setting.name, 1) for setting in settings[1:])
    script = opening(job, target=target, settings=settings, wholes=wholes, checks=_CHECKS) + _RUN.format(
        variables="".join(f"{variable.line}\n" for variable in variables), config=CONFIG
    )
    text = yaml.safe_dump(_config(plan), sort_keys=False)
    return {job.name: script, CONFIG: f"{comment(header(job, target))}\n{text}", **manifest(job, "accelerate")}


def _config(plan: Plan) -> dict[str, Any]:
    word = _precision_word(plan)
    content: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _kind(plan),
        "mixed_precision": "no" if word == "fp32" else word,
        "num_processes": plan.num_devices_used,
        "num_machines": -(-plan.num_devices_used // plan.cluster.devices_per_node),
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
    }
    if _is_deepspeed(plan):
        return content | {"deepspeed_config": _deepspeed(plan)}
    if plan.parallel.zero_stage > 0:
        content["fsdp_config"] = {f"fsdp_{key}": value for key, value in write_fsdp(plan).items()}
    return content | _parallelism(plan)


def _kind(plan: Plan) -> str:
    """How accelerate calls what it wraps the model in; one process needs nothing."""
    if _is_deepspeed(plan):
        return "DEEPSPEED"
    if plan.parallel.zero_stage > 0:
        return "FSDP"
    return "MULTI_GPU" if plan.num_devices_used > 1 else "NO"


def _deepspeed(plan: Plan) -> dict[str, Any]:
    return {
        "zero_stage": plan.parallel.zero_stage,
        "gradient_accumulation_steps": plan.parallel.num_micro_batches,
        "gradient_clipping": plan.training.optimizer.max_grad_norm or 0.0,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": plan.parallel.zero_stage == 3,
        "deepspeed_multinode_launcher": "standard",
    }


def _parallelism(plan: Plan) -> dict[str, Any]:
    parallel = plan.parallel
    if parallel.zero_stage == 0 and parallel.tensor_parallel_size == 1:
        return {}
    sizes: dict[str, Any] = {
        "dp_replicate_size": parallel.data_parallel_replicate_size,
        "dp_shard_size": parallel.data_parallel_shard_size,
        "tp_size": parallel.tensor_parallel_size,
        "cp_size": parallel.context_parallel_size,
    }
    if parallel.context_parallel_size > 1:
        sizes["cp_comm_strategy"] = "allgather"
    return {"parallelism_config": {f"parallelism_config_{key}": value for key, value in sizes.items()}}


def _precision_word(plan: Plan) -> str | None:
    offered = load_runtime(plan.runtime.name).precisions
    return next((word for word, formats in offered.items() if formats == plan.training.precision), None)


def _refuse(plan: Plan) -> Rejection | None:
    if (uneven := unequal_nodes(plan, "accelerate")) is not None:
        return uneven
    parallel = plan.parallel
    if _is_deepspeed(plan):
        for name in ("tensor_parallel_size", "context_parallel_size"):
            if (size := getattr(parallel, name)) > 1:
                return Rejection(
                    rule=f"export_accelerate_deepspeed_{name}",
                    message=f"accelerate's deepspeed_config has no key for {name} {size}",
                    numbers={name: size},
                    fix=f"plan with --fix {name}=1, or export to deepspeed",
                )
        return deepspeed.refuse(plan, "accelerate")
    if (
        parallel.data_parallel_replicate_size > 1
        and parallel.data_parallel_shard_size == 1
        and parallel.context_parallel_size > 1
    ):
        return Rejection(
            rule="export_accelerate_replicas",
            message="accelerate takes no context parallelism beside replicas without shards; found data_parallel_replicate_size "
            f"{parallel.data_parallel_replicate_size}, data_parallel_shard_size 1, context_parallel_size "
            f"{parallel.context_parallel_size}",
            numbers={"data_parallel_shard_size": 1},
            fix="plan with --fix data_parallel_replicate_size=1",
        )
    if _precision_word(plan) is None:
        compute = plan.training.precision.compute
        return Rejection(
            rule="export_accelerate_precision",
            message="accelerate's mixed_precision says bf16, fp16 or no as runtime accelerate has them; found others around "
            f"{compute}",
            numbers={"compute": compute},
            fix="plan with --precision bf16",
        )
    return None


def _losses(plan: Plan) -> tuple[Loss, ...]:
    return (*script_losses(plan, optimizer=OptimizerSpec(max_grad_norm=_clipping(plan))), *_unread(plan))


def _clipping(plan: Plan) -> float | None:
    """What is read back: deepspeed_config holds the norm, the others leave it to the training script."""
    return plan.training.optimizer.max_grad_norm if _is_deepspeed(plan) else OptimizerSpec().max_grad_norm


def _unread(plan: Plan) -> tuple[Loss, ...]:
    if plan.stages[0].recompute.kind == "full" and (_is_deepspeed(plan) or plan.parallel.zero_stage == 0):
        message = "no key of accelerate's checkpoints layers here; call gradient_checkpointing_enable() in the training script"
        return (Loss(field="stages.recompute", message=message),)
    return ()


def script_losses(plan: Plan, *, optimizer: OptimizerSpec) -> tuple[Loss, ...]:
    """What a training script around a Hugging Face model does itself; ``optimizer``: what the files are read back as."""
    training, found = plan.training, []
    if training.optimizer != optimizer:
        found.append(Loss(field="training.optimizer", message="is for the training script to make"))
    if training.attention_implementation != "fused":
        found.append(
            Loss(field="training.attention_implementation", message="unfused is for the training script to choose")
        )
    if training.loss_chunks > 1:
        found.append(
            Loss(field="training.loss_chunks", message=f"{training.loss_chunks} is for the training script to do")
        )
    if training.seed:
        found.append(Loss(field="training.seed", message=f"{training.seed} is for the training script to set"))
    if plan.parallel.tensor_parallel_size > 1:
        found.append(
            Loss(
                field="parallel.tensor_parallel_size",
                message="the training script has to load the model on the mesh (from_pretrained(device_mesh=...))",
            )
        )
    return tuple(found)


ACCELERATE = Exporter(
    name="accelerate",
    target="accelerate's YAML and a script for its launcher",
    tested_versions=("1.15.0",),
    fields=_FIELDS,
    runtimes=("accelerate", "deepspeed"),
    render=_render,
    reject=_refuse,
    losses=_losses,
    recognises=recognises,
    read=read,
)

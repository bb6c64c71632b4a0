"""A plan as DeepSpeed's JSON."""

from __future__ import annotations

from typing import Any

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import Plan, Rejection
from meshwright.exporters.base import Loss

_TYPES = {"adamw": "AdamW", "sgd": "SGD"}


def config(plan: Plan) -> dict[str, Any]:
    """The content of the JSON file.

    train_batch_size is left out under tensor parallelism: DeepSpeed multiplies micro batch and accumulation by all processes.
    """
    parallel, training = plan.parallel, plan.training
    content: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": parallel.micro_batch_size,
        "gradient_accumulation_steps": parallel.num_micro_batches,
        "gradient_clipping": training.optimizer.max_grad_norm or 0.0,
        "zero_optimization": _zero(plan),
        "optimizer": _optimizer(plan),
    }
    if parallel.tensor_parallel_size == 1:
        content = {"train_batch_size": training.global_batch_size} | content
    if (word := precision_word(plan)) in ("bf16", "fp16"):
        content[word] = {"enabled": True}
    if parallel.tensor_parallel_size > 1:
        content["tensor_parallel"] = {
            "autotp_size": parallel.tensor_parallel_size,
            "vocab_parallel_lm_head": parallel.loss_parallel,
        }
    if parallel.context_parallel_size > 1:
        content["sequence_parallel_size"] = parallel.context_parallel_size
        content["data_parallel_size"] = parallel.data_parallel_size
    if plan.stages[0].recompute.kind == "full":
        content["activation_checkpointing"] = {"number_checkpoints": plan.model.num_hidden_layers}
    return content


def _zero(plan: Plan) -> dict[str, Any]:
    parallel = plan.parallel
    hpz = parallel.hierarchical_partition_size
    return {"stage": parallel.zero_stage} | ({} if hpz is None else {"zero_hpz_partition_size": hpz})


def _optimizer(plan: Plan) -> dict[str, Any]:
    optimizer = plan.training.optimizer
    params: dict[str, Any] = {"lr": optimizer.learning_rate, "weight_decay": optimizer.weight_decay}
    if optimizer.name == "sgd":
        params["momentum"] = optimizer.momentum
    else:
        params |= {"betas": list(optimizer.betas), "eps": optimizer.epsilon}
    return {"type": _TYPES[optimizer.name], "params": params}


def precision_word(plan: Plan) -> str | None:
    """DeepSpeed's word for the plan's number formats, or None where it has none."""
    offered = load_runtime("deepspeed").precisions
    return next((word for word, formats in offered.items() if formats == plan.training.precision), None)


def refuse(plan: Plan, target: str = "deepspeed") -> Rejection | None:
    """What DeepSpeed 0.19.8 cannot do, or None."""
    parallel = plan.parallel
    if parallel.data_parallel_replicate_size > 1 and parallel.zero_stage > 0:
        replicas, shards = parallel.data_parallel_replicate_size, parallel.data_parallel_shard_size
        return Rejection(
            rule=f"export_{target}_hybrid_shard",
            message=f"DeepSpeed 0.19.8 has no replicas of shards (MiCS was removed); found data_parallel_replicate_size "
            f"{replicas} x data_parallel_shard_size {shards} with zero_stage {parallel.zero_stage}",
            numbers={"data_parallel_replicate_size": replicas, "data_parallel_shard_size": shards},
            fix="plan with --fix data_parallel_replicate_size=1, with or without hierarchical_partition_size",
        )
    if parallel.tensor_parallel_size > 1 and parallel.context_parallel_size > 1:
        tensor, context = parallel.tensor_parallel_size, parallel.context_parallel_size
        return Rejection(
            rule=f"export_{target}_tensor_and_context",
            message=f"DeepSpeed 0.19.8 makes a mesh of data and sequence axes alone; found tensor_parallel_size {tensor} with "
            f"context_parallel_size {context}",
            numbers={"tensor_parallel_size": tensor, "context_parallel_size": context},
            fix="plan with --fix tensor_parallel_size=1",
        )
    if precision_word(plan) is None:
        compute = plan.training.precision.compute
        return Rejection(
            rule=f"export_{target}_precision",
            message=f"DeepSpeed's JSON says bf16, fp16 or fp32 as runtime deepspeed has them; found others around {compute}",
            numbers={"compute": compute},
            fix="plan with --precision bf16",
        )
    return None


def losses(plan: Plan) -> tuple[Loss, ...]:
    """What the JSON leaves to the training script."""
    training, found = plan.training, []
    if plan.stages[0].recompute.kind == "full":
        found.append(
            Loss(
                field="stages.recompute",
                message="the model's code has to checkpoint every layer (gradient_checkpointing_enable()); DeepSpeed's JSON only "
                "counts the checkpoints",
            )
        )
    if plan.parallel.tensor_parallel_size > 1:
        found.append(
            Loss(
                field="training.global_batch_size",
                message=f"{training.global_batch_size} follows from micro batch and accumulation; train_batch_size is left out, "
                "since DeepSpeed counts tensor-parallel processes as data-parallel ones",
            )
        )
    if training.loss_chunks > 1:
        found.append(
            Loss(field="training.loss_chunks", message=f"{training.loss_chunks} is for the training script to do")
        )
    if training.attention_implementation != "fused":
        found.append(
            Loss(field="training.attention_implementation", message="unfused is for the training script to choose")
        )
    if training.seed:
        found.append(Loss(field="training.seed", message=f"{training.seed} is for the training script to set"))
    return tuple(found)

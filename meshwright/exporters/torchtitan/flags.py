"""A plan as torchtitan's arguments: ``--module M --config C --section.key value``, then the recomputation as a subcommand.

torchtitan 0.3.0 counts samples; after it (b5bcd76) the command line counts tokens of one micro-batch and of one step instead,
and names the number of pipeline micro-batches. Both are written here; the rest has the same names in both.
"""

from __future__ import annotations

from costmodel.specs import Plan
from meshwright.exporters.torchtitan.presets import PRESETS, Flavor
from meshwright.exporters.torchtitan.stages import split_flags

RELEASE, MAIN = "0.3.0", "main (b5bcd76)"
EAGER = "torchtitan-eager"
"""The runtime of plans that are not compiled."""
OWN_MODULE, OWN_CONFIG = "planned_config", "planned"
SCHEDULES = {
    "naive": "GPipe",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
}
RECOMPUTE = {"none": "none", "op_policy": "selective", "full": "full"}
_RESHARD = {0: "always", 2: "never", 3: "always"}
_FORMATS = {"bf16": "bfloat16", "fp32": "float32"}
OPTIMIZER = "optimizer.param-groups.0.optimizer-kwargs"


def start_of(flavor: Flavor) -> tuple[str, str]:
    """Module and config function that the command starts from; our own beside the script where torchtitan has none."""
    preset = PRESETS.get((flavor.module, flavor.start))
    own = preset is None or preset.flavor != flavor.name
    return (OWN_MODULE, OWN_CONFIG) if own else (flavor.module, flavor.start)


def arguments(plan: Plan, flavor: Flavor, version: str) -> list[str]:
    """Every argument but the settings of the script and the subcommand.

    Args:
        plan: the plan, which `meshwright.exporters.torchtitan.refuse` does not refuse.
        flavor: torchtitan's name of its model.
        version: `RELEASE` or `MAIN`.
    """
    module, config = start_of(flavor)
    flags = _batch(plan, version) | _training(plan) | _parallelism(plan) | _optimizer(plan)
    words = ["--module", module, "--config", config]
    for key, values in flags.items():
        words += [f"--{key}", *values]
    return words


def recompute_word(plan: Plan) -> str:
    """The subcommand that says what is recomputed; it stands last."""
    return f"activation-checkpoint:{RECOMPUTE[plan.stages[0].recompute.kind]}"


def _batch(plan: Plan, version: str) -> dict[str, list[str]]:
    parallel, training = plan.parallel, plan.training
    piped = parallel.pipeline_parallel_size > 1
    # "naive" runs one micro-batch through the stages at a time and accumulates: a pipeline of one micro-batch.
    per_pass = parallel.num_micro_batches if piped and parallel.pipeline_schedule != "naive" else 1
    size, length = parallel.micro_batch_size, training.sequence_length
    if version == RELEASE:
        flags = {
            "training.local_batch_size": size * per_pass,
            "training.global_batch_size": training.global_batch_size,
            "training.seq_len": length,
        } | ({"parallelism.pipeline_parallel_microbatch_size": size} if piped else {})
    else:
        flags = {
            "training.num_tokens_per_microbatch_per_dp_rank": size * length,
            "training.num_tokens_per_train_step": training.global_batch_size * length,
            "training.max_context_length": length,
        } | ({"parallelism.num_pp_microbatches": per_pass} if piped else {})
    return {key: [str(value)] for key, value in flags.items()}


def _training(plan: Plan) -> dict[str, list[str]]:
    training, norm = plan.training, plan.training.optimizer.max_grad_norm
    flags = {
        "training.dtype": ["float32"],
        "training.mixed_precision_param": [_FORMATS[training.precision.compute]],
        "training.max_norm": ["inf" if norm is None else repr(norm)],
        "loss.num_chunks": ["1"],
    }
    # Some config functions compile by themselves.
    flags["compile.no_enable" if plan.runtime.name == EAGER else "compile.enable"] = []
    # CUDA graphs and pipelines exclude each other in 0.3.0.
    return flags | ({"training.disable_cuda_graphs": []} if plan.parallel.pipeline_parallel_size > 1 else {})


def _parallelism(plan: Plan) -> dict[str, list[str]]:
    parallel = plan.parallel
    sizes = {
        "data_parallel_replicate_degree": parallel.data_parallel_replicate_size,
        "data_parallel_shard_degree": parallel.data_parallel_shard_size,
        "tensor_parallel_degree": parallel.tensor_parallel_size,
        "context_parallel_degree": parallel.context_parallel_size,
        "pipeline_parallel_degree": parallel.pipeline_parallel_size,
        "fsdp_reshard_after_forward": _RESHARD[parallel.zero_stage],
    }
    flags = {f"parallelism.{key}": [str(value)] for key, value in sizes.items()}
    flags["parallelism.enable_sequence_parallel"] = []
    if parallel.pipeline_parallel_size > 1:
        flags["parallelism.pipeline_parallel_schedule"] = [SCHEDULES[parallel.pipeline_schedule]]
        flags |= split_flags([stage.num_layers for stage in plan.stages], parallel.pipeline_parallel_size)
    return flags


def _optimizer(plan: Plan) -> dict[str, list[str]]:
    optimizer = plan.training.optimizer
    return {
        f"{OPTIMIZER}.lr": [repr(optimizer.learning_rate)],
        f"{OPTIMIZER}.betas": [repr(beta) for beta in optimizer.betas],
        f"{OPTIMIZER}.eps": [repr(optimizer.epsilon)],
        f"{OPTIMIZER}.weight-decay": [repr(optimizer.weight_decay)],
    }

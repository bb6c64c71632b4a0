"""A plan as a launch script of Megatron-LM: torchrun pretrain_gpt.py with every size as an argument."""

from __future__ import annotations

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import AXIS_ORDERS, Plan, Rejection
from meshwright.exporters.base import Job
from meshwright.exporters.environment import environment
from meshwright.exporters.megatron import names
from meshwright.exporters.megatron.model import model_arguments, reject_model
from meshwright.exporters.script import Setting, opening, quote_all, torchrun, unequal_nodes

_SETTINGS = (
    Setting(name="MEGATRON_PATH", value="Megatron-LM", what="folder that holds pretrain_gpt.py"),
    Setting(name="DATA_PATH", value="", what="prefix of the .bin and .idx files to train on; default: made-up data"),
    Setting(name="TOKENIZER_MODEL", value="", what="Hugging Face tokenizer of that data"),
    Setting(name="CHECKPOINTS", value="", what="folder for checkpoints; default: none are written"),
    Setting(name="STEPS", value="100", what="optimizer steps"),
)
_CHECKS = """\
[ -f "$MEGATRON_PATH/pretrain_gpt.py" ] || fail "MEGATRON_PATH=$MEGATRON_PATH holds no pretrain_gpt.py"
[ -z "$DATA_PATH" ] || [ -n "$TOKENIZER_MODEL" ] || fail "DATA_PATH is set; needed its tokenizer too, TOKENIZER_MODEL"
"""
# Filled with arrays of arguments; doubled braces are bash's.
_RUN = """\
model=(
{model}
)
layout=(
{layout}
)
training=(
{training}
    --train-iters "$STEPS"
    --log-interval 1
    --log-throughput
    --eval-iters 0
    --eval-interval 1000
)
data=(--mock-data --tokenizer-type NullTokenizer)
if [ -n "$DATA_PATH" ]; then
    data=(--data-path "$DATA_PATH" --split '100,0,0')
    data+=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_MODEL")
fi
if [ -n "$CHECKPOINTS" ]; then
    data+=(--save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval 1000)
fi
# Options of this script are pretrain_gpt.py's own, and the last of two counts.
exec torchrun "${{launch[@]}}" "$MEGATRON_PATH/pretrain_gpt.py" \\
    "${{model[@]}}" "${{layout[@]}}" "${{training[@]}}" "${{data[@]}}" "$@"
"""
_FP8_RECIPES = {"delayed": "delayed", "current": "tensorwise", "blockwise": "blockwise", "mxfp8": "mxfp8"}


def render(job: Job) -> dict[str, str]:
    """The script."""
    plan = job.plan
    script = (
        opening(
            job,
            target=f"Megatron-LM {job.version}",
            settings=_SETTINGS,
            wholes=(("STEPS", 1),),
            checks=_CHECKS,
        )
        + torchrun(
            job,
            variables=environment(plan, in_order=True, fsdp=False),
            install="activate the environment of Megatron-LM",
        )
        + _RUN.format(
            model=_lines(model_arguments(plan)),
            layout=_lines(layout_arguments(plan)),
            training=_lines(training_arguments(plan)),
        )
    )
    return {job.name: script}


def _lines(groups: list[list[str]]) -> str:
    return "\n".join(f"    {quote_all(group)}" for group in groups)


def layout_arguments(plan: Plan) -> list[list[str]]:
    """How the work is split, a group a line."""
    parallel = plan.parallel
    lines = [[names.TENSOR, str(parallel.tensor_parallel_size)]]
    if parallel.sequence_parallel:
        lines.append([names.SEQUENCE_PARALLEL])
    lines.append([names.PIPELINE, str(parallel.pipeline_parallel_size)])
    lines += _stages(plan)
    lines.append([names.CONTEXT, str(parallel.context_parallel_size)])
    if parallel.context_parallel_method is not None:
        lines.append([names.CONTEXT_METHOD, names.CONTEXT_METHODS[parallel.context_parallel_method]])
    if plan.axis_order == AXIS_ORDERS["data_outermost"]:
        lines.append([names.DATA_OUTERMOST])
    if parallel.zero_stage:
        lines.append([names.DISTRIBUTED_OPTIMIZER, "--overlap-param-gather"])
    lines.append(["--overlap-grad-reduce"])
    lines.append([names.MICRO_BATCH, str(parallel.micro_batch_size)])
    lines.append([names.GLOBAL_BATCH, str(plan.training.global_batch_size)])
    return [*lines, *_recompute(plan)]


def _stages(plan: Plan) -> list[list[str]]:
    """Layers of the virtual stages: even ones by their number, others by the layout of all."""
    parallel, counts = plan.parallel, [stage.num_layers for stage in plan.stages]
    if parallel.pipeline_parallel_size == 1:
        return []
    if len(set(counts)) > 1:
        stages = [f"t*{count}" for count in counts]
        return [[names.LAYOUT, "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"])]]
    return [[names.LAYERS_PER_CHUNK, str(counts[0])]] if parallel.num_model_chunks > 1 else []


def _recompute(plan: Plan) -> list[list[str]]:
    kind = plan.stages[0].recompute.kind
    if kind == "none":
        return []
    if kind == "core_attention":
        return [[names.RECOMPUTE, "selective", names.RECOMPUTE_MODULES, "core_attn"]]
    counts = [stage.num_recomputed_layers for stage in plan.stages]
    whole = counts == [stage.num_layers for stage in plan.stages]
    method, layers = ("uniform", 1) if whole else ("block", max(counts))
    return [[names.RECOMPUTE, "full", names.RECOMPUTE_METHOD, method, names.RECOMPUTE_LAYERS, str(layers)]]


def training_arguments(plan: Plan) -> list[list[str]]:
    """Sequence, precision and optimizer, a group a line."""
    training, optimizer = plan.training, plan.training.optimizer
    lines = [[names.SEQUENCE, str(training.sequence_length)]]
    if training.precision.compute in ("bf16", "fp16"):
        lines.append([f"--{training.precision.compute}"])
    if training.precision.compute == "bf16" and training.precision.gradient == "bf16":
        lines.append(["--grad-reduce-in-bf16"])
    if (recipe := training.precision.fp8_recipe) is not None:
        lines.append(["--fp8-format", "hybrid", "--fp8-recipe", _FP8_RECIPES[recipe]])
    backend = "auto" if training.attention_implementation == "fused" else "unfused"
    lines.append(["--attention-backend", backend])
    if optimizer.name == "adamw":
        beta1, beta2 = optimizer.betas
        lines.append(["--optimizer", "adam", "--adam-beta1", repr(beta1), "--adam-beta2", repr(beta2)])
        lines.append(["--adam-eps", repr(optimizer.epsilon)])
    else:
        lines.append(["--optimizer", "sgd", "--sgd-momentum", repr(optimizer.momentum)])
    rate = repr(optimizer.learning_rate)
    lines.append(["--lr", rate, "--min-lr", rate, "--lr-decay-style", "constant"])
    lines.append(["--weight-decay", repr(optimizer.weight_decay), "--clip-grad", repr(optimizer.max_grad_norm or 0.0)])
    lines.append(["--seed", str(training.seed + 1)])  # Megatron-LM refuses 0
    return lines


def reject(plan: Plan) -> Rejection | None:
    """What of the plan no argument says, or None."""
    return unequal_nodes(plan, "megatron") or reject_model(plan) or _reject_precision(plan) or _reject_seed(plan)


def _reject_precision(plan: Plan) -> Rejection | None:
    known = load_runtime("megatron").precisions
    if plan.training.precision in known.values():
        return None
    return Rejection(
        rule="export_megatron_precision",
        message=f"--to megatron cannot express the number formats of the plan ({plan.training.precision.compute} compute, "
        f"{plan.training.precision.parameter} parameters, {plan.training.precision.gradient} gradients); valid precision: "
        f"{', '.join(known)}",
        numbers={"precision": plan.training.precision.compute},
        fix=f"plan with --runtime megatron --precision {next(iter(known))}",
    )


def _reject_seed(plan: Plan) -> Rejection | None:
    """Megatron-LM seeds numpy, which takes 32 bits, and adds 100 times the pipeline rank."""
    highest = 2**32 - 2 - 100 * plan.parallel.pipeline_parallel_size
    if plan.training.seed <= highest:
        return None
    return Rejection(
        rule="export_megatron_seed",
        message=f"--to megatron cannot express seed {plan.training.seed}; valid: 0 to {highest}",
        numbers={"seed": plan.training.seed},
        fix="choose a smaller seed",
    )

"""torchtitan, both ways: a bash script with its command, and such commands read back.

The command starts from a config function of torchtitan's for the model, or from one that is written beside the script where
torchtitan knows the size but has no function for it in bf16. Sizes that it does not know are refused.
"""

from __future__ import annotations

from costmodel.specs import Plan, Rejection
from meshwright.exporters.base import Exporter, Job, Loss
from meshwright.exporters.environment import environment
from meshwright.exporters.header import comment, header
from meshwright.exporters.script import Setting, opening, quote_all, torchrun, unequal_nodes
from meshwright.exporters.torchtitan.flags import (
    EAGER,
    MAIN,
    OWN_CONFIG,
    OWN_MODULE,
    RELEASE,
    arguments,
    recompute_word,
    start_of,
)
from meshwright.exporters.torchtitan.presets import FLAVORS, Flavor, find_flavor
from meshwright.exporters.torchtitan.read import read, recognises

_FIELDS = frozenset(
    {
        "tensor_parallel_size", "sequence_parallel", "loss_parallel", "pipeline_parallel_size", "pipeline_schedule",
        "num_model_chunks", "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage", "micro_batch_size",
        "num_micro_batches", "context_parallel_size", "context_parallel_method",
    }
)  # fmt: skip
_RUN = """\
train=(
    {arguments}
    --training.steps "$STEPS"
    --hf_assets_path "$HF_ASSETS"
    --dump_folder "$OUTPUT"
)
[ -z "$DATASET" ] || train+=(--dataloader.dataset "$DATASET")
{path}# Options of this script are torchtitan's own.
exec torchrun "${{launch[@]}}" -m torchtitan.train "${{train[@]}}" "$@" {recompute}
"""
_CONFIG = """\
\"\"\"The model {model} for torchtitan {version}, which has no config function for it in 16 bits.\"\"\"
{header}
from torchtitan.models.{module} import model_registry
from torchtitan.models.{module}.config_registry import {start}


def {function}():
    config = {start}()
    config.model_spec = model_registry("{flavor}")
    return config
"""


def _flavor(plan: Plan) -> Flavor:
    found = find_flavor(plan.model)
    assert found is not None, "a plan of another model is refused"
    return found


def _render(job: Job) -> dict[str, str]:
    flavor, target = _flavor(job.plan), f"torchtitan {job.version}"
    own = start_of(flavor)[0] == OWN_MODULE
    settings = (
        Setting(name="HF_ASSETS", value=f"./assets/hf/{flavor.module}-{flavor.name}", what="folder with the tokenizer"),
        Setting(name="DATASET", value="", what="dataset; default: the one of the config function"),
        Setting(name="STEPS", value="1000", what="optimizer steps"),
        Setting(name="OUTPUT", value="./outputs", what="folder for logs and checkpoints"),
    )
    run = _RUN.format(
        arguments=_lines(arguments(job.plan, flavor, job.version)),
        path='export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"\n' if own else "",
        recompute=recompute_word(job.plan),
    )
    variables = environment(job.plan, in_order=False, fsdp=True)
    script = (
        opening(job, target=target, settings=settings, wholes=(("STEPS", 1),))
        + torchrun(job, variables=variables, install="install torchtitan and activate its environment")
        + run
    )
    return {job.name: script} | ({f"{OWN_MODULE}.py": _config(job, flavor, target)} if own else {})


def _lines(words: list[str]) -> str:
    """The arguments, a key a line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return "\n    ".join(quote_all(line) for line in lines)


def _config(job: Job, flavor: Flavor, target: str) -> str:
    return _CONFIG.format(
        model=flavor.name,
        version=job.version,
        header=comment(header(job, target)),
        module=flavor.module,
        start=flavor.start,
        function=OWN_CONFIG,
        flavor=flavor.name,
    )


def _refuse(plan: Plan) -> Rejection | None:
    flavor, training = find_flavor(plan.model), plan.training
    if flavor is None:
        known = ", ".join(f"{flavor.module} {flavor.name}" for flavor in FLAVORS.values())
        return Rejection(
            rule="export_torchtitan_model",
            message=f"torchtitan {RELEASE} has no model of the sizes of {plan.model.name}; it has {known}",
            numbers={"model": plan.model.name},
            fix="plan for one of these models, or export to another target",
        )
    precision = training.precision
    if precision.fp8_recipe is not None or precision.parameter != "fp32" or precision.compute not in ("bf16", "fp32"):
        return Rejection(
            rule="export_torchtitan_precision",
            message="torchtitan's arguments choose bf16 or fp32 over 32-bit weights; found "
            f"{precision.fp8_recipe or precision.compute} over {precision.parameter}, which takes a config function of its own",
            numbers={"compute": precision.compute, "fp8_recipe": precision.fp8_recipe or "none"},
            fix="plan with --precision bf16",
        )
    if training.sequence_length > flavor.max_positions:
        return Rejection(
            rule="export_torchtitan_positions",
            message=f"torchtitan's {flavor.module} {flavor.name} has {flavor.max_positions} positions; found sequence_length "
            f"{training.sequence_length}",
            numbers={"sequence_length": training.sequence_length, "positions": flavor.max_positions},
            fix=f"use a sequence_length of at most {flavor.max_positions}",
        )
    if training.attention_implementation != "fused":
        return Rejection(
            rule="export_torchtitan_attention",
            message=f"torchtitan {RELEASE} computes {flavor.module}'s attention fused; found unfused",
            fix="plan with --attention fused",
        )
    return unequal_nodes(plan, "torchtitan")


def _losses(plan: Plan) -> tuple[Loss, ...]:
    found = []
    if plan.training.seed:
        found.append(Loss(field="training.seed", message=f"{plan.training.seed} is not written; give --debug.seed"))
    if plan.parallel.pipeline_schedule == "gpipe" and plan.parallel.num_micro_batches == 1:
        found.append(Loss(field="parallel.pipeline_schedule", message="gpipe of one micro-batch is read back as naive"))
    if plan.parallel.pipeline_parallel_size == 1:
        found.append(
            Loss(
                field="runtime.version",
                message=f"predicted with eager launches; torchtitan {RELEASE} captures a step in CUDA graphs unless "
                "--training.disable_cuda_graphs is given",
            )
        )
    return tuple(found)


TORCHTITAN = Exporter(
    name="torchtitan",
    target="bash script with torchtitan's command",
    tested_versions=(RELEASE, MAIN),
    fields=_FIELDS,
    runtimes=("torchtitan", EAGER),
    render=_render,
    reject=_refuse,
    losses=_losses,
    recognises=recognises,
    read=read,
)

"""The commands that measure plans and calibrate with the results, each ready to be typed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote
from typing import Any

from costmodel.runtimes.layer_split import even_split
from costmodel.specs import ParallelConfig, Plan

STEPS = 5
_INPUTS = ("model", "cluster", "global_batch_size", "sequence_length")
_OPTIONS = {
    "runtime": "torch", "precision": None, "optimizer": "adamw", "attention": "fused", "loss_chunks": 1, "site": None,
}  # fmt: skip
_ALWAYS = ("data_parallel_replicate_size", "data_parallel_shard_size", "micro_batch_size")
_FOLLOW = ("num_micro_batches",)
_UNUSED = ("pipeline_schedule",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How one plan is measured: commands that write ``plan_file``, run it, and leave ``run_file``."""

    plan: Plan
    commands: tuple[str, ...]
    plan_file: str
    run_file: str


def measurements(
    plans: Sequence[Plan], stated: Mapping[str, Any], output: Path | None, *, runnable: bool
) -> tuple[Measurement, ...]:
    """How to measure plans of one recommendation, the best one first.

    Args:
        plans: the plans.
        stated: the options of `meshwright plan` that led to them.
        output: where the best plan was written; None: nowhere yet.
        runnable: whether our own executor can run them; otherwise they are exported for the framework.
    """
    stem = str(output.with_suffix("")) if output else "top"
    found = []
    for number, plan in enumerate(plans, start=1):
        written = number == 1 and output is not None
        plan_file, run_file = str(output) if written else f"{stem}-{number}.json", f"{stem}-{number}-run.json"
        make = () if written else (f"{estimate_command(plan, stated)} -o {quote(plan_file)}",)
        use = _run_command(plan, plan_file, run_file) if runnable else _export_commands(plan, plan_file, run_file)
        found.append(Measurement(plan=plan, commands=(*make, *use), plan_file=plan_file, run_file=run_file))
    return tuple(found)


def calibrate_command(measured: Sequence[Measurement], stated: Mapping[str, Any]) -> str:
    """The command that turns the runs into a site file, for the cluster that the plans are for; never over the old one."""
    old = stated.get("site")
    site = "site.yaml" if old is None else f"{Path(old).with_suffix('')}-new.yaml"
    files = [name for each in measured for name in (each.plan_file, each.run_file)]
    return f"meshwright calibrate {join(files)} --cluster {quote(str(stated['cluster']))} -o {quote(site)}"


def estimate_command(plan: Plan, stated: Mapping[str, Any]) -> str:
    """The `meshwright estimate` command that makes the very plan again, size by size."""
    words = ["meshwright", "estimate"]
    for name in _INPUTS:
        words += [_option(name), str(stated[name])]
    for name, default in _OPTIONS.items():
        if stated.get(name) not in (None, default):
            words += [_option(name), str(stated[name])]
    for name, value in _sizes(plan):
        words += [_option(name)] if value is True else [_option(name), str(value)]
    modes = [stage.recompute.word for stage in plan.stages]
    if set(modes) != {"none"}:
        words += ["--recompute", ",".join(modes if len(set(modes)) > 1 else modes[:1])]
    counts = tuple(stage.num_layers for stage in plan.stages)
    if counts != even_split(sum(counts), len(counts)):
        words += ["--layers-per-stage", ",".join(map(str, counts))]
    return join(words)


def _sizes(plan: Plan) -> list[tuple[str, Any]]:
    """Fields of the parallel configuration that a command must state to get it again."""
    neutral = ParallelConfig()
    pipeline = plan.parallel.pipeline_parallel_size > 1
    return [
        (name, value)
        for name in ParallelConfig.model_fields
        if (value := getattr(plan.parallel, name)) != getattr(neutral, name) or name in _ALWAYS
        if name not in _FOLLOW and (pipeline or name not in _UNUSED)
    ]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _run_command(plan: Plan, plan_file: str, run_file: str) -> tuple[str, ...]:
    nodes = -(-plan.num_devices_used // plan.cluster.devices_per_node)
    meet = f" --nnodes {nodes} --node-rank RANK --rdzv-endpoint HOST:PORT" if nodes > 1 else ""
    return (f"meshwright run {quote(plan_file)} --steps {STEPS}{meet} -o {quote(run_file)}",)


def _export_commands(plan: Plan, plan_file: str, run_file: str) -> tuple[str, ...]:
    """Export, and write down what the framework measured: an observation of three fields."""
    exported = quote(str(Path(plan_file).with_suffix(".yaml")))
    observed = json.dumps({"source": plan.runtime.name, "plan_hash": plan.plan_hash, "step_time_seconds": "SECONDS"})
    observed = observed.replace('"SECONDS"', "SECONDS")
    export = () if plan_file.endswith(".yaml") else (f"meshwright export {quote(plan_file)} --to yaml -o {exported}",)
    return (*export, f"echo {quote(observed)} > {quote(run_file)}")

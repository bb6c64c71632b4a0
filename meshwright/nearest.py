"""The plan nearest to one that a target cannot express: of the target's own runtime, with as many of its sizes as go.

Sizes are given up in the order of `_GIVEN_UP`, those that change the layout least first, until a plan fits that the target
can express: at most one search for each line.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from shlex import quote, split
from typing import TYPE_CHECKING, Any

from costmodel.specs import Infeasible, InputError, Plan, Recommendation, RuntimeProfile
from meshwright.estimating import as_fixed
from meshwright.planning import plan as find_plan

if TYPE_CHECKING:
    from meshwright.exporters import Exporter

_GIVEN_UP = (
    (),
    (
        "hierarchical_partition_size",
        "loss_parallel",
        "sequence_parallel",
        "num_model_chunks",
        "pipeline_schedule",
        "context_parallel_method",
    ),
    ("zero_stage", "data_parallel_replicate_size", "data_parallel_shard_size", "recompute"),
    ("micro_batch_size", "num_micro_batches"),
    ("context_parallel_size",),
    ("pipeline_parallel_size", "data_parallel_size"),
    ("tensor_parallel_size",),
    ("num_devices_used",),
)
_TOP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The nearest plan, the sizes that it keeps, and the command that plans it."""

    plan: Plan
    kept: tuple[str, ...]
    command: str


def nearest_plan(plan: Plan, exporter: Exporter) -> Nearest | None:
    """A plan with the same model, cluster, batch and sequence that the target can express, or None.

    Args:
        plan: a plan that the target rejects.
        exporter: the target.
    """
    from costmodel.runtimes.loader import load_runtime

    if exporter.runtimes is None:
        return None
    own = plan.runtime.name in exporter.runtimes
    runtime = load_runtime(plan.runtime.name if own else exporter.runtimes[0])
    fixed = {name: word for name, word in as_fixed(plan).items() if name != "layers_per_stage"}
    for names in _GIVEN_UP:
        fixed = {name: word for name, word in fixed.items() if name not in names}
        found = _search(plan, exporter, runtime, fixed)
        if found is not None:
            return Nearest(plan=found, kept=tuple(fixed), command=_command(plan, runtime, fixed))
    return None


def _search(plan: Plan, exporter: Exporter, runtime: RuntimeProfile, fixed: dict[str, str]) -> Plan | None:
    """The fastest plan with these sizes that the target can express."""
    from meshwright.exporters import reject

    try:
        answer = plan_again(plan, runtime, fix=fixed, top=_TOP)
    except InputError:  # one of the sizes breaks a rule of the runtime
        return None
    if isinstance(answer, Infeasible):
        return None
    return next((one for one in _plans(answer) if reject(exporter, one) is None), None)


def plan_again(plan: Plan, runtime: RuntimeProfile, **options: Any) -> Recommendation | Infeasible:
    """The best plan of a plan's own problem under a runtime; ``options`` as those of `meshwright.plan`.

    Raises:
        InputError: as `meshwright.plan`.
    """
    return find_plan(
        plan.model,
        plan.cluster,
        global_batch_size=plan.training.global_batch_size,
        sequence_length=plan.training.sequence_length,
        runtime=runtime,
        **training_words(plan, runtime),
        **options,
    )


def _plans(answer: Recommendation) -> tuple[Plan, ...]:
    return (answer.best, *answer.alternatives)


def training_words(plan: Plan, runtime: RuntimeProfile) -> dict[str, Any]:
    """What the plan trains, in the words of `plan`; a precision that the runtime lacks becomes its default."""
    training = plan.training
    return {
        "precision": precision_word(plan, runtime),
        "optimizer": training.optimizer,
        "attention": training.attention_implementation,
        "loss_chunks": training.loss_chunks,
    }


def precision_word(plan: Plan, runtime: RuntimeProfile) -> str | None:
    """The runtime's word for the plan's number formats: equal ones, else the same kind, else None."""
    precision = plan.training.precision
    words = [word for word, spec in runtime.precisions.items() if spec == precision]
    if words:
        return words[0]
    same = [
        word
        for word, spec in runtime.precisions.items()
        if (spec.compute, spec.fp8_recipe is None) == (precision.compute, precision.fp8_recipe is None)
    ]
    return same[0] if same else None


def _stated(plan: Plan, option: str, name: str) -> str:
    """The file or name that the command which made the plan gave, else the spec's own name."""
    try:
        words = split(plan.provenance.command) if plan.provenance else []
    except ValueError:  # a command that was cut
        return name
    return next((value for word, value in pairwise(words) if word == option), name)


def _command(plan: Plan, runtime: RuntimeProfile, fixed: dict[str, str]) -> str:
    """The command that plans it; an axis left at what it would be anyway needs no word."""
    words = [
        f"meshwright plan --model {quote(_stated(plan, '--model', plan.model.name))}",
        f"--cluster {quote(_stated(plan, '--cluster', plan.cluster.name))}",
        f"--global-batch-size {plan.training.global_batch_size} --sequence-length {plan.training.sequence_length}",
        f"--runtime {runtime.name}",
    ]
    training = training_words(plan, runtime)
    if training["precision"] is not None:
        words.append(f"--precision {training['precision']}")
    if plan.training.optimizer.name != "adamw":
        words.append(f"--optimizer {plan.training.optimizer.name}")
    if plan.training.attention_implementation != "fused":
        words.append(f"--attention {plan.training.attention_implementation}")
    if plan.training.loss_chunks > 1:
        words.append(f"--loss-chunks {plan.training.loss_chunks}")
    products = {"data_parallel_size", "num_micro_batches"}  # they follow from the others
    if plan.num_devices_used == plan.cluster.num_devices:
        products.add("num_devices_used")
    kept = (f"--fix {name}={quote(word)}" for name, word in fixed.items() if name not in products)
    return " ".join([*words, *kept])

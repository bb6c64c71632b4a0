"""What an exporter is: a plan as text files for something that runs it, and those files read back.

A target that cannot express a plan says so with a `Rejection`; what it holds otherwise, harmlessly, it says with a `Loss`, which
every reader sees: on stderr, in the header of the files and in their manifest. Nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel.runtimes.axis_orders import axis_order_word
from costmodel.specs import AxisOrder, ParallelConfig, Plan, Rejection
from meshwright.exporters.imported import Imported

ALL_FIELDS = frozenset(ParallelConfig.model_fields)
MAIN_SCRIPT = "launch.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Something that a target holds otherwise than the plan, or not at all, without harm.

    ``field``: of the plan, dotted ("training.optimizer.epsilon"). ``message``: one sentence with what the target does.
    """

    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One export: what is written and what its files say about it.

    ``name``: of the main file. ``version``: the target's, one of ``tested_versions``. ``command``: that writes the files.
    """

    plan: Plan
    name: str
    version: str
    command: str = ""
    losses: tuple[Loss, ...] = ()


Files = Mapping[str, str]
"""Name in its folder -> text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One target, both ways.

    ``target``: what is written, in words. ``tested_versions``: of the target, the default first. ``fields``: the fields of
    `ParallelConfig` that it can express; a plan that sets another one away from its default is rejected. ``runtimes``: the
    runtimes whose plans it can express, its own first; None for all. ``axis_orders``: those that it can express.
    ``suffix``: of the one file that is written, None when
    it is a folder. ``main``: the main file of that folder; a launcher's is `MAIN_SCRIPT`, which is started once on every
    node and obeys NNODES, NODE_RANK and RDZV_ENDPOINT. ``render`` gives the files as name -> text, the main one first.
    ``reject``: further reasons of the target's own. ``losses``: what it holds otherwise. ``recognises``: whether files are
    this target's; ``read``: what they say (InputError naming the key for what cannot be); None: there is no way back.
    """

    name: str
    target: str
    tested_versions: tuple[str, ...]
    fields: frozenset[str]
    runtimes: tuple[str, ...] | None
    axis_orders: tuple[AxisOrder, ...] = ("pipeline_outermost",)
    render: Callable[[Job], dict[str, str]]
    suffix: str | None = None
    main: str = MAIN_SCRIPT
    reject: Callable[[Plan], Rejection | None] | None = None
    losses: Callable[[Plan], tuple[Loss, ...]] | None = None
    recognises: Callable[[Files], bool] | None = None
    read: Callable[[Files], Imported] | None = None

    @property
    def is_launcher(self) -> bool:
        """Whether its folder holds a script that starts the training on one node."""
        return self.suffix is None and self.main == MAIN_SCRIPT


def reject(exporter: Exporter, plan: Plan) -> Rejection | None:
    """Why the target cannot express the plan, or None."""
    if exporter.runtimes is not None and plan.runtime.name not in exporter.runtimes:
        needed = ", ".join(exporter.runtimes)
        return Rejection(
            rule=f"export_{exporter.name}_runtime",
            message=f"--to {exporter.name} cannot express a plan for runtime {plan.runtime.name}; needed {needed}",
            numbers={"runtime": plan.runtime.name},
            fix=f"plan with --runtime {exporter.runtimes[0]}, or export to another target",
        )
    defaults = ParallelConfig()
    for name in sorted(ALL_FIELDS - exporter.fields):
        value = getattr(plan.parallel, name)
        if value != getattr(defaults, name):
            return Rejection(
                rule=f"export_{exporter.name}_{name}",
                message=f"--to {exporter.name} cannot express {name} {value}",
                numbers={name: str(value)},
                fix=f"plan with --fix {name}={getattr(defaults, name)}, or export to another target",
            )
    if (order := axis_order_word(plan.axis_order)) not in exporter.axis_orders:
        valid = ", ".join(exporter.axis_orders)
        return Rejection(
            rule=f"export_{exporter.name}_axis_order",
            message=f"--to {exporter.name} cannot express axis_order {order}; valid: {valid}",
            numbers={"axis_order": order},
            fix=f"plan with --fix axis_order={exporter.axis_orders[0]}, or export to another target",
        )
    return exporter.reject(plan) if exporter.reject else None


def losses_of(exporter: Exporter, plan: Plan) -> tuple[Loss, ...]:
    """What the target holds otherwise than the plan, without harm."""
    return exporter.losses(plan) if exporter.losses else ()

"""What happens on a machine: run a plan, measure this one, hold prediction against measurement. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.specs import ClusterSpec, Estimate, InputError, Observation, Plan, Recommendation
from hardware_profiles.errors import show_value
from meshwright.files import check_output, to_path
from meshwright.inputs import whole_number
from meshwright.plan_files import load_plan

if TYPE_CHECKING:
    from costmodel.specs import Comparison
    from executor.measured_draft import Measured
    from executor.outputs import Outputs

QUICK_SECONDS = 20.0
THOROUGH_SECONDS = 120.0
_MAX_STEPS = 10**9


def run(
    plan: Plan | Recommendation | str | Path,
    *,
    steps: int = 10,
    data: str | Path | None = None,
    output: str | Path | None = None,
    force: bool = False,
    nnodes: int = 1,
    node_rank: int = 0,
    rdzv_endpoint: str | None = None,
    progress: bool = False,
    save_hf: str | Path | None = None,
    save_hf_dtype: str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    timeout: float | None = None,
) -> Observation:
    """Train with the plan: start one process per device of this node with torchrun, and wait.

    Args:
        plan: a plan for the runtime ``torch``, a recommendation (its best plan), or a file of either.
        steps: optimizer steps, counted from the start of training; step times are measured from the third on.
        data: text, JSON Lines (.jsonl) or token file (.npy, .bin); None takes the text that meshwright carries.
        output: file for the observation (JSON); None writes none.
        force: replace an existing ``output`` and the model in ``save_hf``.
        nnodes: nodes of the run; call this once on each.
        node_rank: number of this node, from 0.
        rdzv_endpoint: host:port of node 0, where the nodes meet.
        progress: show loss and speed on stderr.
        save_hf: Hugging Face folder for the trained model, on node 0.
        save_hf_dtype: fp64, fp32, bf16 or fp16; None keeps the format of the plan's parameters.
        checkpoint: folder for distributed checkpoints, the same on every node.
        checkpoint_every: save after every so many steps, not only after the last.
        resume: go on from the newest complete checkpoint, whichever plan of the same model wrote it, if there is one.
        timeout: seconds that nodes and processes wait for one another; None: 60, in training 20 predicted steps if longer.

    Raises:
        InputError: when the plan, the data, the nodes, a folder or the output cannot be used, or torch is missing.
        ExecutionError: when a process fails.
    """
    require_torch()
    from executor.launch import run as launch

    return launch(
        load_runnable(plan),
        steps=whole_number("steps", steps, 1, _MAX_STEPS),
        data=_optional_path("data", data),
        output=None if output is None else check_output(output, force=force),
        force=force,
        nnodes=whole_number("nnodes", nnodes, 1),
        node_rank=whole_number("node_rank", node_rank, 0),
        rdzv_endpoint=rdzv_endpoint,
        progress=progress,
        timeout_seconds=timeout,
        outputs=_outputs(plan, save_hf, save_hf_dtype, checkpoint, checkpoint_every, resume=resume, force=force),
    )


def _outputs(
    plan: object,
    save_hf: str | Path | None,
    save_hf_dtype: str | None,
    checkpoint: str | Path | None,
    checkpoint_every: int | None,
    *,
    resume: bool,
    force: bool,
) -> Outputs:
    from executor.outputs import Outputs, check_apart

    outputs = Outputs(
        save_hf=_optional_path("save_hf", save_hf),
        save_hf_dtype=save_hf_dtype,
        checkpoint=_optional_path("checkpoint", checkpoint),
        checkpoint_every=None if checkpoint_every is None else whole_number("checkpoint_every", checkpoint_every, 1),
        resume=resume,
        force=force,
    )
    if isinstance(plan, str | Path):
        check_apart(outputs, output=None, plan=Path(plan))
    return outputs


def run_reference(
    plan: Plan | Recommendation | str | Path,
    *,
    steps: int = 10,
    data: str | Path | None = None,
    progress: bool = False,
) -> Observation:
    """Train what the plan trains in one process, without any parallelism: the curve a plan must reproduce.

    Args:
        plan: as in `run`.
        steps: as in `run`.
        data: as in `run`.
        progress: as in `run`.

    Raises:
        InputError: as `run`.
        ExecutionError: when the process fails.
    """
    require_torch()
    from executor.reference import run_reference as train

    number, path = whole_number("steps", steps, 1, _MAX_STEPS), _optional_path("data", data)
    return train(load_runnable(plan), steps=number, data=path, progress=progress)


def loss_difference(observation: Observation, reference: Observation) -> float:
    """Largest absolute difference of the losses, step by step.

    Raises:
        InputError: when the two runs have different numbers of steps, or none.
    """
    found, needed = len(observation.losses), len(reference.losses)
    if found != needed or not found:
        raise InputError(f"losses cannot be compared: found {found} steps, and {needed} in the reference")
    return max(abs(a - b) for a, b in zip(observation.losses, reference.losses, strict=True))


def measure(*, processes: int | None = None, quick: bool = True, device: str | None = None) -> ClusterSpec:
    """A profile of this machine as a cluster of ``processes`` devices, or under torchrun of all its machines.

    Args:
        processes: processes that will train side by side: on a CPU each one device with its share of the cores (needed
            there), else one for each CUDA device. None under torchrun, which states it.
        quick: about 20 seconds; otherwise two minutes.
        device: cpu or cuda; None takes CUDA devices where there are any.

    Raises:
        InputError: when ``processes`` is not a number this machine can run, there is no such device, or torch is missing.
        ExecutionError: when a measuring process fails.
    """
    return measure_with_findings(processes=processes, quick=quick, device=device).cluster


def measure_with_findings(
    *,
    processes: int | None = None,
    quick: bool = True,
    device: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
    timeout: float | None = None,
) -> Measured:
    """What `measure` returns, with every measured number and how well its fit holds the measurements.

    Args:
        processes: as in `measure`.
        quick: as in `measure`.
        device: as in `measure`.
        progress: told what is measured next.
        timeout: under torchrun, seconds that a process waits for another; None: 60.

    Raises:
        InputError: as `measure`.
        ExecutionError: as `measure`.
    """
    require_torch()
    from executor.measure import measure_machine

    return measure_machine(
        kind=device,
        num_processes=None if processes is None else whole_number("processes", processes, 1),
        budget_seconds=QUICK_SECONDS if quick else THOROUGH_SECONDS,
        quick=quick,
        progress=progress,
        timeout_seconds=timeout,
    )


def check_processes(processes: int) -> None:
    """Make sure that this machine can keep so many training processes alive.

    Raises:
        InputError: when it cannot, or torch is missing.
    """
    require_torch()
    from executor.cores import check_processes as check

    check(whole_number("processes", processes, 1))


def compare(estimate: Estimate, observation: Observation) -> Comparison:
    """Predicted beside measured, field by field, for every number that both carry.

    Raises:
        InputError: when the two are something else, such as each other.
    """
    for name, found, kind in (("estimate", estimate, Estimate), ("observation", observation, Observation)):
        if not isinstance(found, kind):
            raise InputError(f"{name} is {show_value(type(found).__name__)}; needed an {kind.__name__}")
    from meshwright.validation.compare import compare as compare_fields

    return compare_fields(estimate, observation)


def _optional_path(name: str, path: str | Path | None) -> Path | None:
    return None if path is None else to_path(path, what=name)


def load_runnable(plan: Plan | Recommendation | str | Path) -> Plan:
    """The plan, after making sure that the model it prices is the model it trains."""
    from costmodel.models.agreement import check_agreement

    loaded = load_plan(plan)
    check_agreement(loaded.model)
    return loaded


def require_torch() -> None:
    """Refuse politely where the ``run`` extra is not installed.

    Raises:
        InputError: when torch, transformers or safetensors cannot be found.
    """
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is not installed; install it with: pip install 'meshwright[run]'")

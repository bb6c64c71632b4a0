"""One rank of a plan, run dry: the executor's own training run without memory and without the other ranks.

One step is taken. What only an earlier step leaves behind, the optimizer's state, is made before it by a step of the
optimizer on empty gradients, so the step is like any later one (a test holds it against the second of two steps).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from costmodel.specs import Plan
from executor.adapter import gathered_tensors
from executor.dry_run_memory import Ledger, Peak, Phase, Window
from executor.dry_run_probe import Probe
from executor.dry_run_traffic import Route, Sum, Traffic
from executor.fake_cluster import fake_cluster, no_warnings
from executor.mesh import axis_sizes
from executor.observe import state_snapshot
from executor.training_run import TrainingRun

TOKEN_BYTES = torch.int64.itemsize
_DEVICE = torch.device("cpu")  # torch built without CUDA cannot even pretend to compute on one


@dataclass(frozen=True, slots=True)
class DryStep:
    """What one step of one rank does.

    ``state``: bytes of parameters, gradients and optimizer state between the optimizer's step and the clearing of gradients.
    """

    peaks: dict[Window, Peak]
    state: tuple[int, int, int]
    flops: float
    traffic: dict[Route, Sum]


class _NoWeights:
    """First values without values."""

    def rows(self, name: str, shape: tuple[int, ...], start: int, stop: int) -> torch.Tensor:
        """See `executor.initialize.WeightSource`."""
        del name
        return torch.empty((stop - start, *shape[1:]))


def dry_step(plan: Plan, rank: int, *, earlier_steps: int = 0) -> DryStep:
    """Build the plan's training run as global rank ``rank`` and take a step.

    One call per process: DTensor keeps the meshes of earlier ones.

    Args:
        plan: for the runtime ``torch``.
        rank: global rank to play.
        earlier_steps: whole steps to take before the one that is returned, instead of one of the optimizer alone.

    Raises:
        InputError: when the executor cannot run the plan.
    """
    gloo = plan.cluster.device.kind == "cpu"
    with no_warnings(), fake_cluster(rank=rank, size=plan.num_devices_used, all_to_all=not gloo):
        probe = Probe(Ledger(), Traffic(axis_sizes(plan)), gloo=gloo)
        run = TrainingRun(plan, device=_DEVICE, weights=_NoWeights(), memory=probe)
        with probe:
            for _ in range(earlier_steps):
                run.compute_step(_batch(plan))
            if not earlier_steps:
                _make_optimizer_state(run)
            return _measured_step(run, probe)


@torch.no_grad()
def _make_optimizer_state(run: TrainingRun) -> None:
    for group in run.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)


def _measured_step(run: TrainingRun, probe: Probe) -> DryStep:
    ledger, states = probe.ledger, [(0, 0, 0)]

    def before_reduction() -> None:
        ledger.mark(run.gradient_tensors(), "gradients")

    def after_optimizer() -> None:
        states.append(state_snapshot(run, memoryless=True))
        ledger.mark(run.gradient_tensors(), "gradients")

    def set_phase(phase: Phase) -> None:
        ledger.phase = phase

    run.before_reduction, run.after_optimizer = before_reduction, after_optimizer
    run.optimizer.register_step_pre_hook(lambda *_: set_phase("optimizer"))
    set_phase("forward")
    ledger.begin_step()
    batch = _batch(run.plan)
    ledger.mark([batch], "batch")
    probe.count(True)
    run.compute_step(batch)
    ledger.mark(run.parameter_tensors(), "parameters")
    ledger.mark(run.optimizer_state_tensors(), "optimizer_state")
    for stage in run.stages:
        ledger.mark(gathered_tensors(stage), "gathered_parameters")
    return DryStep(ledger.peaks(), states[-1], probe.flops, probe.traffic.sums)


def _batch(plan: Plan) -> torch.Tensor:
    parallel = plan.parallel
    shape = (parallel.micro_batch_size * parallel.num_micro_batches, plan.training.sequence_length + 1)
    return torch.empty(shape, dtype=torch.int64)

"""The dry steps of all pipeline ranks as one Observation."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.specs import Communication, MemoryTerm, Observation, Phase, PipelineRankRun, Plan
from executor.dry_run_extend import largest_window
from executor.dry_run_rank import DryStep
from executor.dry_run_traffic import Route, Sum, sent_bytes


def make_observation(plan: Plan, steps: Mapping[int, DryStep]) -> Observation:
    """One Observation; ``flops`` is the sum over all devices, of which those of a pipeline rank do the same."""
    gloo = plan.cluster.device.kind == "cpu"
    per_rank = plan.num_devices_used // plan.parallel.pipeline_parallel_size

    return Observation(
        source=f"dry run of {plan.num_devices_used} processes, one step",
        plan_hash=plan.plan_hash,
        world_size=plan.num_devices_used,
        flops=per_rank * sum(step.flops for step in steps.values()),
        pipeline_ranks=tuple(_rank_run(rank, step, gloo=gloo) for rank, step in sorted(steps.items())),
    )


def _rank_run(rank: int, step: DryStep, *, gloo: bool) -> PipelineRankRun:
    window = largest_window(step.peaks)
    peak = step.peaks[window]
    phase: Phase = "optimizer" if window == "optimizer" else "forward_backward"
    parameters, gradients, optimizer_state = step.state
    return PipelineRankRun(
        rank=rank,
        peak_bytes=peak.total,
        peak_phase=phase,
        terms=tuple(MemoryTerm(name=name, bytes=size, phase=phase) for name, size in sorted(peak.terms.items())),
        parameters=parameters,
        gradients=gradients,
        optimizer_state=optimizer_state,
        flops=step.flops,
        communication=tuple(_entry(route, each, gloo=gloo) for route, each in sorted(step.traffic.items())),
    )


def _entry(route: Route, each: Sum, *, gloo: bool) -> Communication:
    algorithm = "direct" if route.op in ("send", "all_to_all") else "ring"
    if gloo and route.op == "reduce_scatter":
        algorithm = "all_reduce"
    return Communication(
        axis=route.axis,
        op=route.op,
        count=each.count,
        bytes_per_rank=sent_bytes(route, each.payload_bytes, gloo=gloo),
        group_size=route.group_size,
        algorithm=algorithm,
    )

"""Predict one complete plan: step time with its parts, memory, FLOP, traffic.

The reference rank is the one whose compute lane is busiest (ties: the lowest). Its own passes, exposed collectives, reduction
and optimizer step are the named terms; what is left of the step is waiting, split by asking the longest path twice:

    (1) bubble      = step without message times - what the reference rank is busy
    (2) pipeline_p2p = step - step without message times
    (3) the terms sum to the step time; model_flops_utilization = model FLOP / (devices x peak x step time)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.bounds import bound_ends, exact_ends
from costmodel.communication import communication_of_ranks
from costmodel.flops import flop_count
from costmodel.memory import host_memory_bytes, peak_memory, plan_memory
from costmodel.paths import boundary_messages
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.memory_limit import usable_bytes
from costmodel.setting import Problem, Setting, plan_contents, prepare
from costmodel.specs import Estimate, Evidence, Interval, MemoryLimit, Plan, RankCommunication, RuntimeProfile, Term
from costmodel.step import StepTimes, step_times
from costmodel.tables import ATTENTION, CONTEXT, GATHER, GEMM, GRADIENT, LAUNCH, MEMORY, MESSAGE, RECOMPUTE, TENSOR
from costmodel.uncertainty import error_band

TERMS: dict[str, tuple[Evidence, str]] = {
    "gemm": ("fitted", "max((F + F_half) / (peak x max_fraction), bytes / bandwidth) per matrix multiplication"),
    "attention": ("fitted", "causal-halved FLOP / (peak x attention_fraction), or score products + score traffic"),
    "memory_bound": ("fitted", "bytes of norms, activations, residuals, loss and gradient accumulation / bandwidth"),
    "launch": ("fitted", "smooth max(device time, host issue time) - device time"),
    "recompute": (
        "fitted",
        "one more forward of recomputed layers: all of it (full), all but attention and every second product (op_policy), "
        "or their attention (core_attention)",
    ),
    "tensor_parallel": ("fitted", "2 collectives of T x h per layer and direction: 2 (n-1)/n bytes / rate + latency"),
    "context_parallel": (
        "formula",
        "keys and values passed on, gathered, or exchanged for heads around attention, less what a ring hides behind it",
    ),
    "pipeline_p2p": ("formula", "step time - step time with free messages"),
    "bubble": ("formula", "longest path with free messages - busy time of the reference rank"),
    "zero_gather": ("formula", "(n-1)/n parameter bytes / rate + latency, less what computation hides"),
    "data_parallel_gradient": (
        "formula",
        "gradient reduction over the data-parallel axes, less what computation hides",
    ),
    "optimizer": ("formula", "bytes of gradients, parameters and states / bandwidth, the norm's all-reduce included"),
}


def step_seconds(plan: Plan, runtime: RuntimeProfile, *, exact: bool = True) -> float:
    """The step time of `estimate` alone, or its lower bound, which needs no walk through the pipeline.

    Raises:
        InputError: when the device cannot compute in the training precision, or the runtime lacks a constant.
    """
    problem = Problem(model=plan.model, cluster=plan.cluster, training=plan.training, runtime=runtime)
    setting = prepare(problem, Grid.from_plan(plan), plan_contents(plan.model, plan.stages))
    times = step_times(setting)
    ends = exact_ends if exact else bound_ends
    return float(times.finish(ends(setting.grid, times))[0])


def estimate(
    plan: Plan, runtime: RuntimeProfile, *, ignore_memory: bool = False, memory_limit: MemoryLimit | None = None
) -> Estimate:
    """Predict a plan.

    Args:
        plan: a plan that keeps every rule (`costmodel.runtimes.rules.check`).
        runtime: the profile the plan names.
        ignore_memory: mark the estimate of a plan that does not fit as made regardless; the numbers are the same.
        memory_limit: how much of a device the plan may use; None is all of it.

    Returns:
        Step time with its 80% interval from the runtime's error band, terms, memory, FLOP and traffic of one step.

    Raises:
        InputError: when the device cannot compute in the training precision, or the runtime lacks a constant or a memory
            model.
    """
    problem = Problem(model=plan.model, cluster=plan.cluster, training=plan.training, runtime=runtime)
    setting = prepare(problem, Grid.from_plan(plan), plan_contents(plan.model, plan.stages))
    times = step_times(setting)
    seconds, terms, rank = _attribute(setting, times)
    device, training = plan.cluster.device, plan.training
    memory = plan_memory(plan, runtime)
    peak = peak_memory(memory, runtime, device)
    fullest = max(memory, key=lambda stage: stage.peak_bytes)
    flops = flop_count(setting)
    tokens = training.global_batch_size * training.sequence_length / seconds
    peak_flops = plan.num_devices_used * device.peak_flops_per_second[training.precision.compute]
    traffic = communication_of_ranks(setting)
    fits, band = peak.device <= usable_bytes(device, memory_limit), error_band(runtime, device)
    return Estimate(
        step_time_seconds=Interval(value=seconds, low=seconds / (1.0 + band), high=seconds * (1.0 + band)),
        tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / plan.num_devices_used,
        model_flops_utilization=flops.model / seconds / peak_flops,
        flops=flops,
        terms=terms,
        memory=memory,
        peak_memory_bytes=peak,
        peak_phase=fullest.peak_phase,
        memory_capacity_bytes=device.memory_bytes,
        memory_limit=memory_limit,
        fits=fits,
        memory_ignored=ignore_memory and not fits,
        host_memory_bytes=host_memory_bytes(plan),
        communication=traffic[rank],
        rank_communication=tuple(
            RankCommunication(rank=number, entries=entries) for number, entries in enumerate(traffic)
        ),
        bound_by=max(terms, key=lambda term: term.exposed_seconds).name,
    )


def _attribute(setting: Setting, times: StepTimes) -> tuple[float, tuple[Term, ...], int]:
    """Step time, its terms and the reference rank, equations (1) to (3)."""
    micro_batches = float(setting.grid.num_micro_batches[0])
    passes = micro_batches * (times.forward + times.backward)[0]
    parts = passes[setting.held].sum(axis=1)
    once = times.start[0] + times.reduction[0] + times.optimizer[0]
    rank = int(np.argmax(np.round(parts.sum(axis=1) + once, 12)))
    seconds, unhindered = _seconds(setting, times)
    busy = parts[rank]
    exposed = {
        "gemm": busy[GEMM],
        "attention": busy[ATTENTION],
        "memory_bound": busy[MEMORY],
        "launch": busy[LAUNCH],
        "recompute": busy[RECOMPUTE],
        "tensor_parallel": busy[TENSOR],
        "context_parallel": busy[CONTEXT],
        "pipeline_p2p": max(0.0, seconds - unhindered),
        "bubble": max(0.0, unhindered - float(busy.sum() - busy[MESSAGE] + once[rank])),
        "zero_gather": busy[GATHER] + times.start[0, rank],
        "data_parallel_gradient": busy[GRADIENT] + times.reduction[0, rank],
        "optimizer": times.optimizer[0, rank],
    }
    hidden = {
        "tensor_parallel": times.tensor_hidden[0, rank],
        "context_parallel": times.context_hidden[0, rank],
        "zero_gather": times.gather_hidden[0, rank],
        "data_parallel_gradient": times.reduction_hidden[0, rank],
        "pipeline_p2p": max(0.0, _message_seconds(setting, times, rank) - exposed["pipeline_p2p"]),
    }
    terms = tuple(
        Term(
            name=name,
            exposed_seconds=float(exposed[name]),
            hidden_seconds=float(hidden.get(name, 0.0)),
            evidence=evidence,
            formula=formula,
        )
        for name, (evidence, formula) in TERMS.items()
    )
    return seconds, terms, rank


def _seconds(setting: Setting, times: StepTimes) -> tuple[float, float]:
    """Step time with and without message times, from one run of the longest path."""
    twice = np.array([0, 0])
    forward, backward = times.forward[twice], times.backward[twice]
    forward[1, :, MESSAGE] = backward[1, :, MESSAGE] = 0.0
    double = replace(
        times,
        forward=forward,
        backward=backward,
        weight=times.weight[twice],
        transfer=times.transfer[twice] * np.array([[1.0], [0.0]]),
        start=times.start[twice],
    )
    grid = setting.grid.take(twice)
    seconds = times.finish(exact_ends(grid, double))
    return float(seconds[0]), float(seconds[1])


def _message_seconds(setting: Setting, times: StepTimes, rank: int) -> float:
    """Seconds of all messages the rank sends in one step."""
    after = boundary_messages(times.transfer, setting.held)[0]
    own = setting.held[rank]
    before = np.concatenate([[0.0], after[:-1]])
    return float(setting.grid.num_micro_batches[0] * (after[own].sum() + before[own].sum()))

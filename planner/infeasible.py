"""No plan fits: the candidate that misses by least, term by term, and changes that were checked to make one fit."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import numpy as np

from costmodel.memory import peak_memory, plan_memory
from costmodel.runtimes.grid import RECOMPUTE_KINDS
from costmodel.runtimes.memory_limit import usable_bytes
from costmodel.runtimes.rules import RuleContext, device_supports
from costmodel.specs import ClusterSpec, Infeasible, InputError, LevelSpec, MissTerm, NearestMiss, Plan, TrainingSpec
from hardware_profiles.loader import list_devices, load_device
from planner.candidates import GIB, Candidates, gib_apart, row_plan, survey
from planner.empty import explain_empty
from planner.space import Space, declare_space, describe_space

_FACTORS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_MIN_SEQUENCE = 128


class Least(NamedTuple):
    """The candidate of a space that needs the least memory."""

    summary: str
    needed_bytes: float
    fits: bool
    num_devices: int


def explain_infeasible(space: Space, candidates: Candidates) -> Infeasible:
    """The answer for a space in which no candidate fits."""
    miss = closest_miss(space, candidates)
    if miss is not None:
        miss = miss.model_copy(update={"fixes": tuple(_fixes(space, miss.needed_bytes))})
    rejections = candidates.rejections if miss is not None else (explain_empty(space), *candidates.rejections)
    return Infeasible(rejections=rejections, nearest_miss=miss, space=describe_space(space))


def closest_miss(space: Space, candidates: Candidates) -> NearestMiss | None:
    """The candidate that misses by least, without fixes; None where every one breaks a rule."""
    if not len(candidates.grid):
        return None
    row, needed = candidates.leanest(np.arange(len(candidates.grid)))
    return NearestMiss(
        plan_summary=candidates.summary(row),
        needed_bytes=ceil(needed),
        capacity_bytes=space.context.usable_bytes,
        memory_limit=space.context.memory_limit,
        terms=_miss_terms(row_plan(space.context, candidates.grid, row), space.context),
        fixes=(),
    )


def _miss_terms(plan: Plan, context: RuleContext) -> tuple[MissTerm, ...]:
    """Terms of the fullest device at its peak; the allocator's waste and the contexts complete the sum."""
    stages = plan_memory(plan, context.runtime)
    peak = peak_memory(stages, context.runtime, context.cluster.device)
    stage = max(stages, key=lambda memory: memory.peak_bytes)
    terms = {term.name: term.bytes for term in stage.terms if term.phase == stage.peak_phase}
    terms["site_margin"] = peak.allocated - stage.peak_bytes
    terms["allocator_waste"] = peak.reserved - peak.allocated
    terms["contexts_and_communicators"] = peak.device - peak.reserved
    held = [MissTerm(name=name, bytes=size) for name, size in terms.items() if size > 0]
    return tuple(sorted(held, key=lambda term: -term.bytes))


def least_memory(space: Space) -> Least | None:
    """The candidate of a space that needs the least memory; None when every one breaks a rule."""
    candidates = survey(space)
    if not len(candidates.grid):
        return None
    row, needed = candidates.leanest(np.arange(len(candidates.grid)))
    fits, number = needed <= space.context.usable_bytes, int(candidates.grid.num_devices[row])
    return Least(candidates.summary(row), needed, fits, number)


def _fixes(space: Space, needed_bytes: int) -> Iterator[str]:
    """Changes of one thing each, tried and found to fit."""
    yield from _relaxed(space)
    yield from _more_devices(space)
    yield from _shorter_sequence(space)
    yield from _lifted_limit(space.context, needed_bytes)
    yield _larger_device(space.context, needed_bytes)


def frugal_space(
    context: RuleContext, *, cluster: ClusterSpec | None = None, training: TrainingSpec | None = None
) -> Space | None:
    """All layouts of a changed context at micro batch 1 and the strongest recomputation; None where a rule refuses it."""
    kind = max(context.runtime.recompute_kinds, key=RECOMPUTE_KINDS.index)
    inputs = (context.model, cluster or context.cluster, training or context.training, context.runtime)
    try:
        return declare_space(
            *inputs, fix={"micro_batch_size": "1", "recompute": kind}, memory_limit=context.memory_limit
        )
    except InputError:
        return None


def _relaxed(space: Space) -> Iterator[str]:
    """Give up what the user stated."""
    stated = sorted({*space.declared, *(["layers_per_stage"] if space.context.layers_per_stage else [])})
    default = frugal_space(space.context) if stated else None
    least = None if default is None else least_memory(default)
    if least is not None and least.fits:
        yield f"leave {', '.join(stated)} free: {least.summary} needs {least.needed_bytes / GIB:.1f} GiB and fits"


def enlarged(cluster: ClusterSpec, factor: int) -> ClusterSpec:
    """A cluster of ``factor`` times as many of the outermost units (of nodes, where there is only one)."""
    outer = cluster.levels[-1]
    levels: tuple[LevelSpec, ...]
    if len(cluster.levels) == 1:
        levels = (outer, outer.model_copy(update={"name": "cluster", "size": factor}))
    else:
        levels = (*cluster.levels[:-1], outer.model_copy(update={"size": outer.size * factor}))
    return cluster.model_copy(update={"levels": levels, "name": f"{factor} x {cluster.name}"})


def _more_devices(space: Space) -> Iterator[str]:
    """The smallest of a few multiples of the cluster on which a plan fits."""
    context = space.context
    for factor in _FACTORS:
        larger = frugal_space(context, cluster=enlarged(context.cluster, factor))
        least = None if larger is None else least_memory(larger)
        if least is not None and least.fits:
            yield (
                f"use {context.cluster.num_devices * factor} devices ({factor} times as many): {least.summary} needs "
                f"{least.needed_bytes / GIB:.1f} GiB and fits"
            )
            return


def _shorter_sequence(space: Space) -> Iterator[str]:
    """Halve the sequence until a plan fits."""
    context, length = space.context, space.context.training.sequence_length // 2
    while length >= _MIN_SEQUENCE:
        training = context.training.model_copy(update={"sequence_length": length})
        shorter = frugal_space(context, training=training)
        least = None if shorter is None else least_memory(shorter)
        if least is not None and least.fits:
            needed = f"{least.needed_bytes / GIB:.1f} GiB"
            yield f"shorten sequence_length to {length}: {least.summary} needs {needed} and fits"
            return
        length //= 2


def _lifted_limit(context: RuleContext, needed_bytes: int) -> Iterator[str]:
    """The device holds the nearest miss, the stated limit alone stands against it."""
    memory = context.cluster.device.memory_bytes
    if context.memory_limit is not None and needed_bytes <= memory:
        wanted, held = gib_apart(needed_bytes, memory)
        yield f"lift the memory limit ({context.memory_limit.words}): the plan above needs {wanted} of {held} GiB"


def _larger_device(context: RuleContext, needed_bytes: int) -> str:
    """The known device with the least memory that would hold the nearest miss."""
    devices = [load_device(name) for name in list_devices()]
    enough = [
        device
        for device in devices
        if device.kind == context.cluster.device.kind
        and usable_bytes(device, context.memory_limit) >= needed_bytes
        and device_supports(device, context.training.precision)
    ]
    needed = f"a device with at least {needed_bytes / GIB:.1f} GiB for the plan above"
    if not enough:
        return f"{needed}; no known device has that much"
    smallest = min(enough, key=lambda device: device.memory_bytes)
    return f"{needed}: {smallest.name} has {smallest.memory_bytes / GIB:.1f} GiB"

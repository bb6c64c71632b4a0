"""Why no candidate of a declared space is valid, and which one statement to change so that there is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.runtimes.rules import obeys_rules
from costmodel.specs import RejectionCount
from planner.axes import AXES
from planner.enumeration import enumerate_candidates
from planner.space import Space

_SIZES = ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_MOST_VALUES = 16


def explain_empty(space: Space) -> RejectionCount:
    """The statement that leaves no valid candidate, and for each of its axes the values that would leave one.

    Args:
        space: a space without a candidate that obeys every rule; often one without any candidate, because the stated
            sizes do not multiply to the devices.

    Returns:
        A rejection that removed no candidate itself (count 0); its fix was tried.
    """
    layers = space.context.layers_per_stage
    words = [f"{name} {_listed(name, codes)}" for name, codes in space.declared.items()]
    words += [] if layers is None else [f"layers_per_stage {','.join(map(str, layers))}"]
    stated = " and ".join(words) or "the axes as they are"
    fewer = "" if "num_devices_used" in space.declared else " or fewer"
    devices = f"{_listed('num_devices_used', space.num_devices)} devices{fewer}"
    fixes = [fix for name in space.declared if (fix := _without(space, name))]
    free = [*space.declared, *(["layers_per_stage"] if layers is not None else [])]
    return RejectionCount(
        rule="statement",
        count=0,
        example=f"no valid plan on {devices} has {stated}",
        fix="; or ".join(fixes) or f"leave {', '.join(free)} free",
    )


def _without(space: Space, name: str) -> str:
    """The values of one axis that give valid candidates while everything else stays as stated; empty for none."""
    declared = {axis: codes for axis, codes in space.declared.items() if axis != name}
    numbers = _numbers(space) if name == "num_devices_used" else space.num_devices
    grid = enumerate_candidates(space.context, declared, numbers)
    valid = grid.take(obeys_rules(space.context, grid)) if len(grid) else grid
    column = valid.num_devices if name == "num_devices_used" else getattr(valid, name)
    return f"choose {name} from {_listed(name, np.unique(column).tolist())}" if len(valid) else ""


def _numbers(space: Space) -> tuple[int, ...]:
    """The first multiples of the smallest product of the stated sizes that the cluster has devices for."""
    product = int(np.prod([min(space.declared[name]) for name in _SIZES if name in space.declared]))
    devices = space.context.cluster.num_devices
    return tuple(product * k for k in range(1, _MOST_VALUES + 1) if product * k <= devices)


def _listed(name: str, codes: Sequence[int]) -> str:
    shown = ", ".join(AXES[name].show(code) for code in codes[:_MOST_VALUES])
    return f"{shown}, ..." if len(codes) > _MOST_VALUES else shown

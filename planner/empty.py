"""Why a declared space holds no candidate at all: what was stated leaves no sizes that multiply to the devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.runtimes.rules import obeys_rules
from costmodel.specs import RejectionCount
from planner.enumeration import enumerate_candidates
from planner.space import Space

# Only these decide whether there is a candidate; the other axes decide what it looks like.
_SIZES = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "data_parallel_replicate_size",
    "data_parallel_shard_size", "num_devices_used",
)  # fmt: skip
_MOST_NUMBERS = 16


def explain_empty(space: Space) -> RejectionCount:
    """The statement that leaves no candidate, and for each of its axes the values that would leave one.

    Args:
        space: a space whose grid has no rows.
    """
    stated = [name for name in _SIZES if name in space.declared]
    sizes = " and ".join(f"{name} {_listed(space.declared[name])}" for name in stated)
    fewer = "" if "num_devices_used" in stated else " or fewer"
    fixes = [fix for name in stated if (fix := _without(space, name))]
    return RejectionCount(
        rule="sizes_multiply",
        count=0,
        example=f"no valid sizes multiply to {_listed(space.num_devices)} devices{fewer} with {sizes}",
        fix="; or ".join(fixes) or f"leave {', '.join(stated)} free",
    )


def _without(space: Space, name: str) -> str:
    """The values of one axis that give valid candidates while everything else stays as stated; empty for none."""
    declared = {axis: codes for axis, codes in space.declared.items() if axis != name}
    numbers = _numbers(space) if name == "num_devices_used" else space.num_devices
    grid = enumerate_candidates(space.context, declared, numbers)
    valid = grid.take(obeys_rules(space.context, grid)) if len(grid) else grid
    column = valid.num_devices if name == "num_devices_used" else getattr(valid, name)
    return f"choose {name} from {_listed(np.unique(column).tolist())}" if len(valid) else ""


def _numbers(space: Space) -> tuple[int, ...]:
    """The first multiples of the smallest product of the stated sizes that the cluster has devices for."""
    product = int(np.prod([min(space.declared[name]) for name in _SIZES[:3] if name in space.declared]))
    devices = space.context.cluster.num_devices
    return tuple(product * k for k in range(1, _MOST_NUMBERS + 1) if product * k <= devices)


def _listed(values: Sequence[int]) -> str:
    shown = ", ".join(str(value) for value in values[:_MOST_NUMBERS])
    return f"{shown}, ..." if len(values) > _MOST_NUMBERS else shown

"""The strategies of the decision guide: which candidates each one means, and how much the model code must change.

The lists and their order are those of "Which Strategy To Use When" in Hugging Face transformers, "Efficient Training
on Multiple GPUs" (perf_train_gpu_many) and its earlier form (parallelism, v4.9.2): the first of each list is usually
faster. The amount of model change is the document's: ZeRO "requires close to no modifications to the model", pipeline
and tensor parallelism together "massive changes", memory-centric tiling a rewrite of torch.nn.Linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.runtimes.grid import Grid
from planner.candidates import Mask

SOURCE = "https://huggingface.co/docs/transformers/perf_train_gpu_many (Which Strategy To Use When)"


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy; ``rows`` is None where it is not modelled yet."""

    name: str
    model_code_change: str
    rows: Callable[[Grid, int], Mask] | None


def _uses(
    *, tensor: bool = False, pipeline: bool = False, zero: tuple[int, ...], data: bool | None = None
) -> Callable[[Grid, int], Mask]:
    """Candidates with exactly these axes in use; ``data`` None leaves data parallelism open."""

    def rows(grid: Grid, _devices_per_node: int) -> Mask:
        split = ((grid.tensor_parallel_size > 1) == tensor) & ((grid.pipeline_parallel_size > 1) == pipeline)
        split &= grid.context_parallel_size == 1
        shared = True if data is None else (grid.data_parallel_size > 1) == data
        return np.asarray(split & np.isin(grid.zero_stage, zero) & shared)

    return rows


def _replicas(grid: Grid, devices_per_node: int) -> Mask:
    """ZeRO inside a node, plain data parallelism between nodes."""
    sharded = (grid.zero_stage > 0) & (grid.tensor_parallel_size == 1) & (grid.pipeline_parallel_size == 1)
    sharded &= grid.context_parallel_size == 1
    inside = (grid.data_parallel_shard_size <= devices_per_node) & (grid.data_parallel_replicate_size > 1)
    return np.asarray(sharded & inside)


def _cut(grid: Grid, _devices_per_node: int) -> Mask:
    """Devices that share every sequence, whatever else is in use."""
    return np.asarray(grid.context_parallel_size > 1)


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("normal use", "none", _uses(zero=(0,), data=False)),
        Strategy("ZeRO + offload to CPU and optionally NVMe", "none", None),
        Strategy("memory-centric tiling", "small: torch.nn.Linear is rewritten", None),
        Strategy("DDP", "none", _uses(zero=(0,), data=True)),
        Strategy("ZeRO", "none", _uses(zero=(1, 2, 3))),
        Strategy("ZeRO with multiple replicas", "none", _replicas),
        Strategy("PP", "massive", _uses(pipeline=True, zero=(0, 1))),
        Strategy("TP", "massive", _uses(tensor=True, zero=(0, 1))),
        Strategy("PP+TP+DP", "massive", _uses(tensor=True, pipeline=True, zero=(0,))),
        Strategy("DP+PP+TP+ZeRO-1", "massive", _uses(tensor=True, pipeline=True, zero=(1,))),
        Strategy("CP", "small: attention runs over parts of a sequence", _cut),
    )
}


def belongs(strategy: Strategy, grid: Grid, devices_per_node: int) -> Mask:
    """Which candidates are plans of this strategy; none where it is not modelled."""
    if strategy.rows is None:
        return np.zeros(len(grid), dtype=bool)
    return np.asarray(strategy.rows(grid, devices_per_node))

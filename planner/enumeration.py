"""Write a declared space out as a grid of candidates.

For every (devices, tensor, context, pipeline) that multiplies, the data-parallel size follows, and the remaining
axes are crossed. An axis whose only sensible value follows from another one takes that value (no
schedule without a pipeline); where the user declared something else, the candidate is written out all
the same, so that a rule can refuse it with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import prod

import numpy as np

from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid, IntColumn
from costmodel.runtimes.placement import LOOPED_SCHEDULES, V_SCHEDULES
from costmodel.runtimes.rules import RuleContext, divisors
from costmodel.specs import PipelineSchedule
from planner.axis_orders import order_values
from planner.context_values import context_methods, context_sizes

_NONE, _NAIVE = SCHEDULES.index("none"), SCHEDULES.index("naive")
_LOOPED = tuple(SCHEDULES.index(name) for name in LOOPED_SCHEDULES)
_V_SHAPED = tuple(SCHEDULES.index(name) for name in V_SCHEDULES)
# Searched unless stated otherwise; the others of a runtime join a space by --fix and --allow.
DEFAULT_SCHEDULES: tuple[PipelineSchedule, ...] = ("none", "naive", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")
_MAX_MICRO_BATCH, _MAX_TOKENS = 64, 1 << 16
_MAX_MODEL_CHUNKS = 8
_COLUMNS = (
    "axis_order", "context_parallel_method", "pipeline_schedule", "num_model_chunks",
    "data_parallel_replicate_size", "data_parallel_shard_size", "zero_stage", "hierarchical_partition_size",
    "micro_batch_size", "num_micro_batches", "sequence_parallel", "loss_parallel", "recompute",
)  # fmt: skip
Declared = Mapping[str, tuple[int, ...]]
Option = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Cell:
    """The sizes that a block of candidates shares."""

    tensor: int
    context: int
    pipeline: int
    data: int

    @property
    def devices(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data


def _pick(declared: Declared, axis: str, default: Sequence[int], valid: Callable[[int], bool]) -> tuple[int, ...]:
    """Values of an axis that make sense here; all declared ones when none does, for a rule to refuse."""
    values = declared.get(axis, tuple(default))
    good = tuple(value for value in values if valid(value))
    return good or (values if axis in declared else ())


def tensor_parallel_values(context: RuleContext, declared: Declared) -> tuple[int, ...]:
    """Declared sizes, else powers of two and divisors up to the devices of one node."""
    node = context.cluster.devices_per_node
    powers = [2**k for k in range(node.bit_length()) if 2**k <= node]
    return declared.get("tensor_parallel_size", tuple(sorted({*powers, *divisors(node)})))


def pipeline_values(context: RuleContext, declared: Declared, rest: int) -> list[int]:
    """Declared sizes, else all that the layers allow; both only where they divide the devices left."""
    values = declared.get("pipeline_parallel_size")
    if values is not None:
        return [size for size in values if rest % size == 0]
    return [size for size in divisors(rest) if size <= context.model.num_hidden_layers]


def _pipeline_options(context: RuleContext, declared: Declared, cell: _Cell) -> list[Option]:
    """(schedule, model chunks)."""
    known = [SCHEDULES.index(name) for name in DEFAULT_SCHEDULES if name in context.runtime.schedules]
    piped = cell.pipeline > 1
    schedules = _pick(declared, "pipeline_schedule", known, lambda code: (code != _NONE) == piped)
    return [(code, chunks) for code in schedules for chunks in _chunks(context, declared, cell, code)]


def _chunks(context: RuleContext, declared: Declared, cell: _Cell, schedule: int) -> tuple[int, ...]:
    if schedule in _V_SHAPED:
        return _pick(declared, "num_model_chunks", [2], lambda count: count == 2)
    if schedule not in _LOOPED:
        return _pick(declared, "num_model_chunks", [1], lambda count: count == 1)
    return _pick(declared, "num_model_chunks", chunk_values(context, cell.pipeline), lambda count: count > 1)


def chunk_values(context: RuleContext, pipeline: int) -> list[int]:
    """2 to 8 chunks per rank, and one layer per chunk."""
    most = context.model.num_hidden_layers // pipeline
    values = {*range(2, min(most, _MAX_MODEL_CHUNKS) + 1)}
    if most > 1 and most * pipeline == context.model.num_hidden_layers:
        values.add(most)
    return sorted(values)


def shard_values(context: RuleContext, declared: Declared, data: int, within: int) -> list[int]:
    """Declared sizes; else none, what stays inside a node, and the whole group, a half and a quarter of it.

    ``within``: devices that share one sequence of a replica's stage, tensor x context parallel.
    """
    if "data_parallel_shard_size" in declared:
        return [size for size in declared["data_parallel_shard_size"] if data % size == 0]
    if not context.runtime.hybrid_shard:
        return sorted({1, data})
    inside = max(1, context.cluster.devices_per_node // within)
    large = {data // part for part in (1, 2, 4) if data % part == 0}
    return sorted({1, *large, *(size for size in divisors(inside) if data % size == 0)})


def _zero_values(context: RuleContext, declared: Declared, cell: _Cell, shard: int) -> tuple[int, ...]:
    """Stage 0 exactly without shards; one device to shard over shards nothing, so its stage is normalised to 0.

    Context-parallel devices are sharded over too, whether data-parallel ones are or not.
    """
    group, alone = shard * cell.context, cell.context == 1
    if group == 1 and (cell.data == 1 or "data_parallel_shard_size" in declared):
        return (0,)
    both = not alone and shard == 1 and (cell.data == 1 or context.runtime.hybrid_shard)
    return _pick(declared, "zero_stage", context.runtime.zero_stages, lambda stage: both or (stage > 0) == (shard > 1))


def _partitions(context: RuleContext, declared: Declared, cell: _Cell, shard: int, stage: int) -> tuple[int, ...]:
    """Off, and for ZeRO-3 across nodes one copy per node; not beside tensor parallelism, which no runtime combines."""
    share = context.cluster.devices_per_node // cell.tensor
    group = shard * cell.context
    proper = 1 < share < group and group % share == 0 and context.runtime.hierarchical_partition
    sizes = (0, share) if proper and stage == 3 and cell.tensor == 1 else (0,)
    return _pick(declared, "hierarchical_partition_size", sizes, lambda size: size == 0 or stage == 3)


def _data_options(context: RuleContext, declared: Declared, cell: _Cell) -> list[Option]:
    """(replicate, shard, ZeRO stage, hierarchical partition)."""
    options: list[Option] = []
    for shard in shard_values(context, declared, cell.data, cell.tensor * cell.context):
        replicate = cell.data // shard
        if replicate not in declared.get("data_parallel_replicate_size", (replicate,)):
            continue
        for stage in _zero_values(context, declared, cell, shard):
            options += [(replicate, shard, stage, size) for size in _partitions(context, declared, cell, shard, stage)]
    return options


def micro_batch_values(share: int, sequence_length: int) -> tuple[int, ...]:
    """Divisors of one data-parallel rank's share of the batch, up to 64 or 65,536 tokens."""
    most = max(_MAX_MICRO_BATCH, _MAX_TOKENS // sequence_length)
    return tuple(size for size in divisors(share) if size <= most)


def _batch_options(context: RuleContext, declared: Declared, cell: _Cell, schedule: int) -> list[Option]:
    """(micro batch, number of micro-batches); where the batch does not divide, rounded down for a rule to refuse."""
    batch, data = context.training.global_batch_size, cell.data
    micro, count = declared.get("micro_batch_size"), declared.get("num_micro_batches")
    if micro is not None and count is not None:
        return [(size, number) for size in micro for number in count]
    if count is not None:
        return [(max(1, batch // (data * number)), number) for number in count]
    if micro is None:
        share = batch // data if batch % data == 0 else 1
        micro = (share,) if schedule == _NAIVE else micro_batch_values(share, context.training.sequence_length)
    return [(size, max(1, batch // (data * size))) for size in micro]


def _tensor_options(declared: Declared, cell: _Cell) -> list[Option]:
    """(sequence parallel, loss parallel)."""
    split = cell.tensor > 1
    sequence = _pick(declared, "sequence_parallel", (0, 1), lambda on: split or on == 0)
    # Keeping the logits cut is never worse, so the loss is parallel wherever it can be unless stated otherwise.
    loss = _pick(declared, "loss_parallel", (int(split),), lambda on: split or on == 0)
    return [(on, cut) for on in sequence for cut in loss]


@dataclass(frozen=True, slots=True)
class _Block:
    """Every combination of one option per group, for one cell."""

    cell: _Cell
    groups: tuple[list[Option], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(group) for group in self.groups)

    def write(self, columns: Mapping[str, IntColumn], rows: slice) -> None:
        """Write the block into ``rows`` of the columns, in place: the columns of wide spaces are too large for copies."""
        shape, names = self.shape, iter(_COLUMNS)
        for axis, group in enumerate(self.groups):
            along = [-1 if other == axis else 1 for other in range(len(shape))]
            for values in np.array(group, dtype=np.int64).T:
                columns[next(names)][rows].reshape(shape)[...] = values.reshape(along)
        columns["tensor_parallel_size"][rows] = self.cell.tensor
        columns["pipeline_parallel_size"][rows] = self.cell.pipeline
        columns["context_parallel_size"][rows] = self.cell.context


def _methods(context: RuleContext, declared: Declared, cell: _Cell) -> tuple[int, ...]:
    stated = declared.get("context_parallel_method")
    return context_methods(context, stated, size=cell.context, tensor=cell.tensor, devices=cell.devices)


def _cells(context: RuleContext, declared: Declared, devices: int) -> Iterator[_Cell]:
    """All sizes that multiply to ``devices``."""
    cuts = context_sizes(context, declared.get("context_parallel_size"), declared.get("context_parallel_method"))
    for tensor, cut in product(tensor_parallel_values(context, declared), cuts):
        if devices % (tensor * cut):
            continue
        for pipeline in pipeline_values(context, declared, devices // (tensor * cut)):
            cell = _Cell(tensor, cut, pipeline, devices // (tensor * cut * pipeline))
            if cell.data in declared.get("data_parallel_size", (cell.data,)):
                yield cell


def _blocks(context: RuleContext, declared: Declared, cell: _Cell) -> list[_Block]:
    kinds = [RECOMPUTE_KINDS.index(kind) for kind in context.runtime.recompute_kinds]
    recompute: list[Option] = [(kind,) for kind in declared.get("recompute", tuple(kinds))]
    data, tensor = _data_options(context, declared, cell), _tensor_options(declared, cell)
    sizes = {"tensor": cell.tensor, "cut": cell.context, "pipeline": cell.pipeline, "data": cell.data}
    orders: list[Option] = [(code,) for code in order_values(context, declared.get("axis_order"), **sizes)]
    methods: list[Option] = [(code,) for code in _methods(context, declared, cell)]
    pipeline = _pipeline_options(context, declared, cell)
    blocks = []
    for naive in (False, True):
        chosen = [option for option in pipeline if (option[0] == _NAIVE) == naive]
        batch = _batch_options(context, declared, cell, _NAIVE if naive else _NONE)
        if chosen and data:
            blocks.append(_Block(cell, (orders, methods, chosen, data, batch, tensor, recompute)))
    return blocks


def enumerate_candidates(context: RuleContext, declared: Declared, num_devices: Sequence[int]) -> Grid:
    """All candidates of a space.

    Args:
        context: model, cluster, training, runtime.
        declared: axis -> column codes; axes that are absent take their default values.
        num_devices: how many devices a candidate uses, each number a separate part of the space.

    Returns:
        A grid, possibly of no rows.
    """
    cells = (cell for devices in num_devices for cell in _cells(context, declared, devices))
    blocks = [block for cell in cells for block in _blocks(context, declared, cell)]
    stops = np.cumsum([0, *(prod(block.shape) for block in blocks)])
    columns = {field.name: np.empty(int(stops[-1]), dtype=np.int64) for field in fields(Grid)}
    for block, start, stop in zip(blocks, stops[:-1], stops[1:], strict=True):
        block.write(columns, slice(int(start), int(stop)))
    return Grid(**columns)

"""The axes of the parity matrix as data: what a plan can be made of, and which combinations are valid plans.

A value of an axis says which settings of a plan it makes, so a new model or schedule joins by one more line here. The values
of one inner tuple are of one *kind*: continuous integration runs every pair of kinds and every value, the slow run
every pair of values. `parity_covering` writes the combinations to ``parity_matrix.csv``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from executor_plans import make_cluster, make_plan, recompute_each
from numpy.typing import NDArray

from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import RULES, RuleContext, evaluate
from costmodel.runtimes.rules_core import BoolColumn
from costmodel.specs import OptimizerSpec, ParallelConfig, Plan

# 24 = 2^3 x 3: a third of a batch shows rounding below float64 that halves would hide.
BATCH, SEQUENCE = 24, 8
LEAST_DEVICES, MOST_DEVICES = 2, 8
DEVICES, NO_PIPELINE = "2 to 8 processes", "uneven stages need a pipeline"
ROWS_FILE = Path(__file__).with_name("parity_matrix.csv")


# Rounding moves inputs of ReLU across 0, where its derivative jumps: in bfloat16 6% of opt's gradient is rounding, with
# GELU, which opt's config can name as well, 1% as of every other model.
SMOOTH = {"opt": "opt-gelu"}


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an axis: its name in the matrix and in test ids, and the settings it stands for."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


Axis = tuple[tuple[Value, ...], ...]
Combination = Mapping[str, str]  # axis -> name of its value


def _models(*names: str) -> tuple[Value, ...]:
    return tuple(Value(name, {"model": name}) for name in names)


def _schedules(chunks: int, *names: str) -> tuple[Value, ...]:
    return tuple(Value(name, {"pipeline_schedule": name, "num_model_chunks": chunks}) for name in names)


def _zero(name: str, stage: int, shards: int = 2, **sizes: int) -> Value:
    return Value(name, {"zero_stage": stage, "data_parallel_shard_size": shards, **sizes})


def _each(setting: str, names: Mapping[str, Any]) -> Axis:
    """An axis whose every value is a kind of its own."""
    return tuple((Value(name, {setting: value}),) for name, value in names.items())


# Axes that rules tie to each other.
STRUCTURE: Mapping[str, Axis] = {
    "model": (
        _models("llama", "llama-mha", "mistral-window", "qwen2-mixed"),
        _models("qwen2", "qwen3"),
        _models("gemma2", "phi3"),
        _models("gpt2", "gpt-neox", "opt"),
    ),
    "zero": (
        (_zero("zero0", 0, 1),),
        (_zero("zero1", 1),),
        (_zero("zero2", 2),),
        (_zero("zero3", 3), _zero("hpz", 3, 4, hierarchical_partition_size=2)),
    ),
    "replicas": _each("data_parallel_replicate_size", {"replicas1": 1, "replicas2": 2}),
    "tensor": (
        (Value("tp1", {"tensor_parallel_size": 1}),),
        (Value("tp2", {"tensor_parallel_size": 2}), Value("tp4", {"tensor_parallel_size": 4})),
    ),
    "sequence": _each("sequence_parallel", {"whole-sequence": False, "sp": True}),
    "loss": _each("loss_parallel", {"whole-loss": False, "lp": True}),
    "pipeline": (
        (Value("pp1", {"pipeline_parallel_size": 1}),),
        (Value("pp2", {"pipeline_parallel_size": 2}), Value("pp4", {"pipeline_parallel_size": 4})),
    ),
    "schedule": (
        _schedules(1, "none"),
        (*_schedules(1, "naive", "gpipe"), *_schedules(2, "looped_bfs")),
        (*_schedules(1, "1f1b"), *_schedules(2, "interleaved_1f1b")),
        _schedules(2, "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v"),
    ),
    "stages": _each("uneven", {"even": False, "uneven": True}),
    "micro_batches": _each("num_micro_batches", {"m1": 1, "m3": 3, "m6": 6}),
}
# Axes that no rule of runtime torch ties to anything.
FREE: Mapping[str, Axis] = {
    "embeddings": _each("tie_word_embeddings", {"untied": False, "tied": True}),
    "vocabulary": _each("vocab_size", {"v64": 64, "v63": 63}),
    "recompute": _each(
        "recompute", {"no-recompute": "none", "core_attention": "core_attention", "full": "full", "mixed": "mixed"}
    ),
    "attention": _each("attention", {kind: kind for kind in ("fused", "unfused")}),
    "optimizer": _each("optimizer", {name: name for name in ("adamw", "sgd")}),
    "clipping": _each("clipping", {"clipped": True, "unclipped": False}),
    "precision": _each("precision", {name: name for name in ("fp64", "bf16")}),
}
AXES: Mapping[str, Axis] = {**STRUCTURE, **FREE}


def values(axis: str) -> tuple[Value, ...]:
    """All values of an axis, kind after kind."""
    return tuple(chain.from_iterable(AXES[axis]))


def kinds(axis: str) -> dict[str, int]:
    """The number of the kind of every value."""
    return {value.name: number for number, kind in enumerate(AXES[axis]) for value in kind}


def read_rows(run: str) -> dict[str, Combination]:
    """The combinations of the run ``ci`` or ``slow`` by id: the model and whatever differs from the axes' first values."""
    with ROWS_FILE.open() as lines:
        found = [row for row in csv.DictReader(lines) if row.pop("run") == run]
    return {name_of(row): row for row in found}


def name_of(combination: Combination) -> str:
    """The id of a combination's test."""
    said = [combination[axis] for axis in AXES if combination[axis] != values(axis)[0].name and axis != "model"]
    return "-".join([combination["model"], *said])


def plan_of(combination: Combination) -> Plan:
    """The plan of a combination; ``mixed`` recomputation gives every stage another kind."""
    chosen: dict[str, Any] = {}
    for axis, name in combination.items():
        chosen |= next(value.settings for value in values(axis) if value.name == name)
    config = ParallelConfig.model_validate(
        {name: chosen[name] for name in ParallelConfig.model_fields if name in chosen}
    )
    depth = int(_depth(config.pipeline_parallel_size * config.num_model_chunks, chosen["uneven"]))
    mixed, model = chosen["recompute"] == "mixed", chosen["model"]
    plan = make_plan(
        SMOOTH.get(model, model) if chosen["precision"] == "bf16" else model,
        changes={"num_hidden_layers": depth, **{key: chosen[key] for key in ("tie_word_embeddings", "vocab_size")}},
        batch=BATCH,
        sequence=SEQUENCE,
        optimizer=_optimizer(chosen),
        recompute="none" if mixed else chosen["recompute"],
        **{key: chosen[key] for key in ("precision", "attention")},
        **{
            **config.model_dump(),
            "micro_batch_size": BATCH // (config.num_micro_batches * config.data_parallel_size),
        },
    )
    return recompute_each(plan, ("full", "core_attention", "none")) if mixed else plan


def _optimizer(chosen: Mapping[str, Any]) -> OptimizerSpec:
    """Large steps in float64. In mixed precision steps as people take them, and an epsilon that keeps AdamW from making
    whole steps of gradients that are nothing but rounding (those of key biases are 0).
    """
    exact, limit = chosen["precision"] == "fp64", 0.5 if chosen["clipping"] else None
    if chosen["optimizer"] == "sgd":
        rate = 0.5 if exact else 0.1
        return OptimizerSpec(name="sgd", learning_rate=rate, momentum=0.9, max_grad_norm=limit)
    if exact:
        return OptimizerSpec(learning_rate=1e-2, max_grad_norm=limit)
    return OptimizerSpec(learning_rate=2e-3, max_grad_norm=limit, epsilon=1e-3)


def _depth(num_stages: Any, uneven: Any) -> Any:
    """Layers: as few as make even stages, or with one more uneven ones."""
    return np.maximum(4, num_stages) + uneven


@lru_cache(maxsize=1)
def structures() -> tuple[NDArray[np.int64], Mapping[str, BoolColumn]]:
    """All combinations of `STRUCTURE`, numbers of values [n, axes], and which of them every rule refuses, [n].

    Rules are those of the runtime torch and two of the matrix: `DEVICES` and `NO_PIPELINE`.
    """
    rows = np.indices([len(values(axis)) for axis in STRUCTURE]).reshape(len(STRUCTURE), -1).T
    columns = _columns(rows)
    uneven = columns.pop("uneven")
    grid = Grid(**columns)
    depth = _depth(grid.pipeline_parallel_size * grid.num_model_chunks, uneven)
    refused = {rule.name: np.zeros(len(rows), dtype=np.bool_) for rule in RULES}
    for number, layers in {(int(model), int(layers)) for model, layers in zip(rows[:, 0], depth, strict=True)}:
        index = np.flatnonzero((rows[:, 0] == number) & (depth == layers))
        for outcome in evaluate(_context(values("model")[number].name, layers), grid.take(index)):
            refused[outcome.rule.name][index] = ~outcome.mask_ok
    refused[DEVICES] = (grid.num_devices < LEAST_DEVICES) | (grid.num_devices > MOST_DEVICES)
    refused[NO_PIPELINE] = (uneven == 1) & (grid.pipeline_parallel_size == 1)
    return rows, refused


def valid_structures() -> NDArray[np.int64]:
    """The combinations of `STRUCTURE` that nothing refuses: numbers of values, [n, axes]."""
    rows, refused = structures()
    return rows[~np.logical_or.reduce(list(refused.values()))]


def num_devices(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Devices of every structure, [n]."""
    columns = _columns(rows)
    del columns["uneven"]
    return Grid(**columns).num_devices


def _columns(rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """The columns of `Grid` that values of `STRUCTURE` stand for, and ``uneven``; [n] each."""
    one = Grid.from_parallel(ParallelConfig(), "none")
    columns = {column.name: np.repeat(getattr(one, column.name), len(rows)) for column in fields(Grid)}
    columns["uneven"] = np.zeros(len(rows), dtype=np.int64)
    for axis, numbers in zip(STRUCTURE, rows.T, strict=True):
        for number, value in enumerate(values(axis)):
            for name in value.settings.keys() & columns.keys():
                setting = value.settings[name]
                columns[name][numbers == number] = SCHEDULES.index(setting) if name == "pipeline_schedule" else setting
    data = columns["data_parallel_replicate_size"] * columns["data_parallel_shard_size"]
    columns["micro_batch_size"] = np.maximum(1, BATCH // (columns["num_micro_batches"] * data))
    return columns


def _context(model: str, layers: int) -> RuleContext:
    plan = make_plan(model, changes={"num_hidden_layers": layers}, batch=BATCH, sequence=SEQUENCE)
    cluster, runtime = make_cluster(MOST_DEVICES), load_runtime("torch")
    return RuleContext(model=plan.model, cluster=cluster, training=plan.training, runtime=runtime)

"""Columns of stages against the estimates of complete plans."""

from __future__ import annotations

import random

import numpy as np
import pytest

from costmodel.build import build_plan
from costmodel.completions import CompletionBytes, StageColumns, completion_bytes, completion_seconds
from costmodel.estimate import estimate
from costmodel.runtimes.grid import Grid
from costmodel.setting import Problem
from costmodel.specs import ParallelConfig, RecomputeSpec
from meshwright.inputs import load_cluster, load_model, load_runtime, make_training

CASES = [
    ("llama-3-8b", "torch", "1f1b", 1, "full"),
    ("llama-3-8b", "torch", "interleaved_1f1b", 2, "full"),
    ("llama-3-8b", "torch", "looped_bfs", 3, "core_attention"),
    ("gemma-2-2b", "torch", "gpipe", 1, "core_attention"),
    ("gemma-2-2b", "torch", "zbv_zero_bubble", 2, "full"),
    ("gpt3-175b", "megatron", "interleaved_1f1b", 4, "full"),
]


@pytest.mark.parametrize(("name", "framework", "schedule", "chunks", "kind"), CASES)
def test_columns_equal_estimates(name: str, framework: str, schedule: str, chunks: int, kind: str) -> None:
    """Random boundaries and counts, several rows at once with different micro-batches, to the last bit."""
    rng = random.Random(name + schedule)
    model, cluster, runtime = load_model(name), load_cluster("2x8xH100-SXM"), load_runtime(framework)
    training = make_training(cluster, runtime, global_batch_size=64, sequence_length=2048)
    problem = Problem(model=model, cluster=cluster, training=training, runtime=runtime)
    virtual, depth = 4 * chunks, model.num_hidden_layers
    rows, layers, recomputed, plans = [], [], [], []
    for micro_batches in (8, 16, 16, 32):
        parallel = ParallelConfig(
            tensor_parallel_size=2, pipeline_parallel_size=4, data_parallel_shard_size=2, zero_stage=1,
            pipeline_schedule=schedule, num_model_chunks=chunks, micro_batch_size=32 // micro_batches,
            num_micro_batches=micro_batches, loss_parallel=True,
        )  # fmt: skip
        cuts = sorted(rng.sample(range(1, depth), virtual - 1))
        split = np.diff([0, *cuts, depth]).tolist()
        counts = [rng.randint(0, size) for size in split]
        modes = [RecomputeSpec(kind=kind, num_layers=count) if count else RecomputeSpec() for count in counts]
        plans.append(
            build_plan(model, cluster, training, runtime, parallel, recompute=modes, layers_per_stage=tuple(split))
        )
        rows.append(Grid.from_parallel(parallel, kind))
        layers.append(split)
        recomputed.append(counts)
    grid = Grid.joined(rows)
    stages = StageColumns.contiguous(np.array(layers), np.array(recomputed))
    estimates = [estimate(plan, runtime) for plan in plans]
    assert completion_seconds(problem, grid, stages).tolist() == [made.step_time_seconds.value for made in estimates]
    needed = completion_bytes(problem, grid, stages)
    assert needed.shape == (4, 4)
    assert needed.max(axis=1).tolist() == [made.peak_memory_bytes.device for made in estimates]


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved_1f1b", 2), ("looped_bfs", 2)])
def test_no_recomputed_layer_saves_more_than_is_said(schedule: str, chunks: int) -> None:
    model, cluster, runtime = load_model("llama-3-8b"), load_cluster("8xH100-SXM"), load_runtime("torch")
    training = make_training(cluster, runtime, global_batch_size=64, sequence_length=4096)
    problem = Problem(model=model, cluster=cluster, training=training, runtime=runtime)
    parallel = ParallelConfig(
        pipeline_parallel_size=4, data_parallel_replicate_size=2, pipeline_schedule=schedule,
        num_model_chunks=chunks, micro_batch_size=2, num_micro_batches=16,
    )  # fmt: skip
    one = Grid.from_parallel(parallel, "full")
    layers = np.full((1, 4 * chunks), 8 // chunks, dtype=np.int64)
    (saved, first), closest = (column[0] for column in CompletionBytes(problem, one).saved()), 0.0
    for stage in range(4 * chunks):
        for count in range(layers[0, stage]):
            counts = np.zeros_like(layers)
            counts[0, stage] = count
            fewer = completion_bytes(problem, one, StageColumns.contiguous(layers, counts))[0]
            counts[0, stage] += 1
            more = completion_bytes(problem, one, StageColumns.contiguous(layers, counts))[0]
            drop = (fewer - more)[stage % 4]
            assert drop <= saved[stage] + (first[stage] if count == 0 else 0) + 2
            closest = max(closest, drop / saved[stage])
            assert (np.delete(fewer, stage % 4) == np.delete(more, stage % 4)).all()
    assert closest > 0.95

"""Peak memory of plans and grids: terms that sum, one answer for both, measured peaks, published runs that fit or do not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_worlds import GIB, cluster, gpt, llama, make_plan

from costmodel.build import build_plan
from costmodel.memory import grid_peak_bytes, host_memory_bytes, peak_memory, plan_memory
from costmodel.models.loader import load_model
from costmodel.runtimes.grid import RECOMPUTE_KINDS, SCHEDULES, Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.placement import LOOPED_SCHEDULES, V_SCHEDULES
from costmodel.specs import LayerGroup, ModelSpec, PipelineSchedule, Plan, StageMemory, TrainingSpec

TORCH, MEGATRON = load_runtime("torch"), load_runtime("megatron")
PIPELINE: dict[str, Any] = {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "num_micro_batches": 8}


def terms(stage: StageMemory, phase: str = "forward_backward") -> dict[str, int]:
    return {term.name: term.bytes for term in stage.terms if term.phase == phase}


@pytest.mark.parametrize("runtime", ["torch", "megatron"])
def test_the_peak_is_the_largest_sum_of_a_phase(runtime: str) -> None:
    plan = make_plan(llama(), runtime=runtime, **PIPELINE)
    for stage in plan_memory(plan, load_runtime(runtime)):
        sums = {phase: sum(terms(stage, phase).values()) for phase in ("init", "forward_backward", "optimizer")}
        assert stage.peak_bytes == max(sums.values()) == sums[stage.peak_phase]


def test_activations_by_pipeline_rank_follow_the_micro_batches_in_flight() -> None:
    """1F1B with p = 4: 4, 3, 2 and 1 micro-batches of equal stages; rank 3 also keeps norm, head input and loss."""
    stages = plan_memory(make_plan(llama(layers=8), runtime="megatron", sequence=512, **PIPELINE), MEGATRON)
    kept = [terms(stage)["activations"] for stage in stages]
    assert kept[0] * 3 == kept[1] * 4
    assert kept[0] * 2 == kept[2] * 4


def test_uneven_stages_weigh_what_they_hold() -> None:
    even = plan_memory(make_plan(llama(layers=8), **PIPELINE), TORCH)
    uneven = plan_memory(make_plan(llama(layers=8), layers_per_stage=(1, 3, 3, 1), **PIPELINE), TORCH)
    assert uneven[0].peak_bytes < even[0].peak_bytes
    assert uneven[1].peak_bytes > even[1].peak_bytes


def test_recomputation_trades_kept_activations_for_a_working_set() -> None:
    def peak(kind: Any) -> dict[str, int]:
        (stage,) = plan_memory(
            make_plan(
                llama(layers=16),
                recompute=kind,
                sequence=512,
                training={"attention_implementation": "unfused"},
                micro_batch_size=4,
            ),
            TORCH,
        )
        return {**terms(stage), "peak": stage.peak_bytes}

    nothing, core, full = peak("none"), peak("core_attention"), peak("full")
    assert nothing["peak"] > core["peak"] > full["peak"]
    assert "recompute_working_set" not in nothing
    assert full["recompute_working_set"] > core["recompute_working_set"] > 0


def test_a_cpu_has_neither_allocator_nor_context() -> None:
    for kind in ("cuda", "cpu"):
        plan = make_plan(llama(), device=kind)
        peak = peak_memory(plan_memory(plan, TORCH), TORCH, plan.cluster.device)
        if kind == "cpu":
            assert peak.allocated == peak.reserved == peak.device
        else:
            held = max(stage.peak_bytes + stage.pooled_bytes for stage in plan_memory(plan, TORCH))
            assert peak.reserved == int(np.ceil(held * TORCH.reserved_over_allocated))
            assert peak.device == peak.reserved + TORCH.context_bytes
    assert host_memory_bytes(plan) == 0


def row(**sizes: Any) -> dict[str, int]:
    return {**{field.name: 1 for field in fields(Grid)}, **sizes}


@st.composite
def candidates(draw: st.DrawFn) -> dict[str, int]:
    """One valid row: sizes as the rules allow them, stages even."""
    stages = draw(st.sampled_from([1, 2, 3, 4, 7]))
    schedule = draw(st.sampled_from(SCHEDULES[2:])) if stages > 1 else "none"
    chunks = (
        draw(st.sampled_from([2, 3, 6] if stages < 4 else [2, 3]))
        if schedule in LOOPED_SCHEDULES
        else 1 + (schedule in V_SCHEDULES)
    )
    shards = draw(st.sampled_from([1, 2, 4]))
    tensor = draw(st.sampled_from([1, 2, 4]))
    context = draw(st.sampled_from([1, 2, 4]))
    return row(
        tensor_parallel_size=tensor,
        sequence_parallel=int(tensor > 1 and draw(st.booleans())),
        loss_parallel=int(tensor > 1 and draw(st.booleans())),
        pipeline_parallel_size=stages,
        pipeline_schedule=SCHEDULES.index(schedule),
        num_model_chunks=chunks,
        data_parallel_replicate_size=draw(st.sampled_from([1, 2])),
        data_parallel_shard_size=shards,
        zero_stage=draw(st.sampled_from([1, 2, 3])) if shards > 1 else 0,
        hierarchical_partition_size=0,
        micro_batch_size=draw(st.sampled_from([1, 2])),
        num_micro_batches=stages * draw(st.sampled_from([2, 3] if schedule == "dualpipe_v" else [1, 2, 3, 6])),
        recompute=draw(st.sampled_from(range(len(RECOMPUTE_KINDS)))),
        context_parallel_size=context,
        context_parallel_method=draw(st.sampled_from([1, 2, 3])) if context > 1 else 0,
        axis_order=0,
    )


def of_two_widths(*counts: int) -> ModelSpec:
    """A model whose layers are narrow and wide by turns, so many at a time."""
    model = llama(layers=1)
    (group,) = model.layers
    wide = group.feed_forward.model_copy(update={"intermediate_size": 500})
    layers = (
        LayerGroup(count=count, attention=group.attention, feed_forward=wide if index % 2 else group.feed_forward)
        for index, count in enumerate(counts)
    )
    return model.model_copy(update={"layers": tuple(layers)})


GRID_MODELS = [
    llama(layers=23),
    of_two_widths(9, 14),
    of_two_widths(*[1] * 23),
    of_two_widths(*[2, 1] * 7, 2),
    of_two_widths(2, 1, 3, 1, 16),
]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(candidates(), min_size=1, max_size=12),
    st.sampled_from(["torch", "megatron", "deepspeed"]),
    st.sampled_from(GRID_MODELS),
)
def test_a_grid_answers_as_each_of_its_plans(rows: list[dict[str, int]], name: str, model: ModelSpec) -> None:
    """The vectorised column equals peak_memory's device bytes of every row's plan, to the byte."""
    runtime, machine = load_runtime(name), cluster()
    columns = {field.name: np.array([one[field.name] for one in rows], dtype=np.int64) for field in fields(Grid)}
    grid = Grid(**columns)
    training = TrainingSpec(global_batch_size=1, sequence_length=64, precision=runtime.precisions["bf16"])
    column = grid_peak_bytes(model, machine, training, runtime, grid)
    assert column.dtype == np.float64
    for index in range(len(grid)):
        plan = build_plan(model, machine, training, runtime, grid.parallel(index), recompute=grid.recompute_kind(index))
        assert column[index] == peak_memory(plan_memory(plan, runtime), runtime, machine.device).device


def test_rows_with_other_numbers_of_chunks_do_not_matter() -> None:
    """Rank 0 of 2 with 2 chunks has 5 of 8 passes in flight, so gradients of others are there; none are in flight on a third
    chunk that only other rows have.
    """
    model = llama(layers=24, width=64)
    sizes = {"pipeline_parallel_size": 2, "num_micro_batches": 4, "data_parallel_shard_size": 2, "zero_stage": 1}
    plans = [
        make_plan(model, sequence=64, pipeline_schedule=schedule, num_model_chunks=chunks, **sizes)
        for schedule, chunks in (("interleaved_1f1b", 2), ("interleaved_1f1b", 6), ("looped_bfs", 6), ("looped_bfs", 2))
    ]
    together = Grid.joined([Grid.from_plan(plan) for plan in plans])
    column = grid_peak_bytes(model, plans[0].cluster, plans[0].training, TORCH, together)
    alone = [peak_memory(plan_memory(plan, TORCH), TORCH, plan.cluster.device).device for plan in plans]
    assert column.tolist() == alone


@pytest.mark.parametrize(
    ("schedule", "layers", "sizes"),
    [
        ("1f1b", 23, {"pipeline_parallel_size": 7, "num_micro_batches": 6}),
        ("interleaved_1f1b", 22, {"pipeline_parallel_size": 4, "num_micro_batches": 4, "num_model_chunks": 2}),
    ],
)
def test_the_fullest_rank_may_be_the_first_that_has_finished_a_backward(
    schedule: PipelineSchedule, layers: int, sizes: dict[str, int]
) -> None:
    """Rank 1 has all micro-batches in flight and no gradients yet, rank 2 one less and the gradients of the first."""
    model = llama(layers=layers, width=64)
    plan = make_plan(model, sequence=4, pipeline_schedule=schedule, data_parallel_shard_size=2, zero_stage=1, **sizes)
    stages = plan_memory(plan, TORCH)
    assert max(stages, key=lambda stage: stage.peak_bytes + stage.pooled_bytes).rank == 2
    column = grid_peak_bytes(model, plan.cluster, plan.training, TORCH, Grid.from_plan(plan))
    assert column == [peak_memory(stages, TORCH, plan.cluster.device).device]


def test_ten_thousand_candidates_are_priced_at_once() -> None:
    generator = np.random.default_rng(0)

    def choose(*values: int) -> Any:
        return generator.choice(values, 10_000).astype(np.int64)

    stages = choose(1, 2, 4, 8, 16)
    grid = Grid(
        tensor_parallel_size=choose(1, 2, 4, 8),
        sequence_parallel=choose(0, 1),
        loss_parallel=choose(0, 1),
        pipeline_parallel_size=stages,
        pipeline_schedule=np.where(stages > 1, choose(2, 3, 4), 0),
        num_model_chunks=np.where(stages > 1, choose(1, 2, 4), 1),
        data_parallel_replicate_size=choose(1, 2),
        data_parallel_shard_size=choose(1, 2, 4),
        zero_stage=choose(0, 1, 2, 3),
        hierarchical_partition_size=choose(0, 2),
        micro_batch_size=choose(1, 2),
        num_micro_batches=choose(8, 16, 32),
        recompute=choose(0, 1, 2),
        context_parallel_size=choose(1, 2),
        context_parallel_method=choose(0, 1, 2, 3),
        axis_order=choose(0, 1),
    )
    training = TrainingSpec(global_batch_size=64, sequence_length=4096, precision=TORCH.precisions["bf16"])
    model = load_model("llama-3-70b")
    peaks = grid_peak_bytes(model, cluster(), training, TORCH, grid)
    assert peaks.shape == (10_000,)
    assert (peaks > 0).all()


def megatron(model: ModelSpec, **options: Any) -> tuple[float, float]:
    """Allocated and device GiB of the fullest device."""
    plan: Plan = make_plan(model, runtime="megatron", **options)
    peak = peak_memory(plan_memory(plan, MEGATRON), MEGATRON, plan.cluster.device)
    return peak.allocated / GIB, peak.device / GIB


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        (
            {
                "pipeline_parallel_size": 2,
                "pipeline_schedule": "1f1b",
                "data_parallel_shard_size": 4,
                "zero_stage": 1,
            },
            66.55,
        ),
        (
            {
                "tensor_parallel_size": 2,
                "sequence_parallel": True,
                "data_parallel_shard_size": 4,
                "zero_stage": 1,
            },
            60.68,
        ),
        (
            {
                "tensor_parallel_size": 4,
                "sequence_parallel": True,
                "data_parallel_shard_size": 2,
                "zero_stage": 1,
            },
            39.07,
        ),
        ({"tensor_parallel_size": 8, "sequence_parallel": True}, 28.29),
    ],
)
def test_allocated_memory_of_measured_megatron_runs(sizes: dict[str, Any], measured: float) -> None:
    """Twelve layers of Llama-3-70B on 8 B200, GiB allocated at most: within 3%, and nothing was fitted to them.

    MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.json @4dcaae5, "real" columns.
    """
    model = llama(hidden=8192, layers=12, heads=64, key_heads=8, width=28672, vocab=128256)
    allocated, _ = megatron(model, sequence=4096, num_micro_batches=4, **sizes)
    assert allocated == pytest.approx(measured, rel=0.03)


# arXiv 2205.05198, table 3: hidden, heads, layers, micro-batch; pipeline stages, chunks, micro-batches.
PUBLISHED = {
    "22B": (6144, 64, 48, 4, 1, 1, 1),
    "175B": (12288, 96, 96, 1, 8, 3, 64),
    "530B": (20480, 128, 105, 1, 35, 3, 280),
    "1T": (25600, 160, 128, 1, 64, 1, 512),
}


@pytest.mark.parametrize(("recompute", "fits"), [("full", True), ("core_attention", True), ("none", False)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_what_ran_on_80_gigabyte_devices_fits_and_what_figure_1_excludes_does_not(
    name: str, recompute: Any, fits: bool
) -> None:
    """arXiv 2205.05198: table 5's runs with full and selective recomputation ran on A100-80GB; figure 1's baselines exceed it."""
    hidden, heads, layers, micro_batch, stages, chunks, count = PUBLISHED[name]
    schedule = "none" if stages == 1 else ("interleaved_1f1b" if chunks > 1 else "1f1b")
    _, device = megatron(
        gpt(hidden=hidden, layers=layers, heads=heads),
        recompute=recompute,
        sequence=2048,
        training={"attention_implementation": "unfused"},
        tensor_parallel_size=8,
        sequence_parallel=recompute == "core_attention",
        pipeline_parallel_size=stages,
        pipeline_schedule=schedule,
        num_model_chunks=chunks,
        micro_batch_size=micro_batch,
        num_micro_batches=count,
    )
    assert (device < 80) == fits


def test_more_micro_batches_never_need_less_and_more_shards_never_more() -> None:
    def peak(**sizes: Any) -> int:
        return max(stage.peak_bytes for stage in plan_memory(make_plan(llama(layers=8), **sizes), TORCH))

    for schedule in ("gpipe", "1f1b"):
        peaks = [
            peak(pipeline_parallel_size=4, pipeline_schedule=schedule, num_micro_batches=count) for count in (4, 8, 16)
        ]
        assert peaks == sorted(peaks)
    sharded = [peak(data_parallel_shard_size=size, zero_stage=3) for size in (2, 4, 8, 16)]
    assert sharded == sorted(sharded, reverse=True)

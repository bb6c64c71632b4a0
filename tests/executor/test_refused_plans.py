"""What the executor cannot run exactly is refused with the rule's name, before any process group exists."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool
from executor_plans import make_plan

from costmodel.specs import InputError, Plan, RecomputeSpec

TP: dict[str, Any] = {"tensor_parallel_size": 2, "micro_batch_size": 1}
PP: dict[str, Any] = {"pipeline_parallel_size": 2, "micro_batch_size": 1}
TWO_CHUNKS: dict[str, Any] = {**PP, "num_model_chunks": 2}
SPLIT = ("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "hpz with tensor parallelism": (
        {**TP, "zero_stage": 3, "data_parallel_shard_size": 4, "hierarchical_partition_size": 2},
        "hierarchical_partition",
    ),
    "hpz without zero 3": (
        {"zero_stage": 2, "data_parallel_shard_size": 4, "hierarchical_partition_size": 2},
        "hierarchical_partition_needs_zero3",
    ),
    "hpz size": ({"zero_stage": 3, "data_parallel_shard_size": 4, "hierarchical_partition_size": 3}, "divides_shards"),
    "key-value heads": ({**TP, "tensor_parallel_size": 4}, "tensor_parallel_divides_num_key_value_heads"),
    "sequence of 15": ({**TP, "sequence_parallel": True, "sequence": 15}, "sequence_parallel_divides_sequence"),
    "sequence parallel alone": ({"sequence_parallel": True}, "sequence_parallel_needs_tensor_parallel"),
    "loss parallel alone": ({"loss_parallel": True}, "loss_parallel_needs_tensor_parallel"),
    "zero without shards": ({"zero_stage": 1}, "zero_needs_shards"),
    "shards without zero": ({"data_parallel_shard_size": 2}, "shards_need_zero"),
    "schedule missing": (PP, "schedule_matches_pipeline"),
    "naive with micro-batches": ({**PP, "pipeline_schedule": "naive"}, "naive_one_micro_batch"),
    "1f1b with too few micro-batches": (
        {"pipeline_parallel_size": 4, "micro_batch_size": 4, "pipeline_schedule": "1f1b"},
        "full_pipeline",
    ),
    "looped_bfs with one chunk": ({**PP, "pipeline_schedule": "looped_bfs"}, "model_chunks_match_schedule"),
    "zero bubble with one chunk": (
        {**PP, "pipeline_schedule": "interleaved_zero_bubble"},
        "model_chunks_match_schedule",
    ),
    "1f1b with two chunks": ({**TWO_CHUNKS, "pipeline_schedule": "1f1b"}, "model_chunks_match_schedule"),
    **{
        f"{schedule} with {chunks} chunks": (
            {**PP, "pipeline_schedule": schedule, "num_model_chunks": chunks, "model": "llama-10-layers"},
            "model_chunks_match_schedule",
        )
        for schedule in ("zbv_zero_bubble", "dualpipe_v")
        for chunks in (1, 3)
    },
    "dualpipe_v with fewer micro-batches than virtual stages": (
        {**TWO_CHUNKS, "pipeline_schedule": "dualpipe_v", "batch": 3},
        "full_pipeline: .* num_micro_batches 3, pipeline_parallel_size 2 x 2 chunks = 4",
    ),
    "zero bubble multiple": (
        {**TWO_CHUNKS, "batch": 5, "pipeline_schedule": "interleaved_zero_bubble"},
        "interleaving_multiple",
    ),
    **{
        f"{schedule} with zero 3": (
            {**TWO_CHUNKS, "pipeline_schedule": schedule, "zero_stage": 3, "data_parallel_shard_size": 2},
            "split_backward_zero_stage",
        )
        for schedule in SPLIT
    },
    **{
        f"{schedule} with hpz": (
            {
                **TWO_CHUNKS,
                "batch": 16,
                "pipeline_schedule": schedule,
                "zero_stage": 3,
                "data_parallel_shard_size": 4,
                "hierarchical_partition_size": 2,
            },
            "split_backward_zero_stage",
        )
        for schedule in SPLIT
    },
    "interleaving multiple": (
        {**PP, "batch": 5, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2},
        "interleaving_multiple",
    ),
    "batch": ({"micro_batch_size": 3, "num_micro_batches": 2}, "batch"),
    "positions": ({"model": "gpt2", "sequence": 33}, "learned_positions"),
}


def refuse(plan: Plan) -> None:
    from executor.checks import check_runnable

    check_runnable(plan)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_rule(name: str) -> None:
    sizes, rule = REFUSED[name]
    with pytest.raises(InputError, match=rule):
        refuse(make_plan(**sizes))


def test_chunks_of_a_v_lie_where_the_schedule_has_them() -> None:
    """The stages of a looped plan of the same size: chunk 1 of rank 0 would be stage 2, not 3."""
    looped = make_plan(**TWO_CHUNKS, pipeline_schedule="looped_bfs")
    v_shaped = make_plan(**TWO_CHUNKS, pipeline_schedule="zbv_zero_bubble")
    assert [(stage.rank, stage.chunk) for stage in v_shaped.stages] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    refuse(v_shaped)
    with pytest.raises(
        InputError, match=r"plan_stage_order: .* needs \(0, 0\), \(1, 0\), \(1, 1\), \(0, 1\) in this order"
    ):
        refuse(v_shaped.model_copy(update={"stages": looped.stages}))


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        (RecomputeSpec(kind="full", num_layers=3), r"num_layers 3 of its 2 layers; needed is at most 2"),
        (RecomputeSpec(num_layers=1), "needed is no number with recompute none; set .* to null, or its kind to full$"),
    ],
)
def test_a_stage_recomputes_layers_it_has(spec: RecomputeSpec, needed: str) -> None:
    with pytest.raises(InputError, match=f"plan_recomputed_layers: stage 1 .*{needed}"):
        refuse(make_plan(**PP, pipeline_schedule="1f1b", recompute=(RecomputeSpec(kind="full", num_layers=2), spec)))


def test_every_stage_recomputes_what_the_runtime_can() -> None:
    """``op_policy`` is torchtitan's; the other stage's kind is not in its way."""
    stages = (RecomputeSpec(kind="full"), RecomputeSpec(kind="op_policy"))
    with pytest.raises(InputError, match="runtime_recompute"):
        refuse(make_plan(**PP, pipeline_schedule="1f1b", recompute=stages))


def test_precision_fp16_and_other_runtimes_are_refused() -> None:
    with pytest.raises(InputError, match="loss scaling"):
        refuse(make_plan(precision="fp16"))
    other = make_plan()
    other = other.model_copy(update={"runtime": other.runtime.model_copy(update={"name": "megatron"})})
    with pytest.raises(InputError, match=r"runtime .megatron"):
        refuse(other)


def test_good_plans_are_not_refused() -> None:
    refuse(make_plan())
    refuse(make_plan(**TP, sequence_parallel=True, loss_parallel=True))


@pytest.mark.distributed
def test_number_of_processes_must_be_the_plans(pool: Pool) -> None:
    plan = make_plan(data_parallel_replicate_size=4, micro_batch_size=1)
    with pytest.raises(AssertionError, match="the plan uses 4 devices, one process each, but 2 processes were started"):
        pool.run(2, {"kind": "parity", "plan": plan.model_dump_json()})


@pytest.mark.distributed
def test_batch_shape_is_checked(pool: Pool) -> None:
    message = pool.run(1, {"kind": "bad_batch", "plan": make_plan(micro_batch_size=4).model_dump_json()})
    assert message == "the batch of one process has shape [3, 17]; needed is [8, 17]"

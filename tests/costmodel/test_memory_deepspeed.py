"""DeepSpeed's memory: states of arXiv 1910.02054, buckets, and modules gathered one by one."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.build import build_plan
from costmodel.memory import grid_peak_bytes, peak_memory, plan_memory
from costmodel.models.loader import load_model
from costmodel.models.parameters import num_parameters
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import ParallelConfig, Phase, Plan, TrainingSpec
from costmodel.state_memory import state_bytes
from hardware_profiles.loader import load_cluster

DEEPSPEED = load_runtime("deepspeed")
MODEL = load_model("llama-3-8b")
N = num_parameters(MODEL)
TABLE = 128256 * 4096
BUCKET = 500_000_000
LIVE = 1_000_000_000


def made(*, precision: str = "bf16", sequence: int = 2048, micro_batches: int = 1, **sizes: Any) -> Plan:
    parallel = ParallelConfig.model_validate(
        {"data_parallel_shard_size": 8, "zero_stage": 3, "num_micro_batches": micro_batches, **sizes}
    )
    training = TrainingSpec(
        global_batch_size=parallel.data_parallel_size * parallel.micro_batch_size * micro_batches,
        sequence_length=sequence,
        precision=DEEPSPEED.precisions[precision],
    )
    cluster = load_cluster("8xA100-SXM-80GB")
    return build_plan(MODEL, cluster, training, DEEPSPEED, parallel, recompute="full")


def terms(plan: Plan, phase: Phase = "forward_backward") -> dict[str, int]:
    (stage,) = plan_memory(plan, DEEPSPEED)
    return {term.name: term.bytes for term in stage.terms if term.phase == phase}


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "state"), [(1, 2, 2, 12 / 8), (2, 2, 2 / 8, 12 / 8), (3, 2 / 8, 2 / 8, 12 / 8)]
)
def test_bytes_per_parameter_of_every_stage(stage: int, parameters: float, gradients: float, state: float) -> None:
    """arXiv 1910.02054, figure 1: 2 + 2 + 12 bytes, of which stages 1, 2 and 3 shard the last, the last two and all."""
    plan = made(zero_stage=stage)
    held = terms(plan, "optimizer")
    assert (held["parameters"], held["gradients"], held["optimizer_state"]) == pytest.approx(
        (parameters * N, gradients * N, state * N), rel=1e-8
    )
    exact = state_bytes(plan, DEEPSPEED, 0)["after_step"]
    assert (exact.parameters, exact.gradients, exact.optimizer_state) == (
        held["parameters"], held["gradients"], held["optimizer_state"],
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_gradients_are_reduced_in_16_bits(precision: str) -> None:
    """runtime/engine.py, communication_data_type: the format of the model."""
    assert DEEPSPEED.precisions[precision].reduce == precision
    assert DEEPSPEED.precisions[precision].gradient == precision


def test_the_bucket_is_there_from_the_start() -> None:
    assert terms(made(), "init")["communication_buffers"] == 2 * BUCKET
    assert "communication_buffers" not in terms(
        made(zero_stage=0, data_parallel_replicate_size=8, data_parallel_shard_size=1)
    )


def test_a_bucket_of_hidden_squared_elements() -> None:
    """transformers, integrations/deepspeed.py: "auto" for reduce_bucket_size."""
    memory = DEEPSPEED.memory.model_copy(update={"hidden_squared_bucket": True})
    usual, other = (
        plan_memory(made(), runtime)[0] for runtime in (DEEPSPEED, DEEPSPEED.model_copy(update={"memory": memory}))
    )
    sizes = [
        {term.name: term.bytes for term in stage.terms if term.phase == "forward_backward"} for stage in (usual, other)
    ]
    assert (sizes[0]["communication_buffers"], sizes[1]["communication_buffers"]) == (2 * BUCKET, 2 * 4096**2)
    assert usual.peak_bytes - other.peak_bytes >= 2 * (BUCKET - 4096**2)


def test_live_parameters_are_capped_and_head_and_embedding_are_not_gathered_together() -> None:
    """8 B parameters: 1e9 of them stay gathered, more than a layer of 0.2e9 or the head of 0.5e9 needs."""
    assert terms(made())["gathered_parameters"] == 2 * LIVE
    assert "gathered_parameters" not in terms(made(zero_stage=2))


def test_a_head_larger_than_the_bucket_is_reduced_alone() -> None:
    """525e6 elements: whole gradient and its flattened copy at the first backward, which is the peak of short sequences."""
    held = terms(made(sequence=512))
    assert held["reduced_gradients"] == 2 * (TABLE + 4096)  # with the final norm
    assert held["gradients"] == pytest.approx(2 * N / 8 + 2 * TABLE, rel=1e-4)


def test_the_optimizer_converts_one_sub_group_at_a_time() -> None:
    """fp32 gradients of the shard, and of 1e9 elements at most under ZeRO 3."""
    assert N / 8 > LIVE
    assert terms(made(), "optimizer")["optimizer_temporaries"] == 4 * LIVE
    two = made(data_parallel_shard_size=2, data_parallel_replicate_size=4)
    assert terms(two, "optimizer")["optimizer_temporaries"] == 4 * LIVE
    second = made(data_parallel_shard_size=2, data_parallel_replicate_size=4, zero_stage=2)
    assert terms(second, "optimizer")["optimizer_temporaries"] == pytest.approx(4 * N / 2, rel=1e-8)
    assert "optimizer_temporaries" not in terms(made(precision="fp32"), "optimizer")


def test_hpz_holds_all_parameters_once_more_in_every_group() -> None:
    """arXiv 2306.10209: 2 bytes of every parameter over the devices of a group."""
    assert terms(made(hierarchical_partition_size=4))["hierarchical_shards"] == pytest.approx(2 * N / 4, rel=1e-8)


def test_earlier_micro_batches_leave_gradients_that_zero_3_has_anyway() -> None:
    one, four = terms(made(sequence=32768)), terms(made(sequence=32768, micro_batches=4))
    assert one["gradients"] == four["gradients"]
    first, second = (
        terms(made(sequence=32768, zero_stage=1)),
        terms(made(sequence=32768, zero_stage=1, micro_batches=4)),
    )
    assert second["gradients"] > first.get("gradients", 0)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("tensor", [1, 2])
def test_a_grid_s_peak_is_its_plan_s(stage: int, tensor: int) -> None:
    plan = made(zero_stage=stage, tensor_parallel_size=tensor, data_parallel_shard_size=8 // tensor)
    (found,) = grid_peak_bytes(MODEL, plan.cluster, plan.training, DEEPSPEED, Grid.from_plan(plan))
    assert found == peak_memory(plan_memory(plan, DEEPSPEED), DEEPSPEED, plan.cluster.device).device

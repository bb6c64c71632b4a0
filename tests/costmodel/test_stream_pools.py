"""What the allocator reserves for FSDP2's own streams: closed forms, and grids equal to single plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.activation_memory import torch_end_bytes
from costmodel.build import build_plan
from costmodel.memory import grid_peak_bytes, peak_memory, plan_memory
from costmodel.models.loader import load_model
from costmodel.models.parameters import num_parameters
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.specs import MemoryAccounting, ParallelConfig, Plan, TrainingSpec
from costmodel.stream_pools import Instant, pooled_bytes
from hardware_profiles.loader import load_cluster

TORCH = load_runtime("torch")
MODEL = load_model("llama-3-8b")
SEQUENCE = 16384  # long enough for the loss to be the peak


def made(cluster: str = "8xH100-SXM", micro_batches: int = 1, **sizes: Any) -> Plan:
    parallel = ParallelConfig.model_validate(
        {"data_parallel_shard_size": 8, "zero_stage": 3, "num_micro_batches": micro_batches, **sizes}
    )
    training = TrainingSpec(
        global_batch_size=8 * micro_batches, sequence_length=SEQUENCE, precision=TORCH.precisions["bf16"]
    )
    return build_plan(MODEL, load_cluster(cluster), training, TORCH, parallel, recompute="full")


def column(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values)


def test_pools_add_their_own_maxima() -> None:
    """100 at the forward without gradients, 60 at the end of backward with 20 of them: 100 + 20, not 100."""
    forward, backward = Instant(column(100), column(0), column(0)), Instant(column(60), column(20), column(0))
    assert pooled_bytes([forward, backward], gradients=column(20), gather=column(0)) == column(20)


def test_what_the_peak_already_holds_of_a_pool_is_not_added() -> None:
    peak = Instant(column(100), column(20), column(5))
    assert pooled_bytes([peak], gradients=column(20), gather=column(5)) == column(0)


def test_an_instant_below_the_peak_may_need_more_of_the_computation_s_pool() -> None:
    """95 of computation beside 10 of gradients are reserved, though 100 are the most that is allocated at once."""
    first, last = Instant(column(95), column(0), column(0)), Instant(column(100), column(10), column(0))
    assert pooled_bytes([first, last], gradients=column(10), gather=column(0)) == column(5)


def test_gradient_shards_and_the_root_s_gather_are_reserved_beside_the_loss() -> None:
    """ZeRO 3 in one micro-batch: fp32 shards of all parameters, and the bf16 root group less the prefetched layer."""
    (stage,) = plan_memory(made(), TORCH)
    root = 2 * (2 * 128256 * 4096 + 4096)
    layer = 2 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    assert stage.pooled_bytes == 4 * num_parameters(MODEL) / 8 + root - layer


def test_gradients_of_earlier_micro_batches_are_allocated_and_count_once() -> None:
    """With accumulation the shards live through the next forward, and so does the input of the last reduction, the root's."""
    (one,), (four,) = plan_memory(made(), TORCH), plan_memory(made(micro_batches=4), TORCH)
    shards, root = 4 * num_parameters(MODEL) // 8, 4 * (2 * 128256 * 4096 + 4096)
    assert four.peak_bytes - one.peak_bytes == shards + root
    assert one.pooled_bytes - four.pooled_bytes == shards


def test_reserved_is_tensors_and_pools_with_waste_and_a_cpu_has_no_pools() -> None:
    plan = made()
    stages = plan_memory(plan, TORCH)
    peak = peak_memory(stages, TORCH, plan.cluster.device)
    assert peak.allocated == stages[0].peak_bytes
    assert peak.reserved == pytest.approx(1.06 * (stages[0].peak_bytes + stages[0].pooled_bytes), abs=1)
    cpu = made("8xcpu")
    assert plan_memory(cpu, TORCH)[0].pooled_bytes == 0


def test_megatron_s_flat_buffers_have_no_pools() -> None:
    assert not load_runtime("megatron").memory.stream_pools
    assert not load_runtime("nanotron").memory.stream_pools


@pytest.mark.parametrize(
    "sizes",
    [
        {"zero_stage": 0, "data_parallel_replicate_size": 8, "data_parallel_shard_size": 1},
        {"zero_stage": 1, "micro_batches": 2},
        {"zero_stage": 2, "micro_batches": 3},
        {"data_parallel_shard_size": 4, "data_parallel_replicate_size": 2, "micro_batches": 2},
        {
            "pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "data_parallel_shard_size": 4, "micro_batches": 4,
            "micro_batch_size": 2,
        },
        {"data_parallel_shard_size": 2, "tensor_parallel_size": 4, "micro_batch_size": 4, "hierarchical_partition_size": 1},
    ],
)  # fmt: skip
def test_a_grid_s_peak_is_its_plans_and_pools_are_never_negative(sizes: dict[str, Any]) -> None:
    plan = made(**sizes)
    stages = plan_memory(plan, TORCH)
    assert min(stage.pooled_bytes for stage in stages) >= 0
    grid = Grid.from_plan(plan)
    (found,) = grid_peak_bytes(MODEL, plan.cluster, plan.training, TORCH, grid)
    assert found == peak_memory(stages, TORCH, plan.cluster.device).device


def test_a_compiled_loss_keeps_two_tensors_of_16_bits_a_logit() -> None:
    """2 bytes kept and 2 of their gradient, where torch alone has 4 + 8; the parallel loss is not compiled."""
    plan, compiled = made(), MemoryAccounting(loss_bytes=4)
    logits = SEQUENCE * 128256
    found = torch_end_bytes(MODEL, plan.training, Grid.from_plan(plan), accounting=compiled, fusion="full")
    assert (found.probabilities, found.logits) == (2 * logits, 2 * logits)
    eager = torch_end_bytes(MODEL, plan.training, Grid.from_plan(plan), accounting=compiled, fusion="none")
    assert (eager.probabilities, eager.logits) == (4 * logits, 8 * logits)
    cut = made(tensor_parallel_size=2, loss_parallel=True, data_parallel_shard_size=4, micro_batch_size=2)
    halves = torch_end_bytes(MODEL, cut.training, Grid.from_plan(cut), accounting=compiled, fusion="full")
    assert (halves.probabilities, halves.logits) == (4 * logits, 12 * logits)

"""Predicted bytes of parameters, gradients and optimizer state equal the storages of the running executor's tensors."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool
from executor_plans import make_plan

from costmodel.runtimes.loader import load_runtime
from costmodel.specs import OptimizerSpec
from costmodel.state_memory import state_bytes

pytestmark = pytest.mark.distributed

TP: dict[str, Any] = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}
PP: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b"}
INTERLEAVED: dict[str, Any] = {**PP, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2}
SGD = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9)


def zero(stage: int, shards: int = 2, **sizes: Any) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "micro_batch_size": 1, **sizes}


CASES: dict[str, dict[str, Any]] = {
    "one-process": {"micro_batch_size": 2},
    "replicate": {"data_parallel_replicate_size": 2, "micro_batch_size": 2},
    "replicate-one-micro-batch": {"data_parallel_replicate_size": 2, "micro_batch_size": 4},
    "zero1": zero(1),
    "zero2": zero(2),
    "zero3": zero(3),
    "zero3-3-shards": {**zero(3, 3), "batch": 6},
    "zero2-one-micro-batch": zero(2, micro_batch_size=4),
    "zero2-sgd": {**zero(2), "optimizer": SGD},
    "hybrid-zero2": zero(2, data_parallel_replicate_size=2),
    "hpz": zero(3, 4, hierarchical_partition_size=2),
    "zero2-tied": zero(2, model="gpt2-63"),
    "tp2-zero3-tied": {**TP, **zero(3), "model": "llama-tied-63"},
    "tp2": {**TP, "micro_batch_size": 4},
    "tp2-gpt2": {**TP, "micro_batch_size": 4, "model": "gpt2-63"},
    "pp2": {**PP, "micro_batch_size": 2},
    "pp2-tied": {**PP, "micro_batch_size": 2, "model": "llama-tied-63"},
    "pp2-zero2": {**PP, **zero(2)},
    "interleaved-zero3": {**INTERLEAVED, **zero(3)},
    "looped-bfs-zero2": {**INTERLEAVED, "pipeline_schedule": "looped_bfs", **zero(2)},
    "zero-bubble-zero1": {**INTERLEAVED, "pipeline_schedule": "interleaved_zero_bubble", **zero(1)},
    "zbv-zero2-tied": {**INTERLEAVED, "pipeline_schedule": "zbv_zero_bubble", **zero(2), "model": "llama-tied-63"},
    "dualpipe-v-tp2": {**TP, **INTERLEAVED, "pipeline_schedule": "dualpipe_v", "micro_batch_size": 2},
    "tp2-zero3": {**TP, **zero(3)},
    "tp2-pp2": {**TP, **PP, "micro_batch_size": 2},
    "tp2-pp2-gemma2": {**TP, **PP, "micro_batch_size": 2, "model": "gemma2"},
    "tp2-zero3-phi3": {**TP, **zero(3), "model": "phi3"},
    "tp2-zero2-gpt-neox": {**TP, **zero(2), "model": "gpt-neox"},
    "tp2-pp2-opt": {**TP, **PP, "micro_batch_size": 2, "model": "opt-untied-63"},
}


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_state_bytes_of_every_rank(pool: Pool, name: str, precision: str) -> None:
    sizes = {"model": "llama-63", **CASES[name]}
    plan, runtime = make_plan(**sizes, precision=precision), load_runtime("torch")
    ranks = pool.run(plan.num_devices_used, {"kind": "state", "plan": plan.model_dump_json()})
    assert len(ranks) == plan.num_devices_used
    for rank, seen in enumerate(ranks):
        predicted = {
            instant: (found.parameters, found.gradients, found.optimizer_state)
            for instant, found in state_bytes(plan, runtime, rank).items()
        }
        assert seen == predicted, f"rank {rank}"


@pytest.mark.parametrize("stage", [1, 3])
def test_state_bytes_in_three_dimensions(large_pool: Pool, stage: int) -> None:
    plan, runtime = make_plan(model="llama-63", **TP, **PP, **zero(stage), precision="bf16"), load_runtime("torch")
    ranks = large_pool.run(8, {"kind": "state", "plan": plan.model_dump_json()})
    for rank, seen in enumerate(ranks):
        for instant, found in state_bytes(plan, runtime, rank).items():
            assert seen[instant] == (found.parameters, found.gradients, found.optimizer_state), (rank, instant)

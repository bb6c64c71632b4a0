"""Tensor-parallel plans, alone and with data parallelism, train exactly like one process, in float64."""

from __future__ import annotations

from typing import Any

import pytest
from executor_harness import Pool, assert_parity
from executor_plans import make_plan

from costmodel.specs import OptimizerSpec

pytestmark = pytest.mark.distributed

TP: dict[str, Any] = {"tensor_parallel_size": 2, "micro_batch_size": 4}
SP: dict[str, Any] = {**TP, "sequence_parallel": True}
SP_LOSS: dict[str, Any] = {**SP, "loss_parallel": True}
SGD = OptimizerSpec(name="sgd", learning_rate=0.1, max_grad_norm=None)


def zero(stage: int) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": 2, "micro_batch_size": 2}


CASES: dict[str, dict[str, Any]] = {
    "tp2": TP,
    "tp2-loss": {**TP, "loss_parallel": True, "model": "llama-63"},
    "tp2-gpt2": {**TP, "model": "gpt2"},
    "tp2-tied": {**TP, "model": "llama-tied"},
    "tp2-sp": SP,
    "tp2-sp-gpt2-uneven": {**SP, "model": "gpt2-63"},
    "tp2-sp-loss-tied-uneven": {**SP_LOSS, "model": "llama-tied-63"},
    "tp2-sp-loss-qwen3": {**SP_LOSS, "model": "qwen3"},
    "tp2-sp-loss-megatron-gpt": {**SP_LOSS, "model": "megatron-gpt"},
    "tp2-sp-window": {**SP_LOSS, "model": "mistral-window"},
    "tp2-sp-sgd": {**SP_LOSS, "optimizer": SGD},
    "tp4-biases": {**SP_LOSS, "tensor_parallel_size": 4, "model": "llama-mha"},
    "tp4-gpt2": {**TP, "tensor_parallel_size": 4, "model": "gpt2-untied"},
    "tp2-recompute-full": {**SP_LOSS, "recompute": "full", "model": "qwen2"},
    "tp2-recompute-core-attention": {**SP, "recompute": "core_attention", "model": "gpt2"},
    "tp2-replicate2": {**SP_LOSS, "data_parallel_replicate_size": 2, "micro_batch_size": 2, "model": "qwen3-tied"},
    "tp2-zero1": {**SP_LOSS, **zero(1), "model": "gpt2"},
    "tp2-zero2-qwen3": {**SP, **zero(2), "model": "qwen3"},
    "tp2-zero3": {**SP_LOSS, **zero(3)},
    "tp2-zero3-gpt2-no-sp": {**TP, **zero(3), "model": "gpt2-63"},
}


@pytest.mark.parametrize("name", CASES)
def test_tensor_parallel_parity(pool: Pool, name: str) -> None:
    assert_parity(pool, make_plan(**CASES[name]))

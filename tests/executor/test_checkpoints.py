"""Weights and optimizer state move between plans: a run that goes on under another plan equals one process, uninterrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from executor_harness import TOLERANCE, Pool
from executor_plans import make_plan

from costmodel.specs import OptimizerSpec

pytestmark = pytest.mark.distributed

ONE: dict[str, Any] = {"micro_batch_size": 4}
TP: dict[str, Any] = {"tensor_parallel_size": 2, "micro_batch_size": 4}
SP_LOSS: dict[str, Any] = {**TP, "sequence_parallel": True, "loss_parallel": True}
PP: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "micro_batch_size": 2}
INTERLEAVED: dict[str, Any] = {**PP, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2}
ZBV: dict[str, Any] = {**PP, "pipeline_schedule": "zbv_zero_bubble", "num_model_chunks": 2}
SGD = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0.9)


def zero(stage: int, shards: int = 2, **sizes: Any) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_shard_size": shards, "micro_batch_size": 1, **sizes}


HPZ = zero(3, 4, hierarchical_partition_size=2)
HYBRID = zero(2, data_parallel_replicate_size=2)
# What both plans share, the plan that saves, the plan that goes on.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "tp2-pp2 -> zero3": ({"model": "llama"}, {**SP_LOSS, **PP}, zero(3, 4)),
    "zero2 -> tp2-pp2, tied": ({"model": "llama-tied-63"}, zero(2, 3, batch=6), {**TP, **PP, "batch": 6}),
    "tp2-zero3 -> one, fused": ({"model": "gpt2-63"}, {**TP, **zero(3)}, ONE),
    "one -> tp2-zero1, fused": ({"model": "gpt2"}, ONE, {**SP_LOSS, **zero(1)}),
    "tp4 -> tp2-pp2, fused": ({"model": "gpt2-untied"}, {**TP, "tensor_parallel_size": 4}, {**TP, **PP}),
    "interleaved -> hpz": ({"model": "qwen3-tied"}, INTERLEAVED, HPZ),
    "zero3 -> zbv, tied twice on one rank": ({"model": "llama-tied"}, zero(3), ZBV),
    "zbv -> tp2, tied twice on one rank": ({"model": "qwen3-tied"}, {**ZBV, **zero(2)}, TP),
    "hpz -> hybrid, sgd": ({"model": "llama-tied", "optimizer": SGD}, HPZ, HYBRID),
    "replicate -> interleaved, sgd": (
        {"model": "qwen2", "optimizer": SGD},
        {"data_parallel_replicate_size": 2, "micro_batch_size": 2},
        INTERLEAVED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_under_another_plan(pool: Pool, tmp_path: Path, name: str) -> None:
    shared, before, after = CASES[name]
    place = {"folder": str(tmp_path)}
    saving, going_on = make_plan(**{**shared, **before}), make_plan(**{**shared, **after})
    files = pool.run(
        saving.num_devices_used, {"kind": "checkpoint_save", "plan": saving.model_dump_json(), "stop": 3, **place}
    )
    assert {".metadata", "training.json"} < set(files)
    job = {"kind": "checkpoint_resume", "plan": going_on.model_dump_json(), "start": 3, "stop": 6, **place}
    compared, parameters, loss, weights = pool.run(going_on.num_devices_used, job)
    assert compared == parameters > 30
    assert loss <= TOLERANCE
    assert weights <= TOLERANCE


def test_a_checkpoint_holds_each_element_once(pool: Pool, tmp_path: Path) -> None:
    """Weights, two moments and a step counter: what one process holds is what the files of four hold."""
    sizes = []
    for case, name in (({**TP, "data_parallel_replicate_size": 2, "micro_batch_size": 2}, "four"), (ONE, "one")):
        plan = make_plan("gpt2", **case)
        job = {"kind": "checkpoint_save", "plan": plan.model_dump_json(), "stop": 1, "folder": str(tmp_path / name)}
        pool.run(plan.num_devices_used, job)
        sizes.append(sum(path.stat().st_size for path in (tmp_path / name).rglob("*.distcp")))
    four, one = sizes
    # Every block is a small archive of its own: the files differ by the archives' framing, not by copies.
    assert abs(four - one) < 0.5 * one

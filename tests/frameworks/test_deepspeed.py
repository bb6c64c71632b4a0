"""DeepSpeed's own parser and launcher read our JSON and script; what it takes in silence is our error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from generated_plans import generated_plans

from costmodel.specs import InputError, Plan
from meshwright import make_plan
from meshwright.exporters import reject, render
from meshwright.exporters.deepspeed import DEEPSPEED
from meshwright.exporters.deepspeed.keys import OFFLOAD, REMOVED_TOP, REMOVED_ZERO, TOP, ZERO

pytestmark = pytest.mark.framework

MODELS = (
    "llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "qwen3-32b", "mistral-7b-v0.1", "opt-13b", "gpt2-xl", "gemma-2-9b",
    "phi-4",
)  # fmt: skip
# What DeepSpeed's threads and tutorials run: model, cluster, batch, sequence, sizes, recomputation.
REAL: tuple[tuple[str, str, int, int, dict[str, Any], str], ...] = (
    ("opt-13b", "1x8xA100-SXM-80GB", 128, 2048, {"zero_stage": 3, "micro_batch_size": 4}, "full"),
    ("opt-66b", "8x8xA100-SXM-80GB", 256, 2048, {"zero_stage": 3}, "full"),
    ("llama-2-7b", "1x8xA100-SXM-80GB", 64, 4096, {"zero_stage": 2}, "full"),
    ("llama-2-7b", "1x4xA100-SXM-80GB", 4, 2048, {"zero_stage": 3}, "none"),
    ("llama-2-70b", "2x8xA100-SXM-40GB", 16, 4096, {"zero_stage": 3}, "full"),
    ("llama-2-70b", "8x8xH100-SXM", 64, 4096, {"zero_stage": 3, "hierarchical_partition_size": 8}, "full"),
    ("gpt2-xl", "1x4xV100-SXM-32GB", 64, 1024, {"zero_stage": 2, "micro_batch_size": 4}, "none"),
    ("gpt2-xl", "4x8xV100-SXM-32GB", 256, 1024, {"zero_stage": 1, "micro_batch_size": 4}, "none"),
    ("llama-3-8b", "1x8xH100-SXM", 8, 65536, {"zero_stage": 3, "context_parallel_size": 8, "data_parallel_shard_size": 1,
     "context_parallel_method": "all_to_all"}, "full"),
    ("llama-3-8b", "4x8xH100-SXM", 32, 32768, {"zero_stage": 3, "context_parallel_size": 4,
     "context_parallel_method": "all_to_all"}, "full"),
    ("qwen2.5-7b", "2x8xH100-SXM", 64, 4096, {"zero_stage": 1, "tensor_parallel_size": 2}, "full"),
    ("qwen2.5-1.5b", "1x8xA100-SXM-40GB", 64, 4096, {"zero_stage": 0}, "full"),
)  # fmt: skip
BATCH: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
# Configs that DeepSpeed takes though they cannot mean what they say, on 24 processes, and our words on them.
SILENT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"gradient_acumulation_steps": 4}, "gradient_acumulation_steps.*gradient_accumulation_steps"),
    (
        {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 7}},
        "zero_hpz_partition_size 7 does not divide the 24",
    ),
    ({"zero_optimization": {"stage": 1, "zero_hpz_partition_size": 8}}, "zero_hpz_partition_size is 8 with .*stage 1"),
    ({"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}}, "offload_param is set with .*stage 1"),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, "nvme without .*nvme_path"),
)
# Configs that DeepSpeed refuses, and we too.
REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"zero_optimization": {"stage": 3, "offload_parameters": {}}}, "zero_optimization 'offload_parameters'"),
    ({"fp16": {"enabled": True}}, "fp16 are both enabled|bf16 and fp16"),
    ({"train_batch_size": 23}, "train_batch_size 23"),
    ({"zero_optimization": {"stage": 4}}, "stage is 4"),
)


def real_plans() -> list[Plan]:
    return [
        make_plan(
            model, cluster, global_batch_size=batch, sequence_length=length, sizes=sizes, recompute=recompute,
            runtime="deepspeed",
        )
        for model, cluster, batch, length, sizes, recompute in REAL
    ]  # fmt: skip


def meaning(plan: Plan) -> dict[str, Any]:
    parallel, training, optimizer = plan.parallel, plan.training, plan.training.optimizer
    full = plan.stages[0].recompute.kind == "full"
    return {
        "world_size": plan.num_devices_used,
        "data_parallel_size": parallel.data_parallel_size,
        "micro_batch": parallel.micro_batch_size,
        "micro_batches": parallel.num_micro_batches,
        "global_batch": training.global_batch_size,
        "zero_stage": parallel.zero_stage,
        "hierarchical_partition": parallel.hierarchical_partition_size or 1,
        "tensor": parallel.tensor_parallel_size,
        "loss_parallel": parallel.loss_parallel,
        "sequence_parallel_size": parallel.context_parallel_size,
        "compute": training.precision.compute,
        "clipping": optimizer.max_grad_norm or 0.0,
        "optimizer": [
            "adamw",
            {
                "lr": optimizer.learning_rate, "weight_decay": optimizer.weight_decay, "betas": list(optimizer.betas),
                "eps": optimizer.epsilon,
            },
        ],
        "checkpoints": plan.model.num_hidden_layers if full else None,
        "offload": [False, False],
    }  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    def taken(plan: Plan) -> bool:
        return reject(DEEPSPEED, plan) is None

    return [*generated_plans("deepspeed", MODELS, count=200, seed=30, accept=taken), *real_plans()]


@pytest.fixture(scope="module")
def answers(plans: list[Plan], ask: Any, start: Any) -> dict[str, Any]:
    jobs = []
    for plan in plans:
        files = render(plan, "deepspeed")
        assert isinstance(files, dict), files
        jobs.append(start(files, "deepspeed", TRAIN_SCRIPT=__file__))
    cases = [{"config": BATCH | change, "world": 24} for change, _ in (*SILENT, *REFUSED)]
    answer: dict[str, Any] = ask("deepspeed", {"jobs": jobs, "cases": cases})
    return answer


def test_deepspeed_reads_every_config_as_the_plan(plans: list[Plan], answers: dict[str, Any]) -> None:
    assert {8, 16384} <= {plan.num_devices_used for plan in plans}
    assert len(plans) == 212
    for plan, answer in zip(plans, answers["jobs"], strict=True):
        assert answer == meaning(plan), plan.parallel


def read(change: dict[str, Any]) -> Any:
    script = "#!/bin/bash\nNUM_DEVICES=24\nSEQUENCE_LENGTH=2048\ndeepspeed train.py\n"
    return DEEPSPEED.read({"launch.sh": script, "ds_config.json": json.dumps(BATCH | change)})  # type: ignore[misc]


def test_what_deepspeed_takes_in_silence_is_an_error_here(answers: dict[str, Any]) -> None:
    assert answers["cases"][: len(SILENT)] == [True] * len(SILENT)
    for change, message in SILENT:
        with pytest.raises(InputError, match=message):
            read(change)


def test_what_deepspeed_refuses_is_refused_here(answers: dict[str, Any]) -> None:
    found = answers["cases"][len(SILENT) :]
    assert all(isinstance(error, str) for error in found), found
    for change, message in REFUSED:
        with pytest.raises(InputError, match=message):
            read(change)


def test_the_keys_are_those_that_deepspeed_reads(answers: dict[str, Any]) -> None:
    assert answers["removed"] == [sorted(REMOVED_TOP), sorted(REMOVED_ZERO)]
    # deepspeed.initialize reads data_parallel_size, before the config is parsed.
    assert set(answers["top"]) - REMOVED_TOP | {"data_parallel_size"} == TOP
    assert set(answers["zero"]) == ZERO
    assert set(answers["offload"]) == OFFLOAD

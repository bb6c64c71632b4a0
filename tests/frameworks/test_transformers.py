"""transformers' own TrainingArguments read our JSON; what they take in silence is our error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from generated_plans import generated_plans

from costmodel.specs import InputError, Plan
from meshwright import make_plan
from meshwright.exporters import reject, render
from meshwright.exporters.fsdp2 import TRANSFORMERS_KEYS
from meshwright.exporters.transformers import TRANSFORMERS

pytestmark = pytest.mark.framework

MODELS = (
    "llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "qwen3-32b", "mistral-7b-v0.1", "opt-13b", "gpt2-xl", "gemma-2-9b",
    "phi-4",
)  # fmt: skip
# What users of the Trainer run: runtime, model, cluster, batch, sequence, sizes, recomputation.
REAL: tuple[tuple[str, str, str, int, int, dict[str, Any], str], ...] = (
    ("transformers", "llama-3-8b", "1x8xH100-SXM", 64, 4096, {"zero_stage": 3}, "full"),
    ("transformers", "llama-3-8b", "1x8xH100-SXM", 16, 4096, {"zero_stage": 2, "micro_batch_size": 2}, "none"),
    ("transformers", "llama-3-70b", "4x8xH100-SXM", 32, 8192, {"zero_stage": 3}, "full"),
    ("transformers", "qwen2.5-0.5b", "1x4xRTX-4090", 64, 1024, {"zero_stage": 0, "micro_batch_size": 4}, "none"),
    ("transformers", "gpt2", "1x2xRTX-3090", 32, 1024, {"zero_stage": 0, "micro_batch_size": 8}, "full"),
    ("transformers", "mistral-7b-v0.1", "1x8xA100-SXM-80GB", 32, 4096, {"zero_stage": 3, "micro_batch_size": 2}, "full"),
    ("deepspeed", "llama-2-7b", "1x4xA100-SXM-80GB", 4, 2048, {"zero_stage": 3}, "full"),
    ("deepspeed", "llama-2-7b", "1x8xA100-SXM-80GB", 64, 4096, {"zero_stage": 2, "micro_batch_size": 2}, "full"),
    ("deepspeed", "llama-2-70b", "8x8xH100-SXM", 64, 4096, {"zero_stage": 3, "hierarchical_partition_size": 8}, "full"),
    ("deepspeed", "opt-13b", "2x8xV100-SXM-32GB", 64, 2048, {"zero_stage": 3}, "full"),
    ("deepspeed", "gpt2-xl", "1x4xV100-SXM-32GB", 64, 1024, {"zero_stage": 1, "micro_batch_size": 4}, "none"),
    ("deepspeed", "qwen2.5-1.5b", "1x8xA100-SXM-40GB", 64, 4096, {"zero_stage": 0}, "full"),
)  # fmt: skip
ARGUMENTS: dict[str, Any] = {"output_dir": "out", "per_device_train_batch_size": 1, "bf16": True}
SILENT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"fsdp": True, "fsdp_config": {"reshard_after_foward": False}}, "fsdp_config 'reshard_after_foward'"),
    ({"fsdp": True, "fsdp_config": {"offload_params": True}}, "fsdp_config 'offload_params'"),
    ({"fsdp_config": {"version": 2}}, "fsdp_config is set, but fsdp is not"),
)
REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"fp16": True}, "bf16 and fp16 are both true"),
    ({"optim": "adamv"}, "optim is 'adamv'"),
)


def real_plans() -> list[Plan]:
    return [
        make_plan(
            model,
            cluster,
            global_batch_size=batch,
            sequence_length=length,
            sizes=sizes,
            recompute=recompute,
            runtime=runtime,
        )
        for runtime, model, cluster, batch, length, sizes, recompute in REAL
    ]


def meaning(plan: Plan) -> dict[str, Any]:
    parallel, training, optimizer = plan.parallel, plan.training, plan.training.optimizer
    found: dict[str, Any] = {
        "world_size": plan.num_devices_used,
        "script": __file__,
        "sequence": str(training.sequence_length),
        "micro_batch": parallel.micro_batch_size,
        "micro_batches": parallel.num_micro_batches,
        "compute": training.precision.compute,
        "optimizer": [
            "adamw_torch_fused", optimizer.learning_rate, optimizer.weight_decay, *optimizer.betas, optimizer.epsilon,
            optimizer.max_grad_norm or 0.0,
        ],
        "recompute": plan.stages[0].recompute.kind == "full",
        "zero_stage": parallel.zero_stage,
    }  # fmt: skip
    if plan.runtime.name == "deepspeed":
        found |= {
            "hierarchical_partition": parallel.hierarchical_partition_size or 1,
            "global_batch": training.global_batch_size,
        }
    return found


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    def taken(plan: Plan) -> bool:
        return reject(TRANSFORMERS, plan) is None

    return [
        *generated_plans("transformers", MODELS, count=100, seed=50, accept=taken),
        *generated_plans("deepspeed", MODELS, count=100, seed=51, accept=taken),
        *real_plans(),
    ]


@pytest.fixture(scope="module")
def answers(plans: list[Plan], ask: Any, start: Any) -> dict[str, Any]:
    jobs = []
    for plan in plans:
        files = render(plan, "transformers")
        assert isinstance(files, dict), files
        jobs.append(start(files, "torchrun", TRAIN_SCRIPT=__file__))
    cases = [ARGUMENTS | change for change, _ in (*SILENT, *REFUSED)]
    answer: dict[str, Any] = ask("transformers", {"jobs": jobs, "cases": cases})
    return answer


def test_transformers_read_every_config_as_the_plan(plans: list[Plan], answers: dict[str, Any]) -> None:
    assert {8, 16384} <= {plan.num_devices_used for plan in plans}
    assert len(plans) == 212
    for plan, answer in zip(plans, answers["jobs"], strict=True):
        assert answer == meaning(plan), plan.parallel


def test_what_transformers_take_in_silence_is_an_error_here(answers: dict[str, Any]) -> None:
    assert answers["cases"][: len(SILENT)] == [True] * len(SILENT)
    for change, message in SILENT:
        with pytest.raises(InputError, match=message):
            TRANSFORMERS.read({"args.json": json.dumps(ARGUMENTS | change)})  # type: ignore[misc]


def test_what_transformers_refuse_is_refused_here(answers: dict[str, Any]) -> None:
    found = answers["cases"][len(SILENT) :]
    assert all(isinstance(error, str) for error in found), found
    for change, message in REFUSED:
        with pytest.raises(InputError, match=message):
            TRANSFORMERS.read({"args.json": json.dumps(ARGUMENTS | change)})  # type: ignore[misc]


def test_the_keys_are_those_that_transformers_read(answers: dict[str, Any]) -> None:
    """sharding_strategy is none of theirs: FSDP 1's strategy stands in reshard_after_forward."""
    assert set(answers["keys"]) == set(TRANSFORMERS_KEYS)

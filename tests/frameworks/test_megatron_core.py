"""megatron-core's own configuration and stage layout, made of the arguments that our scripts pass to pretrain_gpt.py.

megatron-core checks less than Megatron-LM's `validate_args`, which has no package: the batch, experts and the divisors of virtual
stages are our own rules, with tests of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generated_plans import generated_plans
from real_plans import real_plans

from costmodel.specs import Plan
from meshwright.exporters import EXPORTERS, reject, render
from meshwright.exporters.megatron import names

pytestmark = pytest.mark.framework

MODELS = ("llama-3-8b", "llama-3-70b", "qwen2.5-7b", "mistral-7b", "gpt2-xl", "llama-3.1-405b")
_GRANULARITY = {"none": None, "core_attention": "selective", "full": "full"}
_RECIPES = {None: None, "delayed": "delayed", "current": "tensorwise", "blockwise": "blockwise", "mxfp8": "mxfp8"}


def meaning(plan: Plan) -> dict[str, Any]:
    """What megatron-core has to make of a plan, in the words of the oracle."""
    parallel, layer = plan.parallel, plan.model.layers[0]
    formats = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
    kind = plan.stages[0].recompute.kind
    counts = [stage.num_recomputed_layers for stage in plan.stages]
    whole = counts == [stage.num_layers for stage in plan.stages]
    method = None if kind != "full" else ["uniform", 1] if whole else ["block", max(counts)]
    cut = parallel.data_parallel_shard_size * parallel.context_parallel_size
    return {
        "world_size": plan.num_devices_used,
        "data_parallel_size": parallel.data_parallel_size,
        "shard_group": cut if parallel.zero_stage else 1,
        "tensor": parallel.tensor_parallel_size,
        "sequence_parallel": parallel.sequence_parallel,
        "pipeline": parallel.pipeline_parallel_size,
        "context": parallel.context_parallel_size,
        "context_method": None
        if parallel.context_parallel_method is None
        else names.CONTEXT_METHODS[parallel.context_parallel_method],
        "layers_per_stage": [stage.num_layers for stage in plan.stages],
        "micro_batch_size": parallel.micro_batch_size,
        "accumulation": parallel.num_micro_batches,
        "recompute": [_GRANULARITY[kind], *(method or [None, None])],
        "parameters": formats[plan.training.precision.parameter],
        "fp8": _RECIPES[plan.training.precision.fp8_recipe],
        "heads": [layer.attention.num_attention_heads, layer.attention.num_key_value_heads, layer.attention.head_dim],
        "feed_forward": [layer.feed_forward.intermediate_size, layer.feed_forward.gated, layer.feed_forward.bias],
    }


def test_megatron_core_means_what_the_plans_say(ask: Any, start: Any, tmp_path: Path) -> None:
    """200 generated plans and 12 real ones, 8 to 16,384 devices."""
    (tmp_path / "pretrain_gpt.py").touch()
    exporter = EXPORTERS["megatron"]
    generated = generated_plans(
        "megatron", MODELS, count=200, seed=20, accept=lambda plan: reject(exporter, plan) is None
    )
    plans = [*generated, *real_plans("megatron")]
    assert len(plans) == 212
    jobs = []
    for plan in plans:
        files = render(plan, "megatron")
        assert isinstance(files, dict)
        jobs.append(start(files, "torchrun", MEGATRON_PATH=str(tmp_path)))
    answers = ask("megatron", {"jobs": jobs, "counts": names.arguments()})
    for plan, answer in zip(plans, answers, strict=True):
        assert answer == meaning(plan), plan.plan_hash
    assert {plan.num_devices_used for plan in plans} >= {8, 16384}

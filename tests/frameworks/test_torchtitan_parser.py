"""torchtitan's own parser and stage split read our commands, and its registry says whether our tables are its own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from generated_plans import generated_plans

from costmodel.specs import Plan
from meshwright import make_plan
from meshwright.exporters import render
from meshwright.exporters.torchtitan.flags import SCHEDULES
from meshwright.exporters.torchtitan.presets import FLAVORS, PRESETS
from meshwright.exporters.torchtitan.stages import count_stages, split

pytestmark = pytest.mark.framework

MODELS = (
    "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b",
)  # fmt: skip
# Layouts that torchtitan's own pages and threads name: model, cluster, batch, sizes, recomputation, layers.
REAL: tuple[tuple[str, str, int, dict[str, Any], str, tuple[int, ...] | None], ...] = (
    ("llama-3-8b", "1x8xH100-SXM", 16, {"zero_stage": 3, "micro_batch_size": 2}, "op_policy", None),
    ("llama-3-8b", "16x8xH100-SXM", 256, {"zero_stage": 3, "micro_batch_size": 2}, "op_policy", None),
    ("llama-3-8b", "1x8xH100-SXM", 1, {"context_parallel_size": 8, "context_parallel_method": "all_gather",
     "data_parallel_shard_size": 1, "data_parallel_replicate_size": 1, "zero_stage": 3}, "full", None),
    ("llama-3-8b", "1x8xH100-SXM", 2, {"context_parallel_size": 4, "context_parallel_method": "all_gather",
     "data_parallel_shard_size": 2, "zero_stage": 3}, "full", None),
    ("llama-3-8b", "8x8xH100-SXM", 64, {"data_parallel_replicate_size": 8, "data_parallel_shard_size": 8, "zero_stage": 3},
     "op_policy", None),
    ("llama-3-70b", "32x8xH100-SXM", 512, {"tensor_parallel_size": 8, "zero_stage": 3, "micro_batch_size": 16}, "full", None),
    ("llama-3-70b", "16x8xA100-SXM-80GB", 128, {"tensor_parallel_size": 8, "zero_stage": 3}, "full", None),
    ("llama-3.1-405b", "16x8xH100-SXM", 128, {"zero_stage": 3}, "full", None),
    ("llama-3.1-405b", "16x8xH100-SXM", 32, {"tensor_parallel_size": 8, "zero_stage": 3, "micro_batch_size": 2}, "full", None),
    ("llama-3.1-405b", "64x8xH100-SXM", 256, {"tensor_parallel_size": 8, "pipeline_parallel_size": 8,
     "pipeline_schedule": "1f1b", "zero_stage": 2}, "full", (15, 16, 16, 16, 16, 16, 16, 15)),
    ("llama-3.1-405b", "64x8xH100-SXM", 256, {"tensor_parallel_size": 8, "pipeline_parallel_size": 8,
     "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2, "zero_stage": 2}, "full", (7, *[8] * 14, 7)),
    ("qwen3-32b", "4x8xH100-SXM", 64, {"tensor_parallel_size": 4, "zero_stage": 3, "micro_batch_size": 2}, "full", None),
)  # fmt: skip


def real_plans() -> list[Plan]:
    return [
        make_plan(
            model, cluster, global_batch_size=batch, sequence_length=8192, sizes=sizes, recompute=recompute,
            layers_per_stage=layers, runtime="torchtitan-eager" if index % 3 == 2 else "torchtitan",
        )
        for index, (model, cluster, batch, sizes, recompute, layers) in enumerate(REAL)
    ]  # fmt: skip


def meaning(plan: Plan) -> dict[str, Any]:
    """What torchtitan has to make of a plan, in the words of the oracle."""
    parallel, training, optimizer = plan.parallel, plan.training, plan.training.optimizer
    layer, piped = plan.model.layers[0], parallel.pipeline_parallel_size > 1
    alone = not piped or parallel.pipeline_schedule == "naive"
    return {
        "world_size": plan.num_devices_used,
        "data_parallel_size": parallel.data_parallel_size,
        "replicate": parallel.data_parallel_replicate_size,
        "shard_group": parallel.data_parallel_shard_size * parallel.context_parallel_size,
        "tensor": parallel.tensor_parallel_size,
        "sequence_parallel": parallel.sequence_parallel,
        "context": parallel.context_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "schedule": SCHEDULES[parallel.pipeline_schedule] if piped else None,
        "chunks": parallel.num_model_chunks,
        "layers_per_stage": [stage.num_layers for stage in plan.stages],
        "micro_batch": parallel.micro_batch_size,
        "micro_batches": parallel.num_micro_batches,
        "micro_batches_in_flight": 1 if alone else parallel.num_micro_batches,
        "global_batch": training.global_batch_size,
        "sequence": training.sequence_length,
        "zero_stage": parallel.zero_stage,
        "recompute": plan.stages[0].recompute.kind,
        "compute": {"bf16": "bfloat16", "fp32": "float32"}[training.precision.compute],
        "compiled": plan.runtime.name == "torchtitan",
        "loss_chunks": 1,
        "optimizer": [
            "AdamW",
            optimizer.learning_rate,
            list(optimizer.betas),
            optimizer.epsilon,
            optimizer.weight_decay,
        ],
        "max_norm": float("inf") if optimizer.max_grad_norm is None else optimizer.max_grad_norm,
        "model": {
            "num_hidden_layers": plan.model.num_hidden_layers,
            "hidden_size": plan.model.hidden_size,
            "num_attention_heads": layer.attention.num_attention_heads,
            "num_key_value_heads": layer.attention.num_key_value_heads,
            "head_dim": layer.attention.head_dim,
            "intermediate_size": layer.feed_forward.intermediate_size,
            "vocab_size": plan.model.vocab_size,
            "tie_word_embeddings": plan.model.tie_word_embeddings,
        },
    }


REFUSED = (
    (["--parallelism.pipeline_parallel_degree", "2"], "SystemExit"),
    (["--training.lokal_batch_size", "2"], "SystemExit"),
    (["--parallelism.data_parallel_shard_degree", "3"], "AssertionError: Invalid parallel dims"),
)
PLAIN = {key: preset for key, preset in PRESETS.items() if not preset.fp8}  # the other one needs a GPU to be made
# Every depth of its models, and 61, on 2 to 64 stages with every weight up to 2.
SPLITS = [
    (depth, stages, first, last)
    for depth in sorted({flavor.num_hidden_layers for flavor in FLAVORS.values()} | {61})
    for stages in (2, 3, 4, 6, 8, 16, 32, 64)
    for first in range(3)
    for last in range(3)
]


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    """200 plans of 8 to 16,384 devices, all kinds of layouts, and 12 that torchtitan's users run."""
    return [*generated_plans("torchtitan", MODELS, count=200, seed=20), *real_plans()]


@pytest.fixture(scope="module")
def answers(plans: list[Plan], ask: Any, start: Any) -> dict[str, Any]:
    """All that torchtitan is asked, in one process."""
    jobs = []
    for plan in plans:
        files = render(plan, "torchtitan")
        assert isinstance(files, dict), files
        jobs.append(start(files, "torchrun"))
    words = ["--nproc-per-node", "8", "-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_8b"]
    question = {
        "jobs": [*jobs, *({"arguments": [*words, *flags], "folder": "."} for flags, _ in REFUSED)],
        "flavors": list(FLAVORS),
        "presets": [{"module": module, "config": config} for module, config in PLAIN],
        "splits": SPLITS,
    }
    answer: dict[str, Any] = ask("torchtitan", question)
    return answer


def test_torchtitan_reads_every_command_as_the_plan(plans: list[Plan], answers: dict[str, Any]) -> None:
    assert {8, 16384} <= {plan.num_devices_used for plan in plans}
    found = answers["jobs"][: len(plans)]
    assert len(found) == 212
    for plan, answer in zip(plans, found, strict=True):
        assert "error" not in answer, (answer, plan.parallel)
        assert answer["model"]["max_positions"] >= plan.training.sequence_length
        expected = meaning(plan)
        expected["model"]["max_positions"] = answer["model"]["max_positions"]
        assert answer == expected


def test_torchtitan_can_say_no(answers: dict[str, Any]) -> None:
    found = answers["jobs"][-len(REFUSED) :]
    assert [message in answer["error"] for (_, message), answer in zip(REFUSED, found, strict=True)] == [True] * 3


def test_the_tables_are_those_of_torchtitan(answers: dict[str, Any]) -> None:
    for flavor, found in zip(FLAVORS.values(), answers["flavors"], strict=True):
        assert found == {key: value for key, value in asdict(flavor).items() if key in found}
    for ((module, _), preset), found in zip(PLAIN.items(), answers["presets"], strict=True):
        own = {key: value for key, value in asdict(preset).items() if key in found}
        assert own == {key: found[key] for key in own}
        assert (found["others_are_one"], found["global_batch_size"]) == ([1, 1, 1, 1], -1)
        assert found["model"]["num_hidden_layers"] == FLAVORS[module, preset.flavor].num_hidden_layers


def test_layers_are_dealt_as_torchtitan_deals_them(answers: dict[str, Any]) -> None:
    for (depth, stages, first, last), found in zip(SPLITS, answers["splits"], strict=True):
        assert split(depth, stages, first, last) == (None if found is None else tuple(found))


def test_stages_are_counted_from_layers_a_stage() -> None:
    """ceil((126 + 2) / 4) = 32 stages; without it two a rank where the schedule runs several chunks."""
    assert count_stages(126, 8, 4, multi=True) == 32
    assert count_stages(126, 8, None, multi=True) == 16
    assert count_stages(126, 8, None, multi=False) == 8

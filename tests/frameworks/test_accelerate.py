"""accelerate's own launcher, plugins and ParallelismConfig read our YAML and script; what it takes in silence is our error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from generated_plans import generated_plans

from costmodel.specs import InputError, Plan
from meshwright import make_plan
from meshwright.exporters import reject, render
from meshwright.exporters.accelerate import ACCELERATE
from meshwright.exporters.accelerate.read import DEEPSPEED_KEYS, PARALLELISM_KEYS, PREFIX, TOP_KEYS
from meshwright.exporters.fsdp2 import ACCELERATE_KEYS

pytestmark = pytest.mark.framework

MODELS = (
    "llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "qwen3-32b", "mistral-7b-v0.1", "opt-13b", "gpt2-xl", "gemma-2-9b",
    "phi-4",
)  # fmt: skip
# What accelerate's examples and threads run: runtime, model, cluster, batch, sequence, sizes, recomputation.
REAL: tuple[tuple[str, str, str, int, int, dict[str, Any], str], ...] = (
    ("accelerate", "llama-3-8b", "1x8xH100-SXM", 8, 8192, {"zero_stage": 3}, "full"),
    ("accelerate", "llama-3-8b", "1x8xH100-SXM", 16, 4096, {"zero_stage": 2, "micro_batch_size": 2}, "full"),
    ("accelerate", "llama-3-8b", "2x8xH100-SXM", 16, 4096, {"zero_stage": 3, "data_parallel_replicate_size": 2}, "full"),
    ("accelerate", "llama-3-8b", "2x8xH100-SXM", 2, 65536, {"zero_stage": 3, "data_parallel_shard_size": 2,
     "context_parallel_size": 8, "context_parallel_method": "all_gather"}, "full"),
    ("accelerate", "llama-3-8b", "4x8xH100-SXM", 8, 8192, {"zero_stage": 3, "data_parallel_replicate_size": 2,
     "data_parallel_shard_size": 4, "tensor_parallel_size": 4}, "full"),
    ("accelerate", "qwen2.5-1.5b", "1x8xA100-SXM-40GB", 64, 2048, {"zero_stage": 0}, "none"),
    ("accelerate", "gpt2", "1x2xA100-SXM-40GB", 16, 1024, {"zero_stage": 0, "micro_batch_size": 8}, "none"),
    ("accelerate", "llama-2-70b", "2x8xA100-SXM-80GB", 16, 4096, {"zero_stage": 3}, "full"),
    ("deepspeed", "llama-2-7b", "1x8xA100-SXM-80GB", 64, 4096, {"zero_stage": 3}, "none"),
    ("deepspeed", "llama-2-7b", "1x8xA100-SXM-80GB", 64, 4096, {"zero_stage": 2, "micro_batch_size": 2}, "none"),
    ("deepspeed", "opt-13b", "4x8xA100-SXM-80GB", 128, 2048, {"zero_stage": 3}, "none"),
    ("deepspeed", "gpt2-xl", "1x4xV100-SXM-32GB", 64, 1024, {"zero_stage": 1, "micro_batch_size": 4}, "none"),
)  # fmt: skip
FSDP: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_processes": 8,
    "num_machines": 1,
    "machine_rank": 0,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
}
# What accelerate takes in silence, and our words on it.
SILENT: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_foward": False}},
        "fsdp_reshard_after_foward.*reshard_after_forward",
    ),
    ({"parallelism_config": {"tp_size": 4, "dp_shard_size": 2}}, "parallelism_config.tp_size"),
    ({"parallelism_config": {f"{PREFIX}tp_sise": 4}}, f"{PREFIX}tp_sise.*{PREFIX}tp_size"),
    (
        {
            "distributed_type": "DEEPSPEED",
            "fsdp_config": {},
            "deepspeed_config": {"zero_stage": 1, "offload_param_device": "cpu"},
        },
        "offload_param is set with .*stage 1",
    ),
    (
        {"distributed_type": "DEEPSPEED", "fsdp_config": {}, "deepspeed_config": {"zero_stage": 3, "zero_stages": 3}},
        "deepspeed_config 'zero_stages'",
    ),
)
REFUSED: tuple[tuple[dict[str, Any], str], ...] = (({"mixed_precison": "bf16"}, "mixed_precison.*mixed_precision"),)


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
    parallel, training = plan.parallel, plan.training
    of_deepspeed = plan.runtime.name == "deepspeed"
    alone = "ddp" if plan.num_devices_used > 1 else "no"
    kind = "deepspeed" if of_deepspeed else "fsdp" if parallel.zero_stage else alone
    meshed = kind == "fsdp" or (kind != "deepspeed" and parallel.tensor_parallel_size > 1)
    words = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
    found = {
        "world_size": plan.num_devices_used,
        "kind": kind,
        "replicate": parallel.data_parallel_replicate_size if meshed else 1,
        "shard": parallel.data_parallel_shard_size if meshed else 1,
        "tensor": parallel.tensor_parallel_size,
        "context": parallel.context_parallel_size,
        "compute": words[training.precision.compute],
        "micro_batches": str(parallel.num_micro_batches),
        "micro_batch": str(parallel.micro_batch_size),
        "sequence": str(training.sequence_length),
        "script": __file__,
    }
    if kind == "fsdp":
        found |= {"zero_stage": parallel.zero_stage, "recompute": plan.stages[0].recompute.kind == "full"}
    if of_deepspeed:
        found |= {
            "zero_stage": parallel.zero_stage,
            "clipping": training.optimizer.max_grad_norm or 0.0,
            "accumulation": parallel.num_micro_batches,
            "offload": ["none", "none"],
        }
    return found


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    def taken(plan: Plan) -> bool:
        return reject(ACCELERATE, plan) is None

    return [
        *generated_plans("accelerate", MODELS, count=140, seed=40, accept=taken),
        *generated_plans("deepspeed", MODELS, count=60, seed=41, accept=taken),
        *real_plans(),
    ]


def names() -> list[str]:
    """Attributes of the launcher's arguments that our tables say it reads."""
    return [
        *(f"fsdp_{key}" for key in ACCELERATE_KEYS),
        *(f"{PREFIX}{key}" for key in PARALLELISM_KEYS),
        *DEEPSPEED_KEYS,
    ]


@pytest.fixture(scope="module")
def answers(plans: list[Plan], ask: Any, start: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jobs = []
    for plan in plans:
        files = render(plan, "accelerate")
        assert isinstance(files, dict), files
        jobs.append(start(files, "accelerate", TRAIN_SCRIPT=__file__))
    folder: Path = tmp_path_factory.mktemp("cases")
    cases = []
    for number, (change, _) in enumerate((*SILENT, *REFUSED)):
        path = folder / f"{number}.yaml"
        path.write_text(yaml.safe_dump(FSDP | change))
        cases.append(str(path))
    answer: dict[str, Any] = ask("accelerate", {"jobs": jobs, "cases": cases, "names": names()})
    return answer


def test_accelerate_reads_every_config_as_the_plan(plans: list[Plan], answers: dict[str, Any]) -> None:
    assert {8, 16384} <= {plan.num_devices_used for plan in plans}
    assert len(plans) == 212
    for plan, answer in zip(plans, answers["jobs"], strict=True):
        assert answer == meaning(plan), plan.parallel


def test_what_accelerate_takes_in_silence_is_an_error_here(answers: dict[str, Any]) -> None:
    assert answers["cases"][: len(SILENT)] == [True] * len(SILENT)
    for change, message in SILENT:
        with pytest.raises(InputError, match=message):
            ACCELERATE.read({"config.yaml": yaml.safe_dump(FSDP | change)})  # type: ignore[misc]


def test_what_accelerate_refuses_is_refused_here(answers: dict[str, Any]) -> None:
    assert all(isinstance(error, str) for error in answers["cases"][len(SILENT) :])
    for change, message in REFUSED:
        with pytest.raises(InputError, match=message):
            ACCELERATE.read({"config.yaml": yaml.safe_dump(FSDP | change)})  # type: ignore[misc]


def test_the_keys_are_those_that_accelerate_reads(answers: dict[str, Any]) -> None:
    """The two old names beside its fields are those that its loader turns into new ones."""
    assert {*answers["top"], "dynamo_backend", "fp16"} == set(TOP_KEYS)
    assert answers["read"] == names()
    assert set(answers["options"]) <= set(names())

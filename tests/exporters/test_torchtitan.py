"""torchtitan's commands, both ways; tests/frameworks asks torchtitan's own parser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generated_plans import drawn_plan, generated_plans
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.specs import InputError, Plan, Rejection
from meshwright import make_plan
from meshwright.exporters import losses_of, render
from meshwright.exporters.torchtitan import MAIN, RELEASE, TORCHTITAN
from meshwright.exporters.torchtitan.presets import FLAVORS, find_flavor
from meshwright.exporters.torchtitan.stages import count_stages, split, split_flags
from meshwright.importing import import_plan, read_config

PP2 = "--parallelism.pipeline_parallel_degree 2"
MODELS = ("llama-3-8b", "llama-3-70b", "llama-3.1-405b", "qwen3-0.6b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b")


def plan_of(model: str = "llama-3-8b", cluster: str = "1x8xH100-SXM", batch: int = 16, **sizes: Any) -> Plan:
    return make_plan(
        model,
        cluster,
        global_batch_size=batch,
        sequence_length=8192,
        sizes=sizes,
        recompute="op_policy",
        runtime="torchtitan",
    )


def piped(**sizes: Any) -> Plan:
    stated = {"tensor_parallel_size": 8, "pipeline_parallel_size": 8, "zero_stage": 2, **sizes}
    return make_plan(
        "llama-3.1-405b", "64x8xH100-SXM", global_batch_size=256, sequence_length=8192, sizes=stated, recompute="full",
        layers_per_stage=(15, 16, 16, 16, 16, 16, 16, 15), runtime="torchtitan",
    )  # fmt: skip


def files_of(plan: Plan, version: str = RELEASE) -> dict[str, str]:
    files = render(plan, "torchtitan", version=version)
    assert isinstance(files, dict), files
    return files


def command(flags: str, *, preset: str = "llama3_8b", devices: int = 8) -> dict[str, str]:
    """A script as people write it."""
    start = f"torchrun --nproc_per_node={devices} -m torchtitan.train --module llama3 --config {preset}"
    return {"run.sh": f"#!/bin/bash\nset -e\n{start} \\\n    {flags}\n"}


@pytest.mark.parametrize(("name", "version"), [("torchtitan.sh", RELEASE), ("torchtitan_main.sh", MAIN)])
def test_the_script(
    name: str, version: str, golden: Callable[[str, str], None], check_script: Any, tmp_path: Path
) -> None:
    files = files_of(piped(), version)
    assert list(files) == ["launch.sh", "planned_config.py"]
    golden(name, files["launch.sh"])
    (tmp_path / "launch.sh").write_text(files["launch.sh"])
    check_script(tmp_path / "launch.sh")


def test_a_size_without_a_config_function_brings_its_own(golden: Callable[[str, str], None]) -> None:
    """torchtitan's own llama3_405b trains in fp8."""
    golden("torchtitan_config.txt", files_of(piped())["planned_config.py"])
    assert list(files_of(plan_of(zero_stage=3))) == ["launch.sh"]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    version=st.sampled_from((RELEASE, MAIN)),
    runtime=st.sampled_from(("torchtitan", "torchtitan-eager")),
)
def test_there_and_back(seed: int, version: str, runtime: str) -> None:
    plan = drawn_plan(seed, runtime, MODELS)
    again = import_plan(TORCHTITAN.read(files_of(plan, version)), plan.model, plan.cluster)  # type: ignore[misc]
    alike = plan.parallel.pipeline_schedule == "gpipe" and plan.parallel.num_micro_batches == 1
    if alike:
        assert [loss.field for loss in losses_of(TORCHTITAN, plan)] == ["parallel.pipeline_schedule"]
        assert again.parallel == plan.parallel.model_copy(update={"pipeline_schedule": "naive"})
    else:
        assert again.plan_hash == plan.plan_hash


def test_most_choices_are_plans() -> None:
    """What `test_there_and_back` draws is no handful of cases."""
    plans = list(generated_plans("torchtitan", MODELS, count=100, seed=3))
    assert {plan.parallel.pipeline_schedule for plan in plans} >= {
        "none",
        "gpipe",
        "1f1b",
        "interleaved_1f1b",
        "looped_bfs",
    }
    assert {plan.stages[0].recompute.kind for plan in plans} == {"none", "op_policy", "full"}
    assert {plan.parallel.zero_stage for plan in plans} >= {2, 3}


@pytest.mark.parametrize(
    ("layers", "pipeline", "flags"),
    [
        ((8, 9, 8, 7), 4, {}),
        ((8, 8, 8, 8), 4, {"first": "0", "last": "0"}),
        ((15, *[16] * 6, 15), 8, {}),
        ((3, *[4] * 14, 2), 16, {}),
        ((2,) * 16, 4, {"first": "0", "last": "0", "per": "2"}),
        ((5, 3, 4, 4, 4, 4, 4, 4), 8, None),
    ],
)
def test_flags_of_a_split(layers: tuple[int, ...], pipeline: int, flags: dict[str, str] | None) -> None:
    """Defaults where they do it, weights and layers a stage where those do, else every module by name."""
    found = split_flags(layers, pipeline)
    if flags is None:
        (words,) = found.values()
        assert [sum(name.startswith("layers.") for name in word.split(",")) for word in words] == list(layers)
        return
    short = {
        key.rsplit("_pipeline_parallel_", 1)[-1].rsplit("pipeline_parallel_", 1)[-1].split("_")[0]: words[0]
        for key, words in found.items()
    }
    assert {"per" if key == "layers" else key: value for key, value in short.items()} == flags
    first, last = int(flags.get("first", 1)), int(flags.get("last", 1))
    assert split(sum(layers), len(layers), first, last) == layers
    per = int(flags["per"]) if "per" in flags else None
    assert count_stages(sum(layers), pipeline, per, multi=len(layers) > pipeline, first=first, last=last) == len(layers)


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (plan_of("llama-2-7b", zero_stage=3), "export_torchtitan_model"),
        (plan_of("qwen2.5-7b", zero_stage=3), "export_torchtitan_model"),
        (
            make_plan("llama-3-8b", "1x8xH100-SXM", global_batch_size=8, sequence_length=8192, sizes={"zero_stage": 3},
                      precision="fp8", runtime="torchtitan"),
            "export_torchtitan_precision",
        ),
        (
            make_plan("qwen3-8b", "1x8xH100-SXM", global_batch_size=8, sequence_length=65536, sizes={"zero_stage": 3},
                      runtime="torchtitan"),
            "export_torchtitan_positions",
        ),
        (
            make_plan("llama-3-8b", "1x8xH100-SXM", global_batch_size=8, sequence_length=8192, sizes={"zero_stage": 3},
                      attention="unfused", runtime="torchtitan"),
            "export_torchtitan_attention",
        ),
    ],
)  # fmt: skip
def test_what_torchtitan_cannot_express(plan: Plan, rule: str) -> None:
    rejection = render(plan, "torchtitan")
    assert isinstance(rejection, Rejection)
    assert rejection.rule == rule
    assert rejection.fix


def test_flavors_are_models_of_the_catalogue() -> None:
    from meshwright import load_model

    found = {name: find_flavor(load_model(name)) for name in (*MODELS, "llama-2-7b", "mistral-7b-v0.1", "qwen2.5-7b")}
    assert [f"{flavor.module} {flavor.name}" if flavor else None for flavor in found.values()] == [
        "llama3 8B", "llama3 70B", "llama3 405B", "qwen3 0.6B", "qwen3 4B", "qwen3 8B", "qwen3 14B", "qwen3 32B",
        None, None, None,
    ]  # fmt: skip
    assert len(FLAVORS) == 11


def test_what_a_config_function_sets_holds_where_the_command_is_silent() -> None:
    """llama3_70b of 0.3.0: local batch 8, sequence 8192, tensor parallel 8, full recomputation."""
    read = TORCHTITAN.read(command("--training.global-batch-size=128", preset="llama3_70b", devices=64))  # type: ignore[misc]
    assert (read.sizes["tensor_parallel_size"], read.sizes["micro_batch_size"], read.recompute) == (8, 8, "full")
    assert read.training["sequence_length"] == 8192
    plan = import_plan(read, "llama-3-70b", "8x8xH100-SXM")
    assert (plan.parallel.data_parallel_shard_size, plan.parallel.num_micro_batches) == (8, 2)
    assert any("--loss.num_chunks" in warning for warning in read.warnings)


def test_the_batch_follows_from_the_devices_where_none_is_stated() -> None:
    plan = import_plan(TORCHTITAN.read(command("--training.local_batch_size 2")), "llama-3-8b", "1x8xH100-SXM")  # type: ignore[misc]
    assert plan.training.global_batch_size == 16


def test_the_launcher_that_torchtitan_ships(tmp_path: Path) -> None:
    """run_train.sh takes NGPU, MODULE and CONFIG from the environment."""
    script = tmp_path / "go.sh"
    script.write_text(
        "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.local_batch_size 2 activation-checkpoint:full\n"
    )
    read = read_config(script)
    assert (read.target, read.num_devices, read.recompute) == ("torchtitan", 8, "full")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--training.lokal_batch_size 2", r"--training.lokal_batch_size.*--training.local_batch_size"),
        ("--training.local_batch_size two", "--training.local_batch_size is 'two'; needed a whole number"),
        ("--training.local_batch_size", "--training.local_batch_size has 0 values"),
        ("--training.local_batch_size $BATCH", "--training.local_batch_size is .BATCH, which only the running script knows"),
        ("--parallelism.fsdp_reshard_after_forward sometimes", "needed one of default, always, never"),
        (f"{PP2} --parallelism.pipeline_parallel_schedule ZBVZeroBubble", "needed one of 1F1B"),
        (f"{PP2} --training.local_batch_size 3 --parallelism.pipeline_parallel_microbatch_size 2", "3 is not divisible"),
        ("--parallelism.expert_parallel_degree 3 --parallelism.data_parallel_shard_degree 8", "3 does not divide 8 ranks"),
        ("--parallelism.expert_parallel_degree 2", "--parallelism.expert_parallel_degree is 2"),
        ("--training.enable_cpu_offload", "--training.enable_cpu_offload is not predicted"),
        ("--training.dtype bfloat16", "--training.dtype bfloat16"),
        ("activation-checkpoint:memory-budget", "activation-checkpoint:memory-budget is not predicted"),
        (f"{PP2} --parallelism.module_fqns_per_model_part tok_embeddings,layers.0 layers.2,norm,lm_head", "in order"),
        (f"{PP2} --parallelism.pipeline_parallel_layers_per_stage 4", "exactly one stage a rank"),
    ],
)  # fmt: skip
def test_what_a_command_cannot_say(flags: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TORCHTITAN.read(command(flags))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        # torchtitan itself only warns; torch's 1F1B needs as many micro-batches as stages.
        (
            "--parallelism.pipeline_parallel_degree 4 --training.local_batch_size 2 --training.disable_cuda_graphs",
            "num_micro_batches",
        ),
        ("--parallelism.tensor_parallel_degree 16", "16"),
        ("--parallelism.data_parallel_shard_degree 3", "data_parallel_shard_degree"),
        ("--training.seq_len 8191 --parallelism.tensor_parallel_degree 2", "8191"),
    ],
)
def test_what_no_plan_can_be(flags: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_plan(TORCHTITAN.read(command(flags)), "llama-3-8b", "1x8xH100-SXM")  # type: ignore[misc]


def test_another_model_is_told() -> None:
    with pytest.raises(InputError, match=r"--module llama3 \(8B\).*llama-3-70b has num_hidden_layers 80"):
        import_plan(TORCHTITAN.read(command("--training.local_batch_size 2")), "llama-3-70b", "1x8xH100-SXM")  # type: ignore[misc]

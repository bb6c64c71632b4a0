"""Cases about sizes that do not divide: heads, vocabulary, layers, batch, devices."""

from __future__ import annotations

import json
import re
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from practitioner_cases import case
from practitioner_worlds import gpt, llama, made

from costmodel.models.parameters import embedding_tensors
from costmodel.runtimes.layer_split import even_split
from costmodel.specs import Infeasible, InputError, ModelSpec
from meshwright import explain, load_cluster, plan
from meshwright.cli.app import main


def _valid_sizes(message: str) -> set[int]:
    found = re.search(r"valid tensor_parallel_size: ([0-9, ]+)", message)
    assert found is not None, message
    return {int(number) for number in found[1].split(",")}


def _refused(model: ModelSpec | str, cluster: str, tensor: int) -> str:
    with pytest.raises(InputError) as refused:
        plan(model, cluster, global_batch_size=16, sequence_length=2048, fix={"tensor_parallel_size": tensor})
    return str(refused.value)


@case("tp-heads-28")
def heads_that_8_does_not_divide() -> None:
    """28 heads and 4 key-value heads: TP 8 is refused, 1, 2 and 4 are listed, and a plan on all 8 devices is found."""
    message = _refused("qwen2.5-7b", "8xA100-SXM-80GB", 8)
    assert "num_attention_heads 28" in message
    assert _valid_sizes(message) == {1, 2, 4}
    answer = plan(
        "qwen2.5-7b", "8xA100-SXM-80GB", global_batch_size=16, sequence_length=2048,
        fix={"tensor_parallel_size": 4, "pipeline_parallel_size": 1},
    )  # fmt: skip
    assert not isinstance(answer, Infeasible)
    assert answer.best.parallel.data_parallel_size == 2


@case(
    "automodel799",
    leaves_out="that 5 is invalid on 8 devices: it divides all heads, so it is listed there, as in the case's own advice; "
    "it leaves 3 devices idle, and the planner does not choose it",
)
def key_value_heads_that_4_does_not_divide() -> None:
    """Phi-4 has 10 key-value heads: TP 4 is refused with the divisors, data parallelism takes the other devices."""
    model = llama("phi-4", layers=40, hidden=5120, ffn=17920, heads=40, kv_heads=10, vocab=100352)
    for devices, valid in ((4, {1, 2}), (8, {1, 2, 5})):
        message = _refused(model, f"{devices}xA100-SXM-80GB", 4)
        assert "num_key_value_heads 10" in message
        assert _valid_sizes(message) == valid
        answer = plan(
            model, f"{devices}xA100-SXM-80GB", global_batch_size=16, sequence_length=2048,
            fix={"pipeline_parallel_size": 1, "micro_batch_size": 1, "recompute": "full"},
        )  # fmt: skip
        assert not isinstance(answer, Infeasible)
        parallel = answer.best.parallel
        assert parallel.tensor_parallel_size in {1, 2}
        assert parallel.tensor_parallel_size * parallel.data_parallel_size == devices


@case("mlm1304")
def no_layer_is_dropped() -> None:
    """30 layers over 4 stages are 30 layers, as for every number of layers and stages."""
    thirty = made(
        gpt("gpt2-30", layers=30, hidden=1024, heads=16), "4xA100-SXM-80GB",
        batch=8, sequence=1024, runtime="megatron", pipeline_parallel_size=4,
    )  # fmt: skip
    assert [stage.num_layers for stage in thirty.stages] == [7, 8, 8, 7]
    for layers in range(1, 130):
        for stages in range(1, min(layers, 40) + 1):
            split = even_split(layers, stages)
            assert len(split) == stages
            assert sum(split) == layers
            assert min(split) >= 1
            assert max(split) - min(split) <= 1


@case("tt963", leaves_out="experts of DeepSeek-V3: how layers are dealt to stages does not depend on what they hold")
def sixty_one_layers_are_kept() -> None:
    """61 layers on 2 to 16 stages: none lost, contiguous, and no stage holds fewer than the one with the head."""
    model = llama("61-layers", layers=61, hidden=1024, ffn=4096, heads=16, kv_heads=16, vocab=32000)
    for stages in (2, 4, 8, 16):
        found = made(
            model, f"{stages // 8 or 1}x{min(stages, 8)}xA100-SXM-80GB",
            batch=stages, sequence=1024, pipeline_parallel_size=stages,
        ).stages  # fmt: skip
        assert sum(stage.num_layers for stage in found) == 61
        assert [stage.start for stage in found[1:]] == [stage.stop for stage in found[:-1]]
        assert min(stage.num_layers for stage in found) == found[-1].num_layers


@case("mlm-gbs")
def the_batch_divides() -> None:
    """gbs = micro-batch x accumulation x data-parallel size holds for every plan, and explain shows the accumulation."""
    answer = plan("llama-2-7b", "8xA100-SXM-80GB", global_batch_size=24, sequence_length=2048, top=10)
    assert not isinstance(answer, Infeasible)
    for found in (answer.best, *answer.alternatives):
        parallel = found.parallel
        assert parallel.micro_batch_size * parallel.num_micro_batches * parallel.data_parallel_size == 24
    accumulation = f" m{answer.best.parallel.num_micro_batches} "
    assert accumulation in explain(answer)[0].sentence
    with pytest.raises(Exception, match="global_batch_size 10 is not divisible by micro_batch_size 4 x data_parallel"):
        plan(
            "llama-2-7b", "8xA100-SXM-80GB", global_batch_size=10, sequence_length=2048,
            fix={"micro_batch_size": 4, "data_parallel_size": 8},
        )  # fmt: skip


def _planned(tensor: int, data: int) -> dict[str, int]:
    """The plan that the command line writes for 2 devices and a global batch of 32."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        code = main([
            "plan", "--model", "gpt2-medium", "--cluster", "2xA100-SXM-80GB", "--global-batch-size", "32",
            "--sequence-length", "512", "--fix", f"tensor_parallel_size={tensor}", "--fix", f"data_parallel_size={data}",
            "--fix", "micro_batch_size=4", "--output", str(file), "--json",
        ])  # fmt: skip
        assert code == 0
        content = json.loads(file.read_text(encoding="utf-8"))
    return {**content["parallel"], "global_batch_size": content["training"]["global_batch_size"]}


@case("libai345")
def the_global_batch_is_the_users() -> None:
    """--global-batch-size stays what it is however the devices are used; accumulation follows."""
    for tensor, data in ((1, 2), (2, 1)):
        sizes = _planned(tensor, data)
        assert sizes["global_batch_size"] == 32
        assert sizes["num_micro_batches"] * 4 * data == 32


@case("mlm1754")
def the_vocabulary_is_padded() -> None:
    """Megatron's table has ceil(V / 128 t) x 128 t rows, so its size depends on t: 50,304 at 1 and 50,432 at 2 ranks."""
    model = gpt("toy", layers=2, hidden=256, heads=4, vocab=50257)
    for tensor in (1, 2):
        found = made(
            model, "2xA100-SXM-80GB", batch=2, sequence=128, runtime="megatron", tensor_parallel_size=tensor
        ).model
        assert found.padded_vocab_size == ceil(50257 / (128 * tensor)) * 128 * tensor


@case(
    "vllm31474",
    leaves_out="the refusal of a vocabulary that TP does not divide: training pads it or cuts uneven shards. GLM-4.7's "
    "experts are left out, and its heads are taken of 64 elements, so that 6 divides everything but the vocabulary",
)
def a_vocabulary_that_6_does_not_divide() -> None:
    """TP 6 is refused for 8 key-value heads; where all heads divide, the largest shard of 151,552 words is counted."""
    sizes = {"layers": 4, "hidden": 6144, "ffn": 12288, "heads": 96, "vocab": 151552}
    message = _refused(llama("glm", kv_heads=8, **sizes), "6xH20", 6)
    assert {1, 2, 4} == _valid_sizes(message)
    even = llama("glm", kv_heads=96, **sizes)
    found = made(even, "6xH20", batch=6, sequence=2048, runtime="torch", tensor_parallel_size=6, loss_parallel=True)
    (table,) = embedding_tensors(found.model)
    assert table.shape[0] >= 151552
    assert ceil(151552 / 6) * 6 > 151552


@case("hetero-acc2780")
def nodes_of_different_sizes() -> None:
    """One node of 1 and one of 4 devices: a clear refusal, exit code 2."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text("device: A100-SXM-80GB\nnum_nodes: 2\ndevices_per_node: [1, 4]\n", encoding="utf-8")
        with pytest.raises(InputError, match=r"devices_per_node: found \[1, 4\]; the nodes of a cluster must be equal"):
            load_cluster(file)
        words = ["--model", "gpt2", "--global-batch-size", "5", "--sequence-length", "512"]
        assert main(["plan", "--cluster", str(file), *words]) == 2

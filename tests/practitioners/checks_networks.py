"""Cases about slow links: how nodes, sharding, accumulation and boxes without NVLink compare."""

from __future__ import annotations

from typing import Any

from practitioner_cases import case
from practitioner_worlds import GB, cluster_of, exposed_seconds, gpt, llama, predicted, seconds

from costmodel.specs import Estimate, Infeasible
from meshwright import plan

ETHERNET = {"profile": "eth-10g", "ports": 1}
_NAMES = "the words of each framework for it: they belong to the exporters of DeepSpeed, FSDP2 and Accelerate, which do not exist"


@case(
    "lf5014",
    leaves_out="LoRA: the whole model is trained here; what is gathered, the whole model in 16 bits, is the same",
)
def zero_3_over_10_gigabit() -> None:
    """Two gathers of 16 GB at 1.25 GB/s are 24 s a step at least (90 s were measured); replicas per node avoid them."""
    cluster = cluster_of("2x8xA800-SXM-80GB", network=ETHERNET)
    stated: dict[str, Any] = {
        "batch": 16, "sequence": 1024, "runtime": "deepspeed", "recompute": "full", "micro_batch_size": 1, "zero_stage": 3,
    }  # fmt: skip
    across = predicted("llama-3-8b", cluster, **stated)
    inside = predicted("llama-3-8b", cluster, data_parallel_shard_size=8, **stated)
    assert exposed_seconds(across, "zero_gather") >= 2 * 15 * GB / 1.25e9
    assert exposed_seconds(inside, "zero_gather") < 1
    assert seconds(inside) < seconds(across) / 2
    alone = predicted("llama-3-8b", "8xA800-SXM-80GB", **{**stated, "batch": 8})
    assert seconds(across) > 10 * seconds(alone)
    answer = plan(
        "llama-3-8b", cluster, global_batch_size=16, sequence_length=1024, runtime="deepspeed",
        fix={"tensor_parallel_size": 1, "zero_stage": 3, "data_parallel_shard_size": 16},
    )  # fmt: skip
    assert not isinstance(answer, Infeasible)
    assert any("ZeRO-3 gathers parameters over Ethernet 10G" in warning for warning in answer.warnings)


def _72b(nodes: int, **sizes: int) -> Estimate:
    cluster = cluster_of(f"{nodes}x8xA100-SXM-40GB", network={"profile": "eth-25g", "ports": 1})
    return predicted(
        "qwen2.5-72b", cluster, batch=8 * nodes, sequence=2048, runtime="deepspeed", recompute="full",
        micro_batch_size=1, zero_stage=3, **sizes,
    )  # fmt: skip


@case("ds6889", part="order", leaves_out="the warning about hpZ with offload: offload is not modelled")
def every_node_slows_zero_3() -> None:
    """The more nodes the slower a device; a 16-bit copy per node makes the step shorter."""
    plain = [_72b(nodes) for nodes in (16, 32)]
    assert plain[1].tokens_per_second_per_device <= plain[0].tokens_per_second_per_device
    assert seconds(_72b(32, hierarchical_partition_size=8)) < seconds(plain[1])


@case("ds6889", part="memory")
def the_copy_per_node_fits() -> None:
    """2 bytes x 72.7e9 / 8 = 18 GB a device beside the states of 256 devices fit into 40 GB, and are what is advised."""
    copies = _72b(32, hierarchical_partition_size=8)
    assert copies.fits
    cluster = cluster_of("32x8xA100-SXM-40GB", network={"profile": "eth-25g", "ports": 1})
    answer = plan(
        "qwen2.5-72b", cluster, global_batch_size=256, sequence_length=2048, runtime="deepspeed",
        fix={"tensor_parallel_size": 1, "zero_stage": 3},
    )  # fmt: skip
    assert not isinstance(answer, Infeasible)
    parallel = answer.best.parallel
    assert parallel.hierarchical_partition_size == 8 or parallel.data_parallel_shard_size < 256


@case("ds7019", leaves_out=_NAMES)
def two_nodes_below_100_gigabit() -> None:
    """Under ZeRO-3 two nodes do less than twice the work of one; sharding inside the nodes does more, if it fits."""
    cluster = cluster_of("2x8xA100-SXM-80GB", network={"profile": "eth-25g", "ports": 1})
    stated: dict[str, Any] = {"sequence": 2048, "recompute": "full", "micro_batch_size": 1, "zero_stage": 3}
    for runtime in ("deepspeed", "torch"):
        one = predicted("llama-3-8b", "8xA100-SXM-80GB", batch=8, runtime=runtime, **stated)
        across = predicted("llama-3-8b", cluster, batch=16, runtime=runtime, **stated)
        hybrid = predicted("llama-3-8b", cluster, batch=16, runtime=runtime, data_parallel_shard_size=8, **stated)
        copies = predicted("llama-3-8b", cluster, batch=16, runtime=runtime, hierarchical_partition_size=8, **stated)
        assert across.tokens_per_second < one.tokens_per_second
        assert seconds(hybrid) < seconds(copies) < seconds(across)
        assert hybrid.fits


@case(
    "ds4281",
    leaves_out="the fine-tuning method, without which 70B does not fit into 16 devices of 40 GB, and the link, which the "
    "report does not state: 10 Gbit/s are assumed",
)
def seventy_billion_on_a_second_node() -> None:
    """A second node behind a slow link lowers tokens per second, and both figures are there to say so."""
    stated: dict[str, Any] = {
        "sequence": 2048, "runtime": "deepspeed", "recompute": "full", "micro_batch_size": 1, "zero_stage": 3,
    }  # fmt: skip
    one = predicted("llama-2-70b", "8xA100-SXM-40GB", batch=8, **stated)
    two = predicted("llama-2-70b", cluster_of("2x8xA100-SXM-40GB", network=ETHERNET), batch=16, **stated)
    assert two.tokens_per_second < one.tokens_per_second
    fast = predicted("llama-2-70b", "2x8xA100-SXM-40GB", batch=16, **stated)
    assert fast.tokens_per_second > two.tokens_per_second


@case("litgpt1369", leaves_out="the link, which the report does not state: 10 Gbit/s are assumed")
def fsdp_of_1_5b_on_a_second_node() -> None:
    """26 s a step over two machines, far less on one."""
    model = llama("llama-1.5b", layers=24, hidden=2048, ffn=5504, heads=32, kv_heads=32, vocab=32000)
    stated: dict[str, Any] = {"sequence": 2048, "micro_batch_size": 1, "zero_stage": 3}
    one = predicted(model, "8xH800-SXM-80GB", batch=8, **stated)
    two = predicted(model, cluster_of("2x8xH800-SXM-80GB", network=ETHERNET), batch=16, **stated)
    assert two.tokens_per_second < one.tokens_per_second
    assert seconds(two) > 10 * seconds(one)


@case("colossal3440")
def ten_devices_slower_than_five() -> None:
    """Two nodes of 5 V100 share one PCIe path of 15.8 GB/s to the network card each; accumulation hides it."""
    model = gpt("gpt-1.1b", layers=24, hidden=1920, heads=20, positions=1024)
    slow = cluster_of("2x5xV100-SXM-32GB", network={"nominal_bytes_per_second": "15.8 GB/s", "ports": 1})
    stated: dict[str, Any] = {"sequence": 1024, "precision": "fp16", "attention": "unfused", "micro_batch_size": 1}
    five = predicted(model, "5xV100-SXM-32GB", batch=5, **stated)
    ten = predicted(model, slow, batch=10, **stated)
    assert ten.tokens_per_second < five.tokens_per_second
    (reduction,) = [traffic for traffic in ten.communication if traffic.op == "all_reduce"]
    (term,) = [term for term in ten.terms if term.name == "data_parallel_gradient"]
    assert reduction.bytes_per_rank / (term.exposed_seconds + term.hidden_seconds) <= 15.8e9
    rates = [predicted(model, slow, batch=10 * count, **stated).tokens_per_second for count in (1, 2, 4, 8, 16)]
    assert rates == sorted(rates)
    accumulated = predicted(model, "5xV100-SXM-32GB", batch=80, **stated)
    assert rates[-1] > accumulated.tokens_per_second


@case("tune1275")
def reduce_once_or_every_time() -> None:
    """ZeRO-1 reduces once a step and holds whole gradients; ZeRO-2 reduces every micro-batch and holds shards."""
    stated: dict[str, Any] = {"sequence": 2048, "recompute": "full", "micro_batch_size": 1}
    cluster, count = "8x4xA100-SXM-80GB", 8
    once, twice = (predicted("llama-3-8b", cluster, batch=32 * count, zero_stage=z, **stated) for z in (1, 2))
    sent = [sum(t.bytes_per_rank for t in result.communication if t.op == "reduce_scatter") for result in (once, twice)]
    assert sent[1] == count * sent[0]
    reduction = [
        sum(t.exposed_seconds + t.hidden_seconds for t in result.terms if t.name == "data_parallel_gradient")
        for result in (once, twice)
    ]
    assert reduction[1] > 0.9 * count * reduction[0]
    assert seconds(twice) > seconds(once)
    # fp32 gradients of 8.03e9 parameters, whole against one of 32 shards and the input of the last reduction, embedding and
    # head, which FSDP2 keeps from one micro-batch to the next.
    held = 8.03e9 * 31 / 32 - 2 * 128256 * 4096
    assert once.peak_memory_bytes.allocated - twice.peak_memory_bytes.allocated > 0.9 * 4 * held


@case(
    "ds2928-math",
    leaves_out="the crossover between ZeRO-3 and the best 3-D plan: the guide's crossover is the rate at which ZeRO-3's "
    "traffic hides behind its own computation",
)
def zero_3_against_three_dimensions() -> None:
    """80B on A100 at 340 Gbit/s a node: 90 TFLOP/s under ZeRO-3 against 150 in three dimensions."""
    model = llama("80b", layers=80, hidden=8192, ffn=22016, heads=64, kv_heads=64, vocab=32000)
    network = {"profile": "efa-100g", "nominal_bytes_per_second": "10.625 GB/s", "ports": 4}
    cluster = cluster_of("64x8xA100-SXM-80GB", network=network)
    stated: dict[str, Any] = {"batch": 2048, "sequence": 1024, "recompute": "full"}
    zero = [
        predicted(model, cluster, runtime="deepspeed", zero_stage=3, micro_batch_size=size, **stated)
        for size in (1, 2, 4)
    ]
    three = predicted(
        model, cluster, runtime="megatron-deepspeed", zero_stage=1, tensor_parallel_size=8, pipeline_parallel_size=8,
        loss_parallel=True, micro_batch_size=1, **stated,
    )  # fmt: skip
    assert three.fits
    assert three.tokens_per_second > max(result.tokens_per_second for result in zero)
    answer = plan(
        model, cluster, global_batch_size=2048, sequence_length=1024,
        fix={"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "zero_stage": 3, "recompute": "full"},
    )  # fmt: skip
    assert not isinstance(answer, Infeasible)
    numbers = [step.numbers for step in answer.guide.steps if "crossover_bytes_per_second" in step.numbers]
    assert len(numbers) == 1


@case(
    "acc455",
    leaves_out="a profile of consumer boards: the second card's slot is stated, PCIe 3 with 4 lanes (3.94 GB/s)",
)
def two_consumer_cards() -> None:
    """2.82 steps a second on one RTX 3060, 1 on two: DDP with a small batch is slower than one card, with accumulation not."""
    model = gpt("bert-base", layers=12, hidden=768, heads=12, vocab=30522, positions=512)
    two = cluster_of("2xRTX-3060", node_link={"nominal_bytes_per_second": "3.94 GB/s"})
    stated: dict[str, Any] = {"sequence": 128, "precision": "fp32", "attention": "unfused", "micro_batch_size": 8}

    def speed_up(count: int) -> float:
        one = predicted(model, "RTX-3060", batch=8 * count, **stated)
        return predicted(model, two, batch=16 * count, **stated).tokens_per_second / one.tokens_per_second

    assert speed_up(1) < 1
    assert 1 < speed_up(8) < 2

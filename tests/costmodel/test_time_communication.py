"""What is sent: published counts and volumes of tensor, pipeline, data parallelism and ZeRO."""

from math import prod

import pytest
from time_worlds import cluster, device, gpt, llama, setting, world

from costmodel.communication import communication, communication_of_ranks
from costmodel.models.parameters import model_tensors
from costmodel.sharding import sharding_times
from costmodel.specs import Communication, RecomputeSpec
from costmodel.step import stage_parameters, step_times

HIDDEN, LAYERS, LENGTH = 1024, 8, 1024
BLOCK = LENGTH * HIDDEN * 2  # bytes of the activations of one sequence in bf16
HALF = tuple(RecomputeSpec(kind=kind) for kind in ("none", "full", "none", "full"))
EDGES = 2  # one collective of the embedding's output forward, one of the head's input gradient backward


def traffic(plan, runtime, rank=0) -> dict[tuple[str, str], Communication]:
    return {(entry.axis, entry.op): entry for entry in communication(setting(plan, runtime), rank)}


def test_two_all_reduces_per_layer_and_direction():
    """Megatron (arXiv 1909.08053, figure 4): 2 all-reduces of b s h forward and 2 backward in every layer."""
    for layers in (1, 4):
        plan, runtime = world(model=gpt(layers=layers), tensor_parallel_size=4, loss_parallel=True, num_micro_batches=3)
        entry = traffic(plan, runtime)["tp", "all_reduce"]
        assert entry.count == 3 * (4 * layers + EDGES + 3)  # the loss: maximum, sum, target logit
        blocks, logits = 3 * (4 * layers + EDGES) * BLOCK, 3 * 3 * LENGTH * 4
        assert entry.bytes_per_rank == pytest.approx(2 * 3 / 4 * (blocks + logits))


def test_full_recomputation_repeats_the_forward_collectives():
    plain, runtime = world(tensor_parallel_size=2, loss_parallel=True, num_micro_batches=1)
    full, _ = world(tensor_parallel_size=2, loss_parallel=True, num_micro_batches=1, recompute="full")
    more = traffic(full, runtime)["tp", "all_reduce"].count - traffic(plain, runtime)["tp", "all_reduce"].count
    assert more == 2 * LAYERS


def test_sequence_parallelism_sends_what_the_all_reduces_sent():
    """Every all-reduce becomes an all-gather and a reduce-scatter of equal total volume (arXiv 2205.05198, 4.2.2).

    So do a layer's four and the head's input; its output is gathered for the loss, the embedding's along the hidden dim or,
    with a sequence dim to cut instead, exchanged in each direction.
    """
    sizes = {"runtime": "torch", "model": llama(), "tensor_parallel_size": 4, "num_micro_batches": 2}
    plain, runtime = world(**sizes)
    sharded, _ = world(**sizes, sequence_parallel=True)
    before, after = traffic(plain, runtime), traffic(sharded, runtime)
    blocks, embedding, both = 2 * (4 * LAYERS + 1), 3 / 4 * 2 * BLOCK, 2 * 3 / 4 * 16
    logits = before["tp", "all_gather"].bytes_per_rank - embedding
    assert before["tp", "all_reduce"].count == blocks + 1  # and the gradient norm with the loss, over all devices
    assert before["tp", "all_reduce"].bytes_per_rank == blocks * 2 * 3 / 4 * BLOCK + both
    assert after["tp", "reduce_scatter"].count == blocks
    halves = after["tp", "reduce_scatter"].bytes_per_rank + after["tp", "all_gather"].bytes_per_rank - logits
    assert halves == before["tp", "all_reduce"].bytes_per_rank - both
    assert after["tp", "all_to_all"].count == 4
    assert after["tp", "all_to_all"].bytes_per_rank == 4 * 3 / 4 * BLOCK / 4


def test_gradients_of_norms_are_summed_over_tensor_ranks_before_every_reduction():
    """Each norm sees the tokens of its rank alone; its addends are summed in the reduction's format, fp32."""
    sizes = {"runtime": "torch", "model": llama(), "tensor_parallel_size": 2, "sequence_parallel": True}
    norms, loss = 2 * LAYERS + 1, 3
    for zero, times in ((3, 4), (1, 1)):
        plan, runtime = world(
            **sizes, loss_parallel=True, zero_stage=zero, data_parallel_shard_size=2, num_micro_batches=4
        )
        entry = traffic(plan, runtime)["tp", "all_reduce"]
        assert entry.count == times * norms + 4 * loss
        assert entry.bytes_per_rank == times * norms * HIDDEN * 4 + 4 * loss * LENGTH * 4


def test_row_wise_biases_see_the_whole_gradient_and_are_not_summed():
    """Of a GPT layer's tensors that tensor parallelism leaves whole, 4 are norms' and 2 row-wise biases."""
    plan, runtime = world(
        runtime="torch",
        model=gpt(layers=LAYERS),
        tensor_parallel_size=2,
        sequence_parallel=True,
        loss_parallel=True,
        zero_stage=1,
        data_parallel_shard_size=2,
        num_micro_batches=1,
    )
    position_embedding, final_norm, loss = 1, 2, 3
    assert traffic(plan, runtime)["tp", "all_reduce"].count == 4 * LAYERS + position_embedding + final_norm + loss


def test_gathers_and_reductions_count_the_rows_that_pad_a_tensor():
    """FSDP2 cuts every tensor along its rows: 32000 of them over 3 devices are gathered as 3 x 10667."""
    plan, runtime = world(runtime="torch", model=llama(), zero_stage=1, data_parallel_shard_size=3, num_micro_batches=1)
    shapes = [tensor.shape for tensor in model_tensors(plan.model)]
    padded = sum(3 * -(-shape[0] // 3) * prod(shape[1:]) for shape in shapes)
    assert padded > sum(prod(shape) for shape in shapes)
    assert traffic(plan, runtime)["dp_shard", "all_gather"].bytes_per_rank == 2 / 3 * 2 * padded


def test_no_tensor_traffic_without_tensor_parallelism():
    for runtime in ("torch", "megatron"):
        plan, profile = world(runtime=runtime, num_micro_batches=2, data_parallel_replicate_size=4)
        assert not [entry for entry in communication(setting(plan, profile), 0) if entry.axis == "tp"]


def test_pipeline_sends_one_message_per_micro_batch_boundary_and_direction():
    sizes = {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "num_micro_batches": 8, "runtime": "torch"}
    plan, runtime = world(model=llama(), **sizes)
    for rank, boundaries in enumerate((1, 2, 2, 1)):
        entry = traffic(plan, runtime, rank)["pp", "send"]
        assert (entry.count, entry.bytes_per_rank, entry.algorithm) == (
            8 * boundaries,
            8 * boundaries * BLOCK,
            "direct",
        )
    looped = {**sizes, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2}
    plan, runtime = world(model=llama(), **looped)
    assert [traffic(plan, runtime, rank)["pp", "send"].count for rank in range(4)] == [8 * 3, 8 * 4, 8 * 4, 8 * 3]


def test_megatron_scatters_messages_over_the_tensor_group():
    plan, runtime = world(
        pipeline_parallel_size=2,
        pipeline_schedule="1f1b",
        tensor_parallel_size=4,
        loss_parallel=True,
        num_micro_batches=4,
    )
    entries = traffic(plan, runtime)
    assert entries["pp", "send"].bytes_per_rank == 4 * BLOCK / 4
    assert entries["tp", "all_gather"].bytes_per_rank == pytest.approx(3 / 4 * 4 * BLOCK)


def test_a_tied_table_on_two_ranks_is_reduced_between_them():
    sizes = {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "num_micro_batches": 4}
    plan, runtime = world(**sizes)
    for rank in (0, 3):
        entry = traffic(plan, runtime, rank)["pp", "all_reduce"]
        assert (entry.count, entry.bytes_per_rank) == (1, 51200 * HIDDEN * 4)
    assert ("pp", "all_reduce") not in traffic(plan, runtime, 1)
    untied, _ = world(model=gpt(tied=False), **sizes)
    assert ("pp", "all_reduce") not in traffic(untied, runtime, 0)


def data_bytes(zero: int, *, micro_batches: int = 1, precision: str = "fp32", **more) -> tuple[float, float]:
    """Bytes per rank on the data-parallel axes over 8 devices, and the parameters per rank."""
    axis = {"data_parallel_shard_size": 8} if zero else {"data_parallel_replicate_size": 8}
    plan, runtime = world(
        runtime="torch",
        precision=precision,
        model=llama(),
        zero_stage=zero,
        num_micro_batches=micro_batches,
        **{**axis, **more},
    )
    prepared = setting(plan, runtime)
    entries = communication(prepared, 0)
    sent = sum(entry.bytes_per_rank for entry in entries if entry.axis.startswith("dp"))
    return sent, float(stage_parameters(prepared).sum())


@pytest.mark.parametrize(("zero", "ratio"), [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.5)])
def test_zero_volume_without_accumulation(zero, ratio):
    """Plain data parallelism sends 2 N; ZeRO-1 and 2 the same; ZeRO-3 half as much again (arXiv 1910.02054, section 7)."""
    sent, parameters = data_bytes(zero)
    assert sent == pytest.approx(ratio * 2 * 7 / 8 * parameters * 4)


@pytest.mark.parametrize(("zero", "gathers", "reductions"), [(1, 1, 1), (2, 1, 4), (3, 8, 4)])
def test_gathers_and_reductions_of_4_micro_batches(zero, gathers, reductions):
    sent, parameters = data_bytes(zero, micro_batches=4)
    assert sent == pytest.approx((gathers + reductions) * 7 / 8 * parameters * 4)


@pytest.mark.parametrize(("zero", "gathers"), [(1, 1), (2, 1), (3, 5)])
def test_under_a_pipeline_gradients_are_reduced_once_and_zero_3_gathers_m_plus_1_times(zero, gathers):
    plan, runtime = world(
        runtime="torch",
        precision="fp32",
        model=llama(),
        zero_stage=zero,
        data_parallel_shard_size=4,
        pipeline_parallel_size=2,
        pipeline_schedule="1f1b",
        num_micro_batches=4,
    )
    entries = traffic(plan, runtime)
    parameters = float(stage_parameters(setting(plan, runtime))[0, 0])
    assert entries["dp_shard", "all_gather"].bytes_per_rank == pytest.approx(gathers * 3 / 4 * parameters * 4)
    assert entries["dp_shard", "reduce_scatter"].bytes_per_rank == pytest.approx(3 / 4 * parameters * 4)
    # One group per layer, and one for the embedding that rank 0 holds.
    assert entries["dp_shard", "reduce_scatter"].count == LAYERS // 2 + 1


def test_bf16_gathers_two_bytes_and_reduces_four():
    plan, runtime = world(runtime="torch", model=llama(), zero_stage=1, data_parallel_shard_size=8, num_micro_batches=1)
    entries = traffic(plan, runtime)
    gathered, reduced = entries["dp_shard", "all_gather"], entries["dp_shard", "reduce_scatter"]
    assert reduced.bytes_per_rank == 2 * gathered.bytes_per_rank


def test_hybrid_shard_reduces_the_shards_over_the_replicas():
    plan, runtime = world(
        runtime="torch",
        precision="fp32",
        model=llama(),
        zero_stage=3,
        data_parallel_shard_size=8,
        data_parallel_replicate_size=4,
        num_micro_batches=1,
    )
    entries, parameters = traffic(plan, runtime), float(stage_parameters(setting(plan, runtime)).sum())
    assert entries["dp_shard", "reduce_scatter"].bytes_per_rank == pytest.approx(7 / 8 * parameters * 4)
    assert entries["dp_replicate", "all_reduce"].bytes_per_rank == pytest.approx(2 * 3 / 4 * parameters * 4 / 8)
    assert entries["dp_shard", "all_gather"].link != entries["dp_replicate", "all_reduce"].link
    accumulating = plan.model_copy(update={"parallel": plan.parallel.model_copy(update={"num_micro_batches": 4})})
    more = traffic(accumulating, runtime)
    assert more["dp_shard", "reduce_scatter"].bytes_per_rank == 4 * entries["dp_shard", "reduce_scatter"].bytes_per_rank
    assert more["dp_replicate", "all_reduce"] == entries["dp_replicate", "all_reduce"]


def test_a_hierarchical_partition_gathers_inside_the_node_before_backward():
    """hpZ (ZeRO++, arXiv 2306.10209): the forward gathers over all shards, the backward inside the small group."""
    sizes = {"runtime": "torch", "model": llama(), "zero_stage": 3, "data_parallel_shard_size": 32}
    plain, runtime = world(**sizes, num_micro_batches=1)
    partitioned, _ = world(**sizes, num_micro_batches=1, hierarchical_partition_size=8)
    entries = [e for e in communication(setting(partitioned, runtime), 0) if e.op == "all_gather"]
    parameters = float(stage_parameters(setting(plain, runtime)).sum())
    by_link = {entry.link: entry.bytes_per_rank for entry in entries}
    assert sorted(by_link.values()) == pytest.approx([7 / 8 * parameters * 2, 31 / 32 * parameters * 2])
    slow = step_times(setting(plain, runtime)).backward.sum()
    assert step_times(setting(partitioned, runtime)).backward.sum() <= slow


def test_overlap_hides_communication_behind_computation_only():
    """Nothing hides on a cpu; on a gpu at most the computation beside it, and never the first gather."""
    sizes = {"runtime": "torch", "precision": "fp32", "model": llama(), "zero_stage": 3, "data_parallel_shard_size": 8}
    for kind in ("cuda", "cpu"):
        machine = cluster(nodes=1, of=device(kind=kind))
        plan, runtime = world(**sizes, num_micro_batches=2, machine=machine)
        prepared = setting(plan, runtime)
        times = step_times(prepared)
        hidden = times.gather_hidden[0, 0] + times.reduction_hidden[0, 0]
        assert (hidden > 0) == (kind == "cuda")
        zeros = 0.0 * times.forward.sum(axis=2)
        nothing_beside = sharding_times(prepared, parameters=stage_parameters(prepared), forward=zeros, backward=zeros)
        assert nothing_beside.gather_hidden.sum() == 0
        assert (nothing_beside.forward_gather >= times.forward[:, :, 6] - 1e-15).all()


def test_gloo_names_the_all_reduce_that_stands_for_a_reduce_scatter():
    machine = cluster(nodes=1, of=device(kind="cpu"))
    plan, runtime = world(
        runtime="torch",
        precision="fp32",
        model=llama(),
        machine=machine,
        zero_stage=1,
        data_parallel_shard_size=8,
        num_micro_batches=1,
    )
    entries = traffic(plan, runtime)
    assert entries["dp_shard", "reduce_scatter"].algorithm == "all_reduce"
    assert entries["dp_shard", "reduce_scatter"].bytes_per_rank == 2 * entries["dp_shard", "all_gather"].bytes_per_rank


@pytest.mark.parametrize("runtime", ["torch", "megatron"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "layers_per_stage": (1, 3, 2, 2)},
        {"pipeline_parallel_size": 4, "pipeline_schedule": "1f1b", "recompute": HALF},
        {"pipeline_parallel_size": 4, "pipeline_schedule": "interleaved_1f1b", "num_model_chunks": 2},
        {"pipeline_parallel_size": 4, "pipeline_schedule": "zbv_zero_bubble", "num_model_chunks": 2},
        {},
    ],
)
def test_every_rank_is_told_its_own_traffic(runtime, sizes):
    for tied in (True, False):
        model = gpt(tied=tied)
        plan, profile = world(runtime=runtime, model=model, tensor_parallel_size=2, num_micro_batches=8, **sizes)
        prepared = setting(plan, profile)
        alone = tuple(communication(prepared, rank) for rank in range(prepared.num_ranks))
        assert communication_of_ranks(prepared) == alone
        assert len(set(alone)) >= min(2, prepared.num_ranks)

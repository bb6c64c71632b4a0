"""Context parallelism: what a rank computes, sends and hides, by closed form."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from time_worlds import cluster, device, gpt, llama, setting, world

from costmodel.bounds import step_time_lower_bound
from costmodel.collectives import all_to_all_seconds, group, network
from costmodel.context_parallel import RING_OVERLAP
from costmodel.estimate import estimate
from costmodel.flops import hardware_flops
from costmodel.runtimes.grid import Grid
from costmodel.specs import Communication, ParallelConfig
from costmodel.step import step_times
from costmodel.tables import ATTENTION, CONTEXT, GEMM, MEMORY, TENSOR

METHODS = ("ring", "all_gather", "all_to_all")
LENGTH, LAYERS, HIDDEN, HEADS, KV = 4096, 4, 1024, 16, 8
MODEL = llama(layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv=KV)
HEAD_DIM = HIDDEN // HEADS


def cut(size: int, method: str | None, **more: Any) -> Any:
    sizes = {"context_parallel_size": size, "context_parallel_method": method}
    return world(**{"model": MODEL, "length": LENGTH, **sizes, **more})


def layer(plan_and_runtime: Any) -> Any:
    """Forward and backward of one layer by part."""
    table = setting(*plan_and_runtime).table
    return table.layer_forward[0, 0], table.layer_backward[0, 0, 0]


def sent(plan_and_runtime: Any) -> dict[str, Communication]:
    result = estimate(*plan_and_runtime, ignore_memory=True)
    return {entry.op: entry for entry in result.communication if entry.axis == "cp"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_rank_computes_its_share_of_tokens_and_scores(size: int, method: str) -> None:
    """Without half_flops and with plenty of bandwidth, products and attention are proportional to their FLOP."""
    machine = cluster(of=device(bandwidth=1e15))
    for whole, part in zip(
        layer(cut(1, None, machine=machine)), layer(cut(size, method, machine=machine)), strict=True
    ):
        assert part[ATTENTION] == pytest.approx(whole[ATTENTION] / size)
        assert part[GEMM] == pytest.approx(whole[GEMM] / size)
        assert part[MEMORY] == pytest.approx(whole[MEMORY] / size)


@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_together_compute_what_one_did(method: str) -> None:
    whole = estimate(*cut(1, None), ignore_memory=True)
    parts = estimate(*cut(4, method), ignore_memory=True)
    assert parts.flops.hardware == pytest.approx(whole.flops.hardware, rel=1e-12)
    assert parts.flops.model == whole.flops.model
    full = hardware_flops(setting(*cut(4, method, recompute="full")))
    assert full == pytest.approx(hardware_flops(setting(*cut(1, None, recompute="full"))), rel=1e-12)


def test_a_ring_sends_keys_and_values_on_and_comes_back_with_their_gradients() -> None:
    """c - 1 messages of 2 s/c k d elements forward, twice that backward; k d / t with tensor parallelism."""
    size, tensor, micro_batches = 4, 2, 3
    keys = 2 * (LENGTH // size) * KV // tensor * HEAD_DIM * 2
    plan = cut(size, "ring", tensor_parallel_size=tensor, num_micro_batches=micro_batches)
    entry = sent(plan)["send"]
    assert entry.bytes_per_rank == micro_batches * LAYERS * (size - 1) * 3 * keys
    assert entry.count == micro_batches * LAYERS * (size - 1) * 2
    assert entry.link == "link-100000000000"


def test_recomputed_attention_sends_the_forward_again() -> None:
    size, keys = 4, 2 * (LENGTH // 4) * KV * HEAD_DIM * 2
    for kind in ("core_attention", "full"):
        entry = sent(cut(size, "ring", recompute=kind))["send"]
        assert entry.bytes_per_rank == LAYERS * (size - 1) * 4 * keys


def test_gathering_keys_and_values_in_both_directions() -> None:
    """An all-gather of c parts sends (c - 1)/c of them; backward scatters as much again."""
    size, keys = 4, 2 * (LENGTH // 4) * KV * HEAD_DIM * 2
    entries = sent(cut(size, "all_gather"))
    assert entries["all_gather"].bytes_per_rank == LAYERS * 2 * (size - 1) * keys
    assert entries["reduce_scatter"].bytes_per_rank == LAYERS * (size - 1) * keys


def test_exchanging_the_sequence_for_heads() -> None:
    """4 all-to-alls of T h / c in each direction, arXiv 2309.14509 section 3; the keys' are smaller here (k = a / 2)."""
    size = 4
    tensors = (LENGTH // size) * HEAD_DIM * (2 * HEADS + 2 * KV) * 2
    entry = sent(cut(size, "all_to_all"))["all_to_all"]
    assert entry.count == LAYERS * 8
    assert entry.bytes_per_rank == LAYERS * 2 * tensors * (size - 1) // size


def test_key_value_heads_fewer_than_ranks_are_copied_for_the_exchange() -> None:
    model = llama(layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv=2)
    tensors = (LENGTH // 8) * HEAD_DIM * (2 * HEADS + 2 * 8) * 2
    entry = sent(cut(8, "all_to_all", model=model))["all_to_all"]
    assert entry.bytes_per_rank == LAYERS * 2 * tensors * 7 // 8


def test_a_ring_hides_behind_the_attention_beside_it() -> None:
    """exposed = (c - 1) max(0, message / rate - overlap A / c), here with attention 100 times too slow, then too fast."""
    size, keys = 4, 2 * (LENGTH // 4) * KV * HEAD_DIM * 2
    message = keys / 1e11
    slow = cut(size, "ring", machine=cluster(latency=0.0, of=device(peak=1e11)))
    forward, backward = layer(slow)
    assert forward[CONTEXT] == backward[CONTEXT] == 0
    times = step_times(setting(*slow))
    assert times.context_hidden[0, 0] == pytest.approx(LAYERS * (size - 1) * 3 * message)
    fast = cut(size, "ring", machine=cluster(latency=0.0, of=device(peak=1e17)))
    forward, backward = layer(fast)
    assert forward[CONTEXT] == pytest.approx((size - 1) * (message - RING_OVERLAP * forward[ATTENTION] / size))
    assert backward[CONTEXT] == pytest.approx((size - 1) * (2 * message - RING_OVERLAP * backward[ATTENTION] / size))


def test_a_gather_is_exposed_and_pays_its_hops() -> None:
    size, keys, latency = 4, 2 * (LENGTH // 4) * KV * HEAD_DIM * 2, 1e-5
    forward, backward = layer(cut(size, "all_gather"))
    once = (size - 1) * (keys / 1e11 + latency)
    assert forward[CONTEXT] == pytest.approx(once)
    assert backward[CONTEXT] == pytest.approx(2 * once)


def test_an_exchange_across_nodes_goes_through_every_device_s_own_port() -> None:
    """16 devices on 2 nodes of 8: half of what a device sends crosses, at its port's rate, whatever the ring reaches."""
    net = network(cluster(nodes=2, inside=1e11, across=1e10, latency=0.0))
    one = np.ones(1)
    members = group(net, size=16 * one, stride=one, devices=16 * one)
    assert all_to_all_seconds(members, 16e9 * one)[0] == pytest.approx(8e9 / 1e10)
    inside = group(net, size=8 * one, stride=one, devices=16 * one)
    assert all_to_all_seconds(inside, 16e9 * one)[0] == pytest.approx(14e9 / 1e11)
    alone = group(net, size=one, stride=one, devices=16 * one)
    assert all_to_all_seconds(alone, 16e9 * one)[0] == 0


def test_tensor_parallel_collectives_carry_fewer_tokens() -> None:
    quiet = cluster(latency=0.0)
    whole = layer(cut(1, None, tensor_parallel_size=2, machine=quiet))
    part = layer(cut(4, "ring", tensor_parallel_size=2, machine=quiet))
    assert part[0][TENSOR] == pytest.approx(whole[0][TENSOR] / 4)


@pytest.mark.parametrize("zero", [0, 1])
def test_context_ranks_reduce_gradients_as_data_ranks_do(zero: int) -> None:
    """Megatron-core reduces over dp x cp: 2 x 4 devices send what 8 data-parallel ones do."""

    def gradients(data: int, context: int) -> dict[tuple[str, str], int]:
        shard = {"data_parallel_shard_size": data, "zero_stage": 1} if zero else {"data_parallel_replicate_size": data}
        method = "ring" if context > 1 else None
        result = estimate(*cut(context, method, **shard), ignore_memory=True)
        return {(e.axis, e.op): e.bytes_per_rank for e in result.communication if e.axis.startswith("dp")}

    assert gradients(2, 4) == gradients(8, 1)
    assert gradients(2, 4)


def test_terms_sum_to_the_step_and_the_bound_holds() -> None:
    for method in METHODS:
        for pipeline in ({}, {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "num_micro_batches": 4}):
            plan, runtime = cut(4, method, **pipeline)
            result = estimate(plan, runtime, ignore_memory=True)
            seconds = result.step_time_seconds.value
            assert sum(term.exposed_seconds for term in result.terms) == pytest.approx(seconds)
            parts = (plan.model, plan.cluster, plan.training, runtime, Grid.from_plan(plan))
            assert step_time_lower_bound(*parts)[0] <= seconds


def test_cutting_a_long_sequence_pays_and_costs_messages() -> None:
    """The same 8 devices, one sequence of 4096: 8 parts of it are faster than one device, by less than 8."""
    alone = estimate(*cut(1, None, model=gpt()), ignore_memory=True)
    for method in METHODS:
        together = estimate(*cut(8, method, model=gpt()), ignore_memory=True)
        ratio = alone.step_time_seconds.value / together.step_time_seconds.value
        assert 1 < ratio < 8
        named = {term.name: term for term in together.terms}["context_parallel"]
        assert named.exposed_seconds + named.hidden_seconds > 0


def test_a_grid_row_is_its_spec() -> None:
    for size, method in ((1, None), (2, "ring"), (4, "all_to_all")):
        parallel = ParallelConfig(context_parallel_size=size, context_parallel_method=method)  # type: ignore[arg-type]
        grid = Grid.from_parallel(parallel, "none")
        assert grid.parallel(0) == parallel
        assert grid.num_devices[0] == parallel.num_devices == size
        assert all(len(getattr(grid, field.name)) == 1 for field in fields(Grid))

"""What context parallelism needs, and who refuses it."""

from __future__ import annotations

from typing import Any

import pytest
from time_worlds import cluster, llama, world

from costmodel.runtimes.rules import check
from costmodel.specs import InputError
from executor.checks import check_runnable
from meshwright.exporters import render

CUT = {"context_parallel_size": 2, "context_parallel_method": "ring"}


def broken(**sizes: Any) -> dict[str, str]:
    plan, runtime = world(**{"model": llama(), "length": 4096, "machine": cluster(), **sizes})
    return {found.rule: found.message for found in check(plan, runtime)}


@pytest.mark.parametrize("method", ["ring", "all_gather", "all_to_all"])
def test_megatron_takes_every_method(method: str) -> None:
    assert broken(context_parallel_size=4, context_parallel_method=method) == {}


def test_one_data_rank_may_shard_its_states_over_the_context_ranks() -> None:
    assert broken(context_parallel_size=4, context_parallel_method="ring", zero_stage=1) == {}
    assert "zero_needs_shards" in broken(zero_stage=1)


def test_replicas_of_sharded_context_groups_are_a_hybrid() -> None:
    """Without ZeRO the context ranks only reduce with the replicas; with it they shard, which is hybrid sharding."""
    sizes = {"context_parallel_size": 2, "context_parallel_method": "ring", "data_parallel_replicate_size": 2}
    assert broken(**sizes) == {}
    assert "runtime_hybrid_shard" in broken(**sizes, zero_stage=1)


@pytest.mark.parametrize(("size", "method"), [(2, None), (1, "ring")])
def test_the_method_is_null_exactly_when_the_size_is_1(size: int, method: str | None) -> None:
    found = broken(context_parallel_size=size, context_parallel_method=method)
    assert set(found) == {"context_parallel_method_matches"}
    assert f"context_parallel_size {size}" in found["context_parallel_method_matches"]


def test_sequences_are_cut_into_two_pieces_a_rank() -> None:
    sizes = {"context_parallel_size": 4, "context_parallel_method": "ring"}
    assert broken(length=4096 + 8, **sizes) == {}
    assert set(broken(length=4096 + 4, **sizes)) == {"context_parallel_divides_sequence"}
    tensor = {"tensor_parallel_size": 2, "sequence_parallel": True, "loss_parallel": True}
    found = broken(length=4096 + 8, **sizes, **tensor)
    assert "into 16 equal pieces" in found["context_parallel_divides_sequence"]
    assert "valid context_parallel_size: 1, 2, 3" in found["context_parallel_divides_sequence"]


def test_an_exchange_gives_every_rank_whole_heads() -> None:
    """16 heads over 4 tensor ranks leave 4 for the context ranks."""
    sizes = {"tensor_parallel_size": 4, "loss_parallel": True, "context_parallel_size": 8}
    assert broken(**sizes, context_parallel_method="ring") == {}
    found = broken(**sizes, context_parallel_method="all_to_all")
    assert "valid context_parallel_size: 1, 2, 4" in found["context_parallel_divides_heads"]


def test_unfused_attention_is_not_cut() -> None:
    found = broken(context_parallel_size=2, context_parallel_method="ring", attention="unfused")
    assert set(found) == {"context_parallel_needs_fused_attention"}


def test_more_devices_than_there_are() -> None:
    found = broken(context_parallel_size=64, context_parallel_method="ring")
    assert "context_parallel_size 64" in found["device_count"]


def test_the_executor_refuses_it_and_says_why() -> None:
    plan, _ = world(runtime="torch", model=llama(), **CUT)
    with pytest.raises(InputError, match="cannot be run yet: set context_parallel_size to 1"):
        check_runnable(plan)
    assert (
        "torch has no context parallelism, found context_parallel_size 2"
        in broken(runtime="torch", **CUT)["runtime_context_parallel_method"]
    )


def test_a_script_for_the_executor_is_refused() -> None:
    plan, _ = world(runtime="torch", model=llama(), **CUT)
    refused = render(plan, "torchrun")
    assert not isinstance(refused, dict)
    assert refused.rule == "executor_context_parallel"

"""A loss over chunks of the sequence: one chunk's logits at a time, made again in backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_worlds import llama, make_plan
from time_worlds import setting

from costmodel.activation_memory import torch_end_bytes
from costmodel.estimate import estimate
from costmodel.flops import hardware_flops, model_flops
from costmodel.megatron_activation_memory import megatron_end_bytes
from costmodel.memory import plan_memory
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import list_runtimes, load_runtime
from costmodel.runtimes.rules import check
from costmodel.specs import InputError, MemoryAccounting, Plan, Recommendation
from costmodel.tables import GEMM, MEMORY
from executor.checks import check_runnable
from meshwright import plan as find_plan
from meshwright.measuring import estimate_command

LARGE = llama(hidden=64, layers=2, vocab=100_000)


def chunked(chunks: int, **stated: Any) -> Plan:
    return make_plan(LARGE, training={"loss_chunks": chunks}, **{"runtime": "unknown", "sequence": 1000, **stated})


def peak_terms(plan: Plan, *, rank: int) -> dict[str, int]:
    terms = plan_memory(plan, load_runtime(plan.runtime.name))[rank].terms
    return {term.name: term.bytes for term in terms if term.phase == "forward_backward"}


def rules(plan: Plan) -> dict[str, str]:
    return {each.rule: each.message for each in check(plan)}


@pytest.mark.parametrize(("chunks", "tokens"), [(2, 500), (3, 334), (8, 125), (1000, 1)])
def test_logits_are_those_of_one_chunk(chunks: int, tokens: int) -> None:
    """b ceil(s / n) tokens of 12 bytes a word: log-probabilities, their gradient and the logits'; nothing kept."""
    plan = chunked(chunks, micro_batch_size=3)
    grid = Grid.from_plan(plan)
    end = torch_end_bytes(LARGE, plan.training, grid)
    assert (int(end.probabilities[0]), int(end.logits[0])) == (0, 12 * 3 * tokens * 100_000)
    whole = torch_end_bytes(LARGE, chunked(1, micro_batch_size=3).training, grid)
    assert (int(whole.probabilities[0]), int(whole.logits[0])) == (4 * 3 * 1000 * 100_000, 8 * 3 * 1000 * 100_000)
    assert end.kept == whole.kept
    megatron = megatron_end_bytes(LARGE, plan.training, grid)
    assert (int(megatron.probabilities[0]), int(megatron.logits[0])) == (0, 6 * 3 * tokens * 100_000)


def test_chunks_of_a_parallel_and_of_a_compiled_loss() -> None:
    plan = chunked(4)
    grid = Grid.from_plan(plan)
    one = grid.tensor_parallel_size
    halves = replace(grid, tensor_parallel_size=2 * one, loss_parallel=one)
    assert int(torch_end_bytes(LARGE, plan.training, halves).logits[0]) == 16 * 250 * 50_000
    compiled = torch_end_bytes(LARGE, plan.training, grid, accounting=MemoryAccounting(loss_bytes=4), fusion="full")
    assert int(compiled.logits[0]) == 4 * 250 * 100_000


@pytest.mark.parametrize(("fused", "kept", "beside"), [(False, 4, 8), (True, 2, 2)])
def test_a_fused_loss_keeps_16_bit_logits_and_writes_their_gradient_where_nothing_is_compiled(
    fused: bool, kept: int, beside: int
) -> None:
    plan = chunked(1)
    accounting = MemoryAccounting(loss_bytes=4, fused_loss=fused)
    end = torch_end_bytes(LARGE, plan.training, Grid.from_plan(plan), accounting=accounting)
    assert (int(end.probabilities[0]), int(end.logits[0])) == (kept * 1000 * 100_000, beside * 1000 * 100_000)


def test_context_parallel_ranks_cut_their_own_share() -> None:
    sizes: dict[str, Any] = {"context_parallel_size": 4, "context_parallel_method": "all_gather", "sequence": 1024}
    plan = chunked(5, **sizes)
    assert int(torch_end_bytes(LARGE, plan.training, Grid.from_plan(plan)).logits[0]) == 12 * 52 * 100_000
    assert "loss_chunks_have_tokens" not in rules(chunked(256, **sizes))
    assert "valid: 1 to 256" in rules(chunked(257, **sizes))["loss_chunks_have_tokens"]


@pytest.mark.parametrize(
    ("runtime", "kept", "beside"), [("unknown", 4, 8), ("composer-fsdp", 2, 2), ("deepspeed", 4, 8)]
)
def test_a_chunks_logits_lie_beside_the_heads_gradient(runtime: str, kept: int, beside: int) -> None:
    """So the peak falls by what the chunks save, less that gradient (head of V h, norm of h), and stays the loss's."""
    whole, cut = (peak_terms(chunked(n, runtime=runtime), rank=0) for n in (1, 2))
    assert whole["logits"] == beside * 1000 * 100_000
    assert cut["logits"] == (kept + beside) * 500 * 100_000
    assert whole["activations"] - cut["activations"] == kept * 1000 * 100_000
    assert cut["gradients"] - whole.get("gradients", 0) == 2 * 64 * (100_000 + 1)


def test_micro_batches_of_gpipe_keep_no_log_probabilities() -> None:
    """The last rank is fullest at the loss of the first micro-batch, or in chunks beside the first's gradients: one less."""
    pipeline: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_schedule": "gpipe"}
    whole, cut, more = (
        peak_terms(chunked(n, num_micro_batches=m, **pipeline), rank=1) for n, m in ((1, 4), (2, 4), (2, 5))
    )
    one = more["activations"] - cut["activations"]
    assert cut["activations"] == 3 * one
    assert whole["activations"] - 4 * one == 4 * 4 * 1000 * 100_000


def test_backward_repeats_the_heads_product_and_loss() -> None:
    """One more product of 2 T h V in the hardware's FLOP, none in the model's, and its time in the head's backward."""
    whole, cut = (setting(chunked(n, num_micro_batches=3), load_runtime("unknown")) for n in (1, 4))
    training = cut.problem.training
    assert model_flops(LARGE, training) == model_flops(LARGE, whole.problem.training)
    assert hardware_flops(cut) - hardware_flops(whole) == pytest.approx(3 * 2 * 1000 * 64 * 100_000, rel=1e-9)
    forward, backward = cut.table.head[0]
    assert whole.table.head[0, 1, GEMM] == pytest.approx(2 * whole.table.head[0, 0, GEMM])
    assert backward[GEMM] == pytest.approx(3 * forward[GEMM])
    # The forward's loss again, and the head's gradient added up chunk by chunk: 2 x 4 bytes of every weight, 3 times more.
    stack, rate = cut.stack, cut.ceiling
    logits = 1000 * 100_000 * stack.logits_forward_bytes
    adding = 3 * 2 * 4 * (100_000 + 1) * 64
    slower = backward[MEMORY] - whole.table.head[0, 1, MEMORY]
    assert slower == pytest.approx((logits + adding) / rate.bytes_per_second, rel=1e-6)


def test_collectives_of_the_loss_come_twice_and_once_per_chunk() -> None:
    sizes: dict[str, Any] = {"tensor_parallel_size": 2, "loss_parallel": True, "num_micro_batches": 3}

    def reduced(chunks: int) -> tuple[int, int]:
        plan = chunked(chunks, **sizes)
        made = estimate(plan, load_runtime("unknown"), ignore_memory=True)
        (found,) = [each for each in made.communication if (each.axis, each.op) == ("tp", "all_reduce")]
        return found.count, found.bytes_per_rank

    (count, sent), (more, sent_more) = reduced(1), reduced(5)
    assert more - count == 3 * (2 * 5 - 1) * 3
    assert sent_more - sent == 3 * 12 * 1000


def test_only_runtimes_whose_loss_is_the_users_have_it() -> None:
    assert {name for name in list_runtimes() if load_runtime(name).chunked_loss} == {
        "composer-fsdp",
        "deepspeed",
        "unknown",
    }
    assert rules(chunked(8)) == {}
    for name in ("torch", "torchtitan", "megatron", "nanotron"):
        assert "loss_chunks 8" in rules(chunked(8, runtime=name))["runtime_chunked_loss"]
        assert rules(chunked(1, runtime=name)) == {}


def test_the_executor_says_that_it_lacks_it() -> None:
    plan = chunked(8, runtime="torch")
    with pytest.raises(InputError, match=r"loss over chunks .* cannot be run yet: set loss_chunks to 1"):
        check_runnable(plan)


def test_plans_without_chunks_keep_their_hash_and_chunks_change_it() -> None:
    assert chunked(1).plan_hash == make_plan(LARGE, runtime="unknown", sequence=1000).plan_hash != chunked(2).plan_hash


def test_a_search_takes_the_chunks_and_refuses_them_early() -> None:
    stated: dict[str, Any] = {"global_batch_size": 8, "sequence_length": 128, "fix": {"data_parallel_size": 8}}
    answer = find_plan("llama-tiny-demo", "8xA100-SXM-80GB", runtime="deepspeed", loss_chunks=4, **stated)
    assert isinstance(answer, Recommendation)
    assert answer.best.training.loss_chunks == 4
    with pytest.raises(InputError, match="runtime torch does not compute the loss in chunks"):
        find_plan("llama-tiny-demo", "8xA100-SXM-80GB", loss_chunks=4, **stated)
    with pytest.raises(InputError, match="set loss_chunks to at most 128"):
        find_plan("llama-tiny-demo", "8xA100-SXM-80GB", runtime="unknown", loss_chunks=129, **stated)


def test_the_command_that_makes_a_plan_again_states_its_chunks() -> None:
    stated = {"model": "m", "cluster": "c", "global_batch_size": 1, "sequence_length": 1000, "runtime": "unknown"}
    assert "--runtime unknown --loss-chunks 4" in estimate_command(chunked(4), {**stated, "loss_chunks": 4})
    assert "--loss-chunks" not in estimate_command(chunked(1), {**stated, "loss_chunks": 1})

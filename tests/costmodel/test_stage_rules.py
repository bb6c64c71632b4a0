"""Rules on the layers of pipeline stages, and on what the stages recompute."""

from __future__ import annotations

from typing import Any

import pytest
from memory_worlds import llama, make_plan
from rule_worlds import GOOD, broken, make_context

from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import check
from costmodel.specs import RecomputeSpec, Rejection

RULE = "runtime_recompute_layers"
NONE, ATTENTION, FULL = RecomputeSpec(), RecomputeSpec(kind="core_attention"), RecomputeSpec(kind="full")
PIPELINE: dict[str, Any] = {
    "pipeline_parallel_size": 2,
    "pipeline_schedule": "1f1b",
    "data_parallel_shard_size": 16,
    "zero_stage": 1,
    "num_micro_batches": 4,
}


def test_stated_stages_must_match() -> None:
    assert broken(make_context(layers_per_stage=(17, 15)), **GOOD) == {}
    assert set(broken(make_context(layers_per_stage=(17, 16)), **GOOD)) == {"layers_per_stage_sum"}
    assert set(broken(make_context(layers_per_stage=(32, 0)), **GOOD)) == {"layers_per_stage_sum"}
    assert set(broken(make_context(layers_per_stage=(10, 10, 12)), **GOOD)) == {"layers_per_stage_count"}


@pytest.mark.parametrize("runtime", ["torch", "torchtitan", "megatron", "nemo", "aleph", "oneflow"])
def test_stacks_that_take_a_list_of_layers_take_any(runtime: str) -> None:
    context = make_context(runtime=runtime, model="llama-2-13b", layers_per_stage=(23, 17))
    stage = 2 if runtime == "torchtitan" else 1
    assert broken(context, **PIPELINE | {"zero_stage": stage}) == {}


@pytest.mark.parametrize(
    ("runtime", "dealt"),
    # llama-2-13b, 40 layers in two stages: nanotron counts a head of 163.8 M multiplications as half a layer of 317 M.
    [("megatron-deepspeed", "20,20"), ("internevo", "20,20"), ("nanotron", "20,20 or 21,19")],
)
def test_stacks_that_deal_layers_themselves_take_no_other_list(runtime: str, dealt: str) -> None:
    def found(*counts: int) -> dict[str, Rejection]:
        return broken(make_context(runtime=runtime, model="llama-2-13b", layers_per_stage=counts), **PIPELINE)

    refused = found(23, 17)
    assert set(refused) == {"runtime_layers_per_stage"}
    assert f"found layers_per_stage 23, 17; valid: {dealt}" in refused["runtime_layers_per_stage"].message
    for counts in dealt.split(" or "):
        assert found(*map(int, counts.split(","))) == {}
    # Lists of another length or sum break the rule on that alone.
    assert set(found(10, 10, 20)) == {"layers_per_stage_count"}
    assert set(found(23, 18)) == {"layers_per_stage_sum"}
    assert broken(make_context(runtime=runtime, model="llama-2-13b"), **PIPELINE) == {}


def recomputing(runtime: str, *modes: RecomputeSpec) -> list[Rejection]:
    """Stages of 3, 3, 2 and 2 layers, so that one number may exceed a stage."""
    plan = make_plan(
        llama(layers=10),
        runtime=runtime,
        layers_per_stage=(3, 3, 2, 2),
        recompute=modes,
        pipeline_parallel_size=4,
        pipeline_schedule="1f1b",
        num_micro_batches=4,
    )
    return [found for found in check(plan) if found.rule in (RULE, "plan_recomputed_layers")]


def full(*counts: int) -> tuple[RecomputeSpec, ...]:
    return tuple(RecomputeSpec(kind="full", num_layers=count) if count else NONE for count in counts)


@pytest.mark.parametrize("runtime", ["torch", "megatron", "nemo", "oneflow"])
@pytest.mark.parametrize("modes", [(NONE,) * 4, (FULL,) * 4, full(3, 3, 2, 2)])
def test_every_runtime_recomputes_all_layers_or_none(runtime: str, modes: tuple[RecomputeSpec, ...]) -> None:
    assert recomputing(runtime, *modes) == []


@pytest.mark.parametrize("modes", [full(2, 2, 2, 2), full(1, 1, 1, 1)])
def test_one_number_for_all_stages_is_method_block(modes: tuple[RecomputeSpec, ...]) -> None:
    """megatron-core: every chunk recomputes its first --recompute-num-layers layers, all of them where it has fewer."""
    assert recomputing("torch", *modes) == recomputing("megatron", *modes) == []
    (refused,) = recomputing("aleph", *modes)
    assert refused.rule == RULE
    assert "valid: one of none, full for all layers of all stages" in refused.message
    assert "full:N" not in refused.message


@pytest.mark.parametrize(
    "modes",
    [
        full(3, 3, 1, 2),
        full(2, 1, 1, 1),
        full(1, 0, 0, 0),
        (FULL, FULL, ATTENTION, ATTENTION),
        (RecomputeSpec(kind="core_attention", num_layers=1),) * 4,
    ],
)
def test_stages_that_recompute_differently_need_a_runtime_that_takes_a_list(modes: tuple[RecomputeSpec, ...]) -> None:
    assert recomputing("torch", *modes) == []
    (refused,) = recomputing("megatron", *modes)
    assert refused.rule == RULE
    assert ", ".join(mode.word for mode in modes) in refused.message
    assert "or the same full:N for all stages" in refused.message
    assert refused.fix.endswith("or choose another runtime")


def test_what_each_runtime_takes_for_single_stages() -> None:
    facts = {name: (load_runtime(name).recompute_layers, load_runtime(name).uneven_stages) for name in (
        "torch", "torchtitan", "megatron", "nemo", "deepspeed", "megatron-deepspeed", "composer-fsdp"
    )}  # fmt: skip
    assert facts == {
        "torch": ("per_stage", True),
        "torchtitan": ("all", True),
        "megatron": ("uniform", True),
        "nemo": ("uniform", True),
        "deepspeed": ("all", False),
        "megatron-deepspeed": ("all", False),
        "composer-fsdp": ("per_stage", False),
    }

"""Every validity rule that a plan of the runtime torch can break makes the executor refuse the plan."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import pytest
from executor_plans import make_cluster, make_plan

from costmodel.runtimes import rules_plan
from costmodel.runtimes.grid import SCHEDULES
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import RULES, check
from costmodel.specs import InputError, ModelSpec, OptimizerSpec, Plan, PrecisionSpec, RecomputeSpec, RuntimeProfile
from costmodel.specs.parallel import ZeroStage
from costmodel.specs.plan import AXIS_ORDERS
from executor.checks import check_runnable, find_lack
from hardware_profiles.types import DeviceKind

TP: dict[str, Any] = {"tensor_parallel_size": 2, "micro_batch_size": 2}
CONTEXT: dict[str, Any] = {"context_parallel_size": 2, "context_parallel_method": "ring", "micro_batch_size": 2}
PIPELINE: dict[str, Any] = {"pipeline_parallel_size": 2, "pipeline_schedule": "1f1b", "micro_batch_size": 2}
ZERO: dict[str, Any] = {"zero_stage": 3, "data_parallel_shard_size": 4, "micro_batch_size": 1}
BF16_ONLY = PrecisionSpec(compute="bf16", parameter="bf16", gradient="bf16", reduce="bf16", state="bf16")


def changed(part: str, plan: Plan, **fields: Any) -> Plan:
    """The plan with fields of one of its parts replaced."""
    return plan.model_copy(update={part: getattr(plan, part).model_copy(update=fields)})


def on_device(**fields: Any) -> Plan:
    plan = make_plan(micro_batch_size=2)
    return changed("cluster", plan, device=plan.cluster.device.model_copy(update=fields))


def with_stage(number: int, **fields: Any) -> Plan:
    plan = make_plan(**PIPELINE)
    stages = list(plan.stages)
    stages[number] = stages[number].model_copy(update=fields)
    return plan.model_copy(update={"stages": tuple(stages)})


BREACHES: Mapping[str, Callable[[], Plan]] = {
    "device_precision": lambda: on_device(peak_flops_per_second={"bf16": 1e10}),
    "fp64_on_cpu": lambda: on_device(kind="cuda"),
    "runtime_precision": lambda: changed("training", make_plan(micro_batch_size=2), precision=BF16_ONLY),
    "learned_positions": lambda: make_plan("gpt2", sequence=33, micro_batch_size=2),
    "runtime_chunked_loss": lambda: changed("training", make_plan(micro_batch_size=2), loss_chunks=2),
    "loss_chunks_have_tokens": lambda: changed("training", make_plan(micro_batch_size=2), loss_chunks=17),
    "runtime_recompute": lambda: make_plan(recompute="op_policy", micro_batch_size=2),
    "runtime_hierarchical_partition_tensor_parallel": lambda: make_plan(
        **ZERO, tensor_parallel_size=2, hierarchical_partition_size=2
    ),
    "tensor_parallel_divides_num_attention_heads": lambda: make_plan(**TP | {"tensor_parallel_size": 8}),
    "tensor_parallel_divides_num_key_value_heads": lambda: make_plan(**TP | {"tensor_parallel_size": 4}),
    "tensor_parallel_divides_intermediate_size": lambda: make_plan(changes={"intermediate_size": 49}, **TP),
    "tensor_parallel_divides_hidden_size": lambda: make_plan(**TP | {"tensor_parallel_size": 3}),
    "device_count": lambda: make_plan(**TP).model_copy(update={"cluster": make_cluster(1)}),
    "sequence_parallel_needs_tensor_parallel": lambda: make_plan(sequence_parallel=True, micro_batch_size=2),
    "sequence_parallel_divides_sequence": lambda: make_plan(sequence=15, sequence_parallel=True, **TP),
    "loss_parallel_needs_tensor_parallel": lambda: make_plan(loss_parallel=True, micro_batch_size=2),
    "context_parallel_method_matches": lambda: make_plan(context_parallel_method="ring", micro_batch_size=2),
    "runtime_context_parallel_method": lambda: make_plan(**CONTEXT),
    "context_parallel_needs_fused_attention": lambda: make_plan(**CONTEXT, attention="unfused"),
    "context_parallel_divides_sequence": lambda: make_plan(**CONTEXT, sequence=15),
    "context_parallel_divides_heads": lambda: make_plan(
        context_parallel_size=8, context_parallel_method="all_to_all", micro_batch_size=2
    ),
    "pipeline_layers": lambda: changed("parallel", make_plan(**PIPELINE), pipeline_parallel_size=8),
    "schedule_matches_pipeline": lambda: make_plan(**PIPELINE | {"pipeline_schedule": "none"}),
    "naive_one_micro_batch": lambda: make_plan(**PIPELINE | {"pipeline_schedule": "naive"}),
    "model_chunks_match_schedule": lambda: make_plan(**PIPELINE, num_model_chunks=2),
    "full_pipeline": lambda: make_plan(**PIPELINE | {"micro_batch_size": 8}),
    "interleaving_multiple": lambda: make_plan(
        **PIPELINE | {"pipeline_schedule": "interleaved_1f1b", "micro_batch_size": 1}, num_model_chunks=2, batch=5
    ),
    "split_backward_zero_stage": lambda: make_plan(
        **ZERO, pipeline_parallel_size=2, pipeline_schedule="zbv_zero_bubble", num_model_chunks=2
    ),
    "batch_divisible": lambda: make_plan(micro_batch_size=3, num_micro_batches=2),
    "batch_product": lambda: make_plan(micro_batch_size=2, num_micro_batches=2),
    "zero_needs_shards": lambda: make_plan(zero_stage=1, micro_batch_size=2),
    "shards_need_zero": lambda: make_plan(data_parallel_shard_size=2, micro_batch_size=2),
    "hierarchical_partition_needs_zero3": lambda: make_plan(**ZERO | {"zero_stage": 2}, hierarchical_partition_size=2),
    "hierarchical_partition_divides_shards": lambda: make_plan(**ZERO, hierarchical_partition_size=3),
    "plan_stage_order": lambda: with_stage(1, rank=0),
    "plan_stage_layers": lambda: with_stage(1, start=3),
    "plan_stage_ends": lambda: with_stage(1, embedding=True),
    "plan_recomputed_layers": lambda: with_stage(1, recompute=RecomputeSpec(kind="full", num_layers=3)),
    "plan_devices_used": lambda: make_plan(micro_batch_size=2).model_copy(update={"num_devices_used": 3}),
    "plan_axis_order": lambda: make_plan(**TP).model_copy(
        update={"axis_order": ("tp", "pp", "dp_replicate", "dp_shard", "cp")}
    ),
}
# The rules on a complete plan stand in no table: they are named where they are made.
INVARIANTS = set(re.findall(r'rule="(\w+)"', inspect.getsource(rules_plan)))
# Rules that no plan of runtime torch can break, and why: what there is, the runtime supports.
BEYOND_REACH: Mapping[str, Callable[[RuntimeProfile], bool]] = {
    "runtime_model_family": lambda torch: set(_choices(ModelSpec, "family")) <= set(torch.model_families),
    "runtime_device": lambda torch: set(get_args(DeviceKind)) <= set(torch.devices),
    "runtime_optimizer": lambda torch: set(_choices(OptimizerSpec, "name")) <= set(torch.optimizers),
    "runtime_zero_stage": lambda torch: set(get_args(ZeroStage)) <= set(torch.zero_stages),
    "runtime_pipeline_schedule": lambda torch: set(SCHEDULES) <= set(torch.schedules),
    "runtime_axis_order": lambda torch: set(AXIS_ORDERS) <= set(torch.axis_orders),
    "runtime_hybrid_shard": lambda torch: torch.hybrid_shard,
    "runtime_hierarchical_partition": lambda torch: torch.hierarchical_partition,
    "runtime_tied_pipeline": lambda torch: torch.tied_pipelines,
    "runtime_tensor_parallel": lambda torch: torch.tensor_parallel,
    "runtime_sequence_parallel": lambda torch: torch.sequence_parallel == "optional",
    "runtime_loss_parallel": lambda torch: torch.loss_parallel == "optional",
    "runtime_sequence_multiple": lambda torch: torch.sequence_multiple == 1,
    "runtime_key_value_heads": lambda torch: not torch.context_parallel_methods,
    "runtime_replicas_alone": lambda torch: not torch.replicas_alone,
    "runtime_hybrid_zero_stage": lambda torch: {1, 2, 3} <= set(torch.hybrid_zero_stages),
    "runtime_hybrid_hierarchical_partition": lambda torch: torch.hybrid_hierarchical_partition,
    "runtime_pipelines": lambda torch: len(torch.schedules) > 1,
    "runtime_pipeline_zero_stage": lambda torch: set(get_args(ZeroStage)) <= set(torch.pipeline_zero_stages),
    "runtime_zero_optimizer": lambda torch: torch.zero_optimizers is None,
    "runtime_recompute_layers": lambda torch: torch.recompute_layers == "per_stage",
    "runtime_layers_per_stage": lambda torch: torch.uneven_stages,
    # A user's list of layers: the stages of a plan are judged as plan_stage_layers and plan_stage_order.
    "layers_per_stage_sum": lambda torch: "plan_stage_layers" in BREACHES,
    "layers_per_stage_count": lambda torch: "plan_stage_order" in BREACHES,
}


def _choices(spec: Any, name: str) -> tuple[Any, ...]:
    return get_args(spec.model_fields[name].annotation)


def test_every_rule_has_a_breach_or_cannot_be_broken() -> None:
    assert {rule.name for rule in RULES} | INVARIANTS == BREACHES.keys() | BEYOND_REACH.keys()
    assert not BREACHES.keys() & BEYOND_REACH.keys()


@pytest.mark.parametrize("rule", BEYOND_REACH)
def test_the_runtime_supports_all_there_is(rule: str) -> None:
    assert BEYOND_REACH[rule](load_runtime("torch"))


@pytest.mark.parametrize("rule", BREACHES)
def test_the_executor_refuses(rule: str) -> None:
    plan = BREACHES[rule]()
    assert rule in {rejection.rule for rejection in check(plan)}
    lack = find_lack(plan)  # what the executor lacks altogether is said first
    with pytest.raises(InputError, match=rule if lack is None else lack.message.split("(")[0]):
        check_runnable(plan)


@pytest.mark.parametrize(
    ("lack", "plan"),
    {
        "loss scaling": lambda: make_plan(precision="fp16", micro_batch_size=2),
        "context parallelism": BREACHES["runtime_context_parallel_method"],
        "loss over chunks": BREACHES["runtime_chunked_loss"],
        "fp8 training": lambda: changed(
            "training", make_plan(micro_batch_size=2), precision=BF16_ONLY.model_copy(update={"fp8_recipe": "delayed"})
        ),
    }.items(),
)
def test_what_the_executor_lacks_is_refused(lack: str, plan: Callable[[], Plan]) -> None:
    with pytest.raises(InputError, match=lack):
        check_runnable(plan())

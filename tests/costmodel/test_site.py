"""A site changes the constants it names, by what it says, and nothing else."""

from typing import Any

import pytest
from pydantic import ValidationError
from sample_documents import sample_site

from costmodel.build import build_plan
from costmodel.estimate import estimate
from costmodel.memory import grid_peak_bytes
from costmodel.models.loader import load_model
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.loader import load_runtime
from costmodel.site import apply_site, check_device, constants_version, plan_profile
from costmodel.specs import (
    Constant,
    InputError,
    LaunchCorrection,
    MemoryCorrection,
    OverlapCorrection,
    ParallelConfig,
    Plan,
    RateCorrection,
    RuntimeProfile,
    SiteProfile,
    TrainingSpec,
    compute_plan_hash,
)
from costmodel.stack import read_stack
from hardware_profiles.loader import load_cluster

NEUTRAL: dict[str, Any] = {
    "efficiency": RateCorrection(),
    "launch": LaunchCorrection(),
    "overlap": OverlapCorrection(),
    "memory_margin": MemoryCorrection(),
}


def site(**changes: Any) -> SiteProfile:
    return sample_site().model_copy(update={**NEUTRAL, **changes})


def plan_of(runtime: RuntimeProfile, *, shards: int = 16) -> Plan:
    training = TrainingSpec(global_batch_size=64, sequence_length=2048, precision=runtime.precisions["bf16"])
    parallel = ParallelConfig(data_parallel_shard_size=shards, zero_stage=1, num_micro_batches=64 // shards)
    return build_plan(load_model("llama-3-8b"), load_cluster("2x8xA100-SXM-80GB"), training, runtime, parallel)


MEGATRON = load_runtime("megatron")


def test_the_neutral_site_changes_the_band_alone() -> None:
    plan = plan_of(MEGATRON)
    plain, told = estimate(plan, MEGATRON), estimate(plan, apply_site(MEGATRON, site()))
    assert told.step_time_seconds.value == plain.step_time_seconds.value
    assert told.peak_memory_bytes == plain.peak_memory_bytes
    assert told.step_time_seconds.high == pytest.approx(plain.step_time_seconds.value * 1.06)


def test_corrections_change_what_they_name() -> None:
    before, after = read_stack(MEGATRON), read_stack(apply_site(MEGATRON, sample_site()))
    assert after.site_rate == 0.8
    assert after.host_operations == pytest.approx(1.5 * before.host_operations)
    assert after.data_parallel_overlap == pytest.approx(max(0.0, before.data_parallel_overlap - 0.25))
    same = ("sustained_rate", "elementwise_traffic", "reduce_overlap", "launch_sharpness")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]


@pytest.mark.parametrize(("shift", "expected"), [(1.0, 1.0), (-1.0, 0.0)])
def test_overlap_stays_a_share(shift: float, expected: float) -> None:
    corrected = apply_site(MEGATRON, site(overlap=OverlapCorrection(value=shift)))
    assert corrected.constants["data_parallel_overlap"].value == expected


def test_half_the_rate_doubles_what_the_device_computes() -> None:
    free_host = Constant(value=1e-9, evidence="formula", source="a host that costs nothing")
    runtime = MEGATRON.model_copy(update={"constants": {**MEGATRON.constants, "host_operations": free_host}})
    plan = plan_of(runtime)
    names = ("gemm", "attention", "memory_bound")
    plain, told = (
        sum(term.exposed_seconds for term in estimate(plan, profile).terms if term.name in names)
        for profile in (runtime, apply_site(runtime, site(efficiency=RateCorrection(value=0.5))))
    )
    assert told == pytest.approx(2 * plain, rel=1e-3)


def test_the_memory_margin_scales_allocated_bytes_of_plans_and_grids() -> None:
    plan = plan_of(MEGATRON)
    corrected = apply_site(MEGATRON, site(memory_margin=MemoryCorrection(value=1.25)))
    plain, told = estimate(plan, MEGATRON).peak_memory_bytes, estimate(plan, corrected).peak_memory_bytes
    assert told.allocated == pytest.approx(1.25 * plain.allocated, abs=1)
    assert told.reserved == pytest.approx(1.25 * plain.reserved, rel=1e-9)
    column = grid_peak_bytes(plan.model, plan.cluster, plan.training, corrected, Grid.from_plan(plan))
    assert column.tolist() == [told.device]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (RateCorrection, 0.1),
        (RateCorrection, 2.5),
        (LaunchCorrection, 0.0),
        (LaunchCorrection, 20.0),
        (OverlapCorrection, 1.1),
        (MemoryCorrection, -1.0),
        (MemoryCorrection, float("nan")),
    ],
)
def test_corrections_outside_physical_bounds_are_refused(kind: Any, value: float) -> None:
    with pytest.raises(ValidationError):
        kind(value=value)


def test_another_runtime_or_device_is_refused() -> None:
    with pytest.raises(InputError, match="site file is of runtime megatron on A100-SXM-80GB; found runtime torch"):
        apply_site(load_runtime("torch"), sample_site())
    with pytest.raises(InputError, match=r"site file is of A100-SXM-80GB .* found a cluster of H100-SXM"):
        check_device(sample_site(), "H100-SXM")


def test_a_plan_is_the_same_plan_with_a_site_and_is_predicted_with_it() -> None:
    plan = plan_of(MEGATRON)
    carrying = plan.model_copy(update={"site": sample_site()})
    assert compute_plan_hash(carrying) == plan.plan_hash
    assert plan_profile(plan, MEGATRON) is MEGATRON
    assert plan_profile(carrying, MEGATRON) == apply_site(MEGATRON, sample_site())
    assert Plan.model_validate_json(carrying.model_dump_json()) == carrying


def test_the_version_of_constants_follows_their_values_only() -> None:
    name, constant = next(iter(MEGATRON.constants.items()))
    renamed = {**MEGATRON.constants, name: constant.model_copy(update={"source": "another source"})}
    moved = {**MEGATRON.constants, name: constant.model_copy(update={"value": constant.value + 1})}
    version = constants_version(MEGATRON)
    assert constants_version(MEGATRON.model_copy(update={"constants": renamed})) == version
    assert constants_version(MEGATRON.model_copy(update={"constants": moved})) != version

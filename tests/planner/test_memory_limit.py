"""A stated memory limit is a smaller device to every verdict, and is shown as what it is."""

from __future__ import annotations

import pytest
from planner_worlds import GIB, make_cluster, make_model, make_training

from costmodel.estimate import estimate
from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.memory_limit import make_memory_limit, usable_bytes
from costmodel.specs import Estimate, Infeasible, InputError, MemoryLimit, Recommendation
from planner.search import search
from planner.space import declare_space

TORCH = load_runtime("torch")
LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def plan_with(memory_gib: int, limit: MemoryLimit | None) -> Recommendation | Infeasible:
    inputs = (LARGE, make_cluster(per_node=2, memory_bytes=memory_gib * GIB), make_training(), TORCH)
    return search(*inputs, declare_space(*inputs, memory_limit=limit))


def best_with(memory_gib: int, limit: MemoryLimit | None) -> tuple[Recommendation, Estimate]:
    found = plan_with(memory_gib, limit)
    assert isinstance(found, Recommendation)
    assert found.best.estimate is not None
    return found, found.best.estimate


def test_equation_1() -> None:
    device = make_cluster(memory_bytes=80 * GIB).device
    limit = make_memory_limit(device, fraction=0.75, reserve_bytes=4 * GIB)
    assert limit.usable_bytes == usable_bytes(device, limit) == 56 * GIB
    assert usable_bytes(device, None) == 80 * GIB
    assert limit.words == "75% of 80.0 GiB, less 4.0 GiB reserved"
    assert make_memory_limit(device, reserve_bytes=4 * GIB).words == "80.0 GiB, less 4.0 GiB reserved"


def test_a_limit_that_leaves_nothing_is_refused() -> None:
    device = make_cluster(memory_bytes=80 * GIB).device
    with pytest.raises(InputError, match=r"leaves nothing for the plan; needed less than 40\.0 GiB, 0\.5 of the 80\.0"):
        make_memory_limit(device, fraction=0.5, reserve_bytes=40 * GIB)


@pytest.mark.parametrize(("fraction", "reserve"), [(0.75, 0), (1.0, 3 * GIB)])
def test_a_limited_device_is_planned_for_as_the_smaller_one(fraction: float, reserve: int) -> None:
    device = make_cluster(memory_bytes=12 * GIB).device
    limited, made = best_with(12, make_memory_limit(device, fraction=fraction, reserve_bytes=reserve))
    small, whole = best_with(9, None)[0], best_with(12, None)[0]
    assert limited.best.parallel == small.best.parallel
    assert limited.certificate.rejected_by_memory == small.certificate.rejected_by_memory
    assert limited.certificate.rejected_by_memory > whole.certificate.rejected_by_memory
    assert limited.certificate.upper_seconds == pytest.approx(small.certificate.upper_seconds)
    assert made.memory_limit is not None
    assert made.peak_memory_bytes.device <= made.memory_limit.usable_bytes == 9 * GIB
    assert made.memory_capacity_bytes == 12 * GIB


def test_the_limit_is_no_part_of_a_plans_identity() -> None:
    limit = make_memory_limit(make_cluster(memory_bytes=40 * GIB).device, fraction=0.9)
    assert best_with(40, limit)[0].best.plan_hash == best_with(40, None)[0].best.plan_hash


def test_the_verdict_of_an_estimate_follows_the_limit() -> None:
    found, made = best_with(12, None)
    assert made.fits
    needed, device = made.peak_memory_bytes.device, found.best.cluster.device
    enough = make_memory_limit(device, reserve_bytes=device.memory_bytes - needed)
    short = make_memory_limit(device, reserve_bytes=device.memory_bytes - needed + 1)
    assert estimate(found.best, TORCH, memory_limit=enough).fits
    assert not estimate(found.best, TORCH, memory_limit=short).fits


def test_the_nearest_miss_names_the_limit_and_offers_to_lift_it() -> None:
    limit = make_memory_limit(make_cluster(memory_bytes=80 * GIB).device, fraction=0.05)
    found = plan_with(80, limit)
    assert isinstance(found, Infeasible)
    miss = found.nearest_miss
    assert miss is not None
    assert miss.capacity_bytes == limit.usable_bytes < miss.needed_bytes < 80 * GIB
    assert miss.memory_limit == limit
    lifted = f"lift the memory limit (5% of 80.0 GiB): the plan above needs {miss.needed_bytes / GIB:.1f} of 80.0 GiB"
    assert lifted in miss.fixes
    assert any("TestGPU has 4.0 GiB to use (5% of 80.0 GiB)" in rejection.example for rejection in found.rejections)

"""The memory that a sieve reports against the memory of every candidate."""

from __future__ import annotations

import numpy as np
import pytest
from planner_worlds import GIB, answer, make_cluster, make_model, plan_space

from costmodel.runtimes.grid import Grid
from costmodel.specs import Infeasible
from planner.candidates import device_bytes, gib_apart, memory_rejection, sift, survey
from planner.completion import Completer, Refined
from planner.evaluation import Search
from planner.space import completer_of

LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


@pytest.mark.parametrize("capacity_gib", [4.0, 5.2, 7.0, 1000.0])
@pytest.mark.parametrize("runtime", ["torch", "megatron"])
def test_memory_is_exact_where_it_fits_and_at_the_nearest_miss(runtime: str, capacity_gib: float) -> None:
    # What the sieve skips changes neither what fits nor the row that misses by least; the rest are bounds that do not fit.
    machine = make_cluster(nodes=2, memory_bytes=int(capacity_gib * GIB))
    candidates = sift(plan_space(model=LARGE, cluster=machine, runtime=runtime, fix={"layers_per_stage": "even"}))
    full, needed = device_bytes(candidates.context, candidates.grid), candidates.needed_bytes
    fits = full <= machine.device.memory_bytes
    assert (candidates.fits == fits).all()
    assert (needed[fits] == full[fits]).all()
    assert (needed <= full).all()
    if not fits.all():
        row, least = candidates.leanest(np.flatnonzero(~fits))
        assert row == int(np.argmin(np.where(fits, np.inf, full)))
        assert least == full[row]
    assert fits.any() == (capacity_gib > 5)


def test_candidates_with_open_boundaries_may_fit_where_their_even_split_does_not() -> None:
    machine = make_cluster(nodes=2, memory_bytes=int(5.2 * GIB))
    candidates = sift(plan_space(model=LARGE, cluster=machine))
    even = candidates.needed_bytes <= machine.device.memory_bytes
    free = (candidates.grid.num_model_chunks == 1) & (candidates.grid.pipeline_parallel_size > 1)
    assert (candidates.fits == (even | free)).all()
    assert np.isfinite(candidates.bounds[candidates.fits]).all()
    assert np.isinf(candidates.bounds[~candidates.fits]).all()


@pytest.mark.parametrize("capacity_gib", [4.5, 5.2])
def test_the_example_of_what_does_not_fit_misses_by_least(capacity_gib: float) -> None:
    """Bounds of other candidates are smaller than their needs by far."""
    capacity = int(capacity_gib * GIB)
    space = plan_space(model=LARGE, cluster=make_cluster(nodes=2, memory_bytes=capacity), runtime="megatron")
    found = Search(survey(space), completer_of(space), 400_000)
    found.fastest()
    full, missing = device_bytes(space.context, found.candidates.grid), ~found.fits
    least = int(np.argmin(np.where(missing, full, np.inf)))
    assert (found.candidates.needed_bytes[missing] < 0.8 * full[missing]).any()
    wanted, held = gib_apart(float(full[least]), capacity)
    assert memory_rejection(found.candidates).example == (
        f"{found.candidates.summary(least)} needs {wanted} GiB a device; TestGPU has {held} GiB"
    )


def test_where_nothing_fits_the_example_is_the_nearest_miss() -> None:
    found = answer(plan_space(model=LARGE, cluster=make_cluster(nodes=2, memory_bytes=int(4.2 * GIB))))
    assert isinstance(found, Infeasible)
    assert found.nearest_miss is not None
    (memory,) = [rejection for rejection in found.rejections if rejection.rule == "memory"]
    assert memory.example.startswith(f"{found.nearest_miss.plan_summary} needs ")


def test_candidates_that_turn_out_not_to_fit_are_completed_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that holds next to nothing, whose candidates may fit as far as bounds know."""
    sizes: list[int] = []
    best = Completer.best

    def counted(completer: Completer, grid: Grid) -> Refined:
        sizes.append(len(grid))
        return best(completer, grid)

    monkeypatch.setattr(Completer, "best", counted)
    machine = make_cluster(nodes=2, memory_bytes=int(5.05 * GIB))
    space = plan_space(model=LARGE, cluster=machine, batch=32, sequence=4096)
    found = Search(survey(space), completer_of(space), 400_000)
    assert found.fastest() is not None
    assert (found.refined & ~found.fits).sum() > 20
    assert len(sizes) < 15

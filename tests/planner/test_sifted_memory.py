"""The memory that a sieve reports against the memory of every candidate."""

from __future__ import annotations

import numpy as np
import pytest
from planner_worlds import GIB, make_cluster, make_model, plan_space

from planner.candidates import device_bytes, sift

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

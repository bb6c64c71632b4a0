"""A pipeline is excluded for want of room only where no boundaries and no recomputation make it fit."""

from __future__ import annotations

import numpy as np
import pytest
from planner_worlds import make_training

from costmodel.runtimes.loader import load_runtime
from costmodel.runtimes.rules import obeys_rules
from meshwright.inputs import load_cluster, load_model
from planner.completion import is_free
from planner.space import completer_of, declare_space


@pytest.mark.parametrize(
    ("name", "runtime"), [("llama-3-8b", "torch"), ("gemma-2-9b", "torch"), ("llama-3-8b", "torchtitan")]
)
def test_what_has_no_room_has_no_completion_that_fits(name: str, runtime: str) -> None:
    model, cluster, profile = load_model(name), load_cluster("8xH100-SXM"), load_runtime(runtime)
    training = make_training(profile, batch=16, sequence=8192)
    space = declare_space(
        model, cluster, training, profile,
        allow={"pipeline_schedule": "1f1b,gpipe", "pipeline_parallel_size": "2,4", "micro_batch_size": "1,2,4"},
    )  # fmt: skip
    completer = completer_of(space)
    grid = space.grid.take(np.flatnonzero(obeys_rules(space.context, space.grid)))
    grid = grid.take(np.flatnonzero(is_free(grid, free=space.free_stages)))
    shapes = np.stack([grid.pipeline_schedule, grid.pipeline_parallel_size], axis=1)
    excluded = kept = 0
    for shape in np.unique(shapes, axis=0):
        alike = grid.take(np.flatnonzero((shapes == shape).all(axis=1)))
        no_room, fits = completer.bound(alike) == np.inf, np.isfinite(completer.best(alike).seconds)
        assert not (no_room & fits).any()
        excluded, kept = excluded + int(no_room.sum()), kept + int(fits.sum())
    assert excluded > 10
    assert kept > 10

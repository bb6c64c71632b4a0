"""The most free memory within a share of the fastest time, and searches that end as soon as a time is reached or excluded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planner_worlds import GIB, ask, make_cluster, make_model
from test_objectives import LARGE, recommended

from costmodel.runtimes.memory_limit import make_memory_limit
from costmodel.specs import Recommendation
from planner.candidates import sift, survey
from planner.closing import tighten, within
from planner.effort import exact, quick
from planner.evaluation import Search, exact_seconds, step_seconds
from planner.headroom import most_headroom
from planner.search import NODE_BUDGET, search
from planner.space import completer_of


@pytest.mark.parametrize("within", [0.02, 0.1, 0.5, 100.0])
def test_headroom_is_that_of_every_candidate_evaluated(within: float) -> None:
    held = {"pipeline_parallel_size": "1", "recompute": "none"}  # nothing of a candidate is left open
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=4, memory_bytes=16 * GIB), batch=8, fix=held)
    candidates = sift(inquiry.space())
    rows = np.flatnonzero(candidates.fits)
    seconds = exact_seconds(candidates.context, candidates.grid.take(rows))
    fast_enough = rows[seconds <= (1 + within) * seconds.min()]
    least = candidates.needed_bytes[fast_enough].min()
    found, objective = recommended(most_headroom(inquiry, within))
    assert found.best.estimate is not None
    assert objective.value == 16 * GIB - found.best.estimate.peak_memory_bytes.device
    assert found.certificate.upper_seconds <= (1 + within) * seconds.min()
    assert objective.value <= 16 * GIB - least + 1 <= objective.bound + 2  # a column of floats, bytes rounded up
    assert objective.gap <= 0.01
    assert objective.value >= (16 * GIB - least) * (1 - 0.01)


def test_headroom_is_of_what_the_user_lets_plans_use() -> None:
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=4, memory_bytes=16 * GIB), batch=8)
    limit = make_memory_limit(inquiry.cluster.device, fraction=0.75)
    found, objective = recommended(most_headroom(inquiry.changed(memory_limit=limit), 0.1))
    assert found.best.estimate is not None
    assert found.best.estimate.memory_limit == limit
    assert objective.value == 12 * GIB - found.best.estimate.peak_memory_bytes.device
    assert not any("reserved" in rejection.example for rejection in found.rejections)


@pytest.mark.parametrize("memory_gib", [5, 8, 16])
def test_a_search_for_a_time_decides_as_a_whole_search_does(memory_gib: int) -> None:
    """At, below and above the fastest time: a row that is found takes no longer, and where none is the bound says so."""
    space = ask(model=LARGE, cluster=make_cluster(per_node=4, memory_bytes=memory_gib * GIB), batch=8).space()

    def fresh() -> Search:
        return Search(survey(space), completer_of(space), NODE_BUDGET)

    whole = fresh()
    assert whole.fastest() is not None
    tighten(whole, replace(quick(), enough=0.0))
    fastest, bound = float(whole.time.min()), float(whole.lower[whole.fits].min())
    for share in (0.5, 0.9, 0.999, 1.0, 1.02, 1.5, 4.0):
        found = fresh()
        row, lower = within(found, share * fastest, replace(quick(), enough=0.0))
        assert lower <= fastest * (1 + 1e-9)
        if row is None:
            assert share < 1.0
            assert lower > share * fastest or share * fastest >= bound
        else:
            assert share >= 1.0
            assert found.time[row] <= share * fastest * (1 + 1e-9)
            assert found.plan(row).estimate is not None
    assert within(fresh(), 0.9 * bound, quick())[0] is None


def test_what_a_search_for_a_time_found_is_where_the_next_one_begins() -> None:
    """The best plan is then that of a search from nothing."""
    inquiry = ask(model=make_model(layers=8), cluster=make_cluster(per_node=8), batch=32)
    space = inquiry.space()
    known = Search(survey(space), completer_of(space), NODE_BUDGET)
    answer = inquiry.search(space)
    assert isinstance(answer, Recommendation)
    row, _ = within(known, 1.5 * step_seconds(answer.best), quick())
    assert row is not None
    again = inquiry.search(space, known)
    assert isinstance(again, Recommendation)
    assert again.best.plan_hash == answer.best.plan_hash
    assert again.certificate.upper_seconds == answer.certificate.upper_seconds


def test_a_bisection_that_ends_leaves_no_gap_and_small_shares_are_told() -> None:
    held = {"pipeline_parallel_size": "1", "recompute": "none"}
    inquiry = ask(model=LARGE, cluster=make_cluster(per_node=4, memory_bytes=16 * GIB), batch=8, fix=held)
    _, objective = recommended(most_headroom(inquiry, 0.001))
    assert "at most 0.1% slower" in objective.statement
    _, objective = recommended(most_headroom(inquiry, 100.0))
    assert objective.bound == objective.value
    assert objective.gap == 0.0


def test_work_that_is_cut_short_is_worth_what_every_search_does() -> None:
    """Closing a gap begins with what is done without being asked to: no less is proven when it ends at once."""
    space = ask(model=LARGE, cluster=make_cluster(per_node=8, memory_bytes=5 * GIB), batch=32).space()
    inputs = (space.context.model, space.context.cluster, space.context.training, space.context.runtime)
    usual = search(*inputs, space)
    at_once = search(*inputs, space, effort=replace(exact(), rows=0))
    assert isinstance(usual, Recommendation)
    assert isinstance(at_once, Recommendation)
    assert at_once.certificate.gap == usual.certificate.gap
    assert at_once.best.plan_hash == usual.best.plan_hash

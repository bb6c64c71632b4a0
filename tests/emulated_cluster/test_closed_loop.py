"""Measure a cluster, plan for it, run the plans on it: does the plan that was predicted to be the fastest come first?

Two nodes that share one machine's cores and send to each other at 100 Mbit/s. No time is asked for, only its order, and bytes
are counted by the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from closed_loop import Measured, candidates, measure_cluster, plan_name, predicted_seconds, run_plan
from emulation import Node
from judgement import WIRE_TOLERANCE, settle, table, too_slow, wire_bytes, wrong_pairs

from costmodel.specs import ClusterSpec, Plan

pytestmark = [pytest.mark.distributed, pytest.mark.alone]

LINK_BYTES_PER_SECOND = 100e6 / 8 * 1448 / 1514
"""What 100 Mbit/s carry without the headers of their frames."""


@pytest.fixture(scope="module")
def single(nodes: Sequence[Node], tmp_path_factory: pytest.TempPathFactory) -> ClusterSpec:
    """Two nodes of one process, as measured."""
    return measure_cluster(nodes, tmp_path_factory.mktemp("single"), processes=1)


@pytest.fixture(scope="module")
def double(nodes: Sequence[Node], tmp_path_factory: pytest.TempPathFactory) -> ClusterSpec:
    """Two nodes of two processes, as measured."""
    return measure_cluster(nodes, tmp_path_factory.mktemp("double"), processes=2)


def test_the_link_between_the_nodes_is_measured(single: ClusterSpec) -> None:
    assert [level.size for level in single.levels] == [1, 2]
    assert single.device.kind == "cpu"
    assert single.levels[1].link.measured_bytes_per_second == pytest.approx(LINK_BYTES_PER_SECOND, rel=0.15)


def test_the_pick_wins_against_one_plan_of_every_kind(
    nodes: Sequence[Node], single: ClusterSpec, tmp_path: Path
) -> None:
    plans = candidates(tmp_path, single, tensor="1,2")
    chosen = list({kind(plan): plan for plan in reversed(plans)}.values())
    chosen.sort(key=predicted_seconds)
    assert chosen[0] == plans[0]
    assert {kind(plan) for plan in chosen} == {"pipeline", "tensor", "replicas", "ZeRO-1", "ZeRO-2", "ZeRO-3"}
    check(nodes, [plan for plan in chosen if kind(plan) not in ("ZeRO-1", "ZeRO-2")], tmp_path, steps=4)


@pytest.mark.slow
def test_all_candidates_of_two_processes_stand_in_the_predicted_order(
    nodes: Sequence[Node], single: ClusterSpec, tmp_path: Path
) -> None:
    plans = candidates(tmp_path, single, tensor="1,2")
    kinds = {kind(plan) for plan in plans}
    assert kinds == {"pipeline", "tensor", "replicas", "ZeRO-1", "ZeRO-2", "ZeRO-3"}
    check(nodes, plans, tmp_path, steps=7)


@pytest.mark.slow
def test_a_spread_of_candidates_of_two_processes_a_node(
    nodes: Sequence[Node], double: ClusterSpec, tmp_path: Path
) -> None:
    plans = candidates(tmp_path, double, tensor="1,2,4")
    check(nodes, plans[:: len(plans) // 12], tmp_path, steps=7)


def check(nodes: Sequence[Node], plans: Sequence[Plan], folder: Path, *, steps: int) -> None:
    """Run the plans; the first is the pick. Bytes are compared at once, times after doubtful ones were measured again."""
    runs: dict[str, Measured] = {}

    def measure(plan: Plan) -> float:
        runs[plan_name(plan)] = run_plan(nodes, plan, folder, steps=steps)
        return min(runs[plan_name(plan)].step_seconds)

    seconds = {plan_name(plan): measure(plan) for plan in plans}
    assert len(seconds) == len(plans), "two plans have the same name"
    settle(plans, seconds, measure, again=2)
    report = table(plans, runs, seconds)
    print(report)
    assert not wrong_pairs(plans, seconds), report
    assert not too_slow(plans, seconds), report
    for plan in plans:
        for predicted, sent in zip(wire_bytes(plan), runs[plan_name(plan)].sent_bytes, strict=True):
            assert sent == pytest.approx(predicted, rel=WIRE_TOLERANCE), f"{plan_name(plan)}\n{report}"
    losses = {run.last_loss for run in runs.values()}
    assert max(losses) - min(losses) < 1e-4, "the plans did not train the same"


def kind(plan: Plan) -> str:
    """The parallelism that a plan of two processes has."""
    sizes = plan.parallel
    if sizes.pipeline_parallel_size > 1:
        return "pipeline"
    if sizes.tensor_parallel_size > 1:
        return "tensor"
    return f"ZeRO-{sizes.zero_stage}" if sizes.data_parallel_shard_size > 1 else "replicas"

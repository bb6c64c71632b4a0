"""Both orders of mesh axes against global ranks written out: who shares a node with whom, and what that costs."""

import itertools

import numpy as np
import pytest
from time_worlds import cluster, gpt, link, setting, with_constants, world

from costmodel.build import build_plan
from costmodel.communication import communication
from costmodel.estimate import estimate, step_seconds
from costmodel.runtimes.loader import list_runtimes, load_runtime
from costmodel.runtimes.rules import check
from costmodel.sharding import data_groups
from costmodel.specs import AXIS_ORDERS, LevelSpec, Plan
from costmodel.step import step_times

INSIDE, ACROSS = 1e11, 1e9
SIZES = [
    {
        "pipeline_parallel_size": p,
        "tensor_parallel_size": t,
        "data_parallel_replicate_size": r,
        "data_parallel_shard_size": d,
    }
    for p, t, r, d in [
        (2, 1, 16, 1),
        (4, 2, 1, 4),
        (2, 4, 2, 2),
        (8, 1, 2, 2),
        (16, 1, 2, 1),
        (4, 1, 1, 8),
        (2, 2, 2, 4),
    ]
]


def make(order, *, machine=None, **sizes) -> Plan:
    """A plan of runtime torch; sizes with shards are ZeRO-3."""
    stage = 3 if sizes.get("data_parallel_shard_size", 1) > 1 else 0
    schedule = "1f1b" if sizes["pipeline_parallel_size"] > 1 else "none"
    given = {"zero_stage": stage, "pipeline_schedule": schedule, "num_micro_batches": 16, **sizes}
    plan, runtime = world(runtime="torch", model=gpt(layers=16), machine=machine, **given)
    return build_plan(plan.model, plan.cluster, plan.training, runtime, plan.parallel, axis_order=AXIS_ORDERS[order])


# Without the loss of rate that grows with the nodes of a group.
TORCH = with_constants(load_runtime("torch"), wide_group_growth=0.0)


def ranks_of(plan: Plan) -> np.ndarray:
    """Global ranks [pp, dp_replicate, dp_shard, cp, tp]."""
    parallel = plan.parallel
    sizes = {
        "pp": parallel.pipeline_parallel_size,
        "dp_replicate": parallel.data_parallel_replicate_size,
        "dp_shard": parallel.data_parallel_shard_size,
        "cp": parallel.context_parallel_size,
        "tp": parallel.tensor_parallel_size,
    }
    numbers = np.arange(parallel.num_devices).reshape([sizes[axis] for axis in plan.axis_order])
    return numbers.transpose([plan.axis_order.index(axis) for axis in sizes])


def groups_along(plan: Plan, *axes: str) -> np.ndarray:
    """Global ranks of every group along some axes [groups, members]."""
    names = ["pp", "dp_replicate", "dp_shard", "cp", "tp"]
    last = [names.index(axis) for axis in axes]
    others = [index for index in range(5) if index not in last]
    numbers = ranks_of(plan).transpose([*others, *last])
    return numbers.reshape(-1, np.prod(numbers.shape[len(others) :], dtype=int))


def members_in_a_unit(groups: np.ndarray, unit: int) -> int:
    """The members that the units of a group hold, the same in all units of all groups."""
    (held,) = {count for group in groups for count in np.unique(group // unit, return_counts=True)[1]}
    return int(held)


def racks(nodes: int) -> LevelSpec:
    return LevelSpec(name="racks", size=2, link=link(ACROSS / 4), ports=8 * nodes)


@pytest.mark.parametrize("order", AXIS_ORDERS)
@pytest.mark.parametrize("sizes", SIZES)
def test_groups_reach_as_far_as_their_ranks_do(sizes, order):
    """With as many cards as devices a group has a card for each of its members in a node."""
    machine = cluster(nodes=4, inside=INSIDE, across=ACROSS)
    plan = make(order, machine=machine, **sizes)
    found = data_groups(setting(plan, TORCH))
    for name, axis in (("shard", "dp_shard"), ("replicate", "dp_replicate")):
        groups, modelled = groups_along(plan, axis), getattr(found, name)
        if groups.shape[1] == 1:
            assert modelled.size[0, 0] == 1
            continue
        held = members_in_a_unit(groups, 8)
        assert modelled.level[0, 0] == (held < groups.shape[1])
        rate = INSIDE if held == groups.shape[1] else ACROSS * held
        assert modelled.bytes_per_second[0, 0] == pytest.approx(rate)


@pytest.mark.parametrize("order", AXIS_ORDERS)
def test_racks_are_seen_too(order):
    """4 racks' worth of links: level 2 where a group leaves its rack of two nodes."""
    machine = cluster(nodes=2, inside=INSIDE, across=ACROSS)
    machine = machine.model_copy(update={"levels": (*machine.levels, racks(2))})
    for sizes in SIZES:
        plan = make(order, machine=machine, **sizes)
        found = data_groups(setting(plan, TORCH))
        for name, axis in (("shard", "dp_shard"), ("replicate", "dp_replicate")):
            groups = groups_along(plan, axis)
            levels = [sum(len(set(group // unit)) > 1 for unit in (8, 16)) for group in groups]
            assert getattr(found, name).level[0, 0] == max(levels)


@pytest.mark.parametrize("order", AXIS_ORDERS)
@pytest.mark.parametrize(
    "sizes", [*SIZES, {"pipeline_parallel_size": 3, "tensor_parallel_size": 2, "data_parallel_replicate_size": 4}]
)
def test_messages_cross_nodes_where_neighbours_do(sizes, order):
    """Through the one card of a node go the messages of all devices that send over its border at once."""
    machine = cluster(nodes=4, inside=INSIDE, across=ACROSS, ports=1, latency=0.0)
    plan = make(order, machine=machine, **sizes)
    times = step_times(setting(plan, TORCH))
    ranks = ranks_of(plan).reshape(plan.parallel.pipeline_parallel_size, -1)
    block = plan.training.sequence_length * plan.model.hidden_size * 2
    rate = load_runtime("torch").constants["message_rate"].value
    for number, (own, peers) in enumerate(zip(ranks, np.roll(ranks, -1, axis=0), strict=True)):
        crossing = own[own // 8 != peers // 8] // 8
        shared = max(np.bincount(crossing)) if len(crossing) else 0
        expected = block / rate * (shared / ACROSS if shared else 1 / INSIDE)
        assert times.transfer[0, number] == pytest.approx(expected), number


def test_context_ranks_stay_together_when_a_pipeline_lies_between_them_and_the_next_shard():
    """dp_shard 4 x cp 2 with pp 2 between: two neighbours of a group, then a jump over the other stage."""
    sizes = {
        "pipeline_parallel_size": 2,
        "context_parallel_size": 2,
        "context_parallel_method": "ring",
        "num_micro_batches": 4,
    }
    machine = cluster(nodes=2, inside=INSIDE, across=ACROSS)
    for shards, replicas in ((4, 1), (1, 4)):
        data = {
            "data_parallel_shard_size": shards,
            "data_parallel_replicate_size": replicas,
            "zero_stage": int(shards > 1),
        }
        plan, runtime = world(machine=machine, pipeline_schedule="1f1b", **sizes, **data)
        runtime = with_constants(runtime, wide_group_growth=0.0)
        for order, held in (("pipeline_outermost", 8), ("data_outermost", 4)):
            moved = plan.model_copy(update={"axis_order": AXIS_ORDERS[order]})
            assert check(moved, runtime) == []
            groups = groups_along(moved, "dp_shard" if shards > 1 else "dp_replicate", "cp")
            assert members_in_a_unit(groups, 8) == held
            found = data_groups(setting(moved, runtime))
            found = found.shard if shards > 1 else found.replicate
            assert found.size[0, 0] == 8
            assert found.bytes_per_second[0, 0] == pytest.approx(INSIDE if held == 8 else ACROSS * held)


def test_a_whole_pipeline_inside_a_node_sums_its_tied_table_there():
    """Rank 0 and rank 3 of tensor 2 are 6 devices apart, and still in one node."""
    machine = cluster(nodes=2, inside=INSIDE, across=ACROSS)
    sizes = {"pipeline_parallel_size": 4, "tensor_parallel_size": 2, "data_parallel_replicate_size": 2}
    for order, level in (("pipeline_outermost", 1), ("data_outermost", 0)):
        plan = make(order, machine=machine, **sizes)
        ends = [groups_along(plan, "pp")[index][[0, -1]] // 8 for index in range(4)]
        assert all(len(set(pair)) == 1 + level for pair in ends)
        assert setting(plan, TORCH).pipeline_group().level[0] == level


def test_links_in_the_traffic_follow_the_order():
    machine = cluster(nodes=2, inside=INSIDE, across=ACROSS)
    sizes = {"pipeline_parallel_size": 2, "tensor_parallel_size": 4, "data_parallel_replicate_size": 2}
    links = {}
    for order in AXIS_ORDERS:
        plan = make(order, machine=machine, **sizes)
        rows = communication(setting(plan, TORCH), 0)
        links[order] = {row.axis: row.link for row in rows if row.axis in ("pp", "dp_replicate")}
    inner, outer = (level.link.name for level in machine.levels)
    assert links["pipeline_outermost"] == {"pp": outer, "dp_replicate": inner}
    assert links["data_outermost"] == {"pp": inner, "dp_replicate": outer}


def seconds(order, machine, sizes) -> float:
    return step_seconds(make(order, machine=machine, **sizes), TORCH)


@pytest.mark.parametrize("sizes", SIZES)
def test_orders_cost_the_same_in_one_node_and_over_equal_links(sizes):
    one, equal = cluster(nodes=1, per_node=32), cluster(nodes=4, inside=1e10, across=1e10, latency=0.0)
    for machine in (one, equal):
        first, second = (seconds(order, machine, sizes) for order in AXIS_ORDERS)
        assert first == pytest.approx(second, rel=1e-12)


def test_memory_and_bytes_do_not_depend_on_the_order():
    plan = make("pipeline_outermost", **SIZES[6])
    other = make("data_outermost", **SIZES[6])
    runtime = load_runtime("torch")
    first, second = estimate(plan, runtime), estimate(other, runtime)
    assert first.memory == second.memory
    assert first.flops == second.flops
    assert [row.bytes_per_rank for row in first.communication] == [row.bytes_per_rank for row in second.communication]
    assert plan.plan_hash != other.plan_hash


def test_other_orders_are_refused_with_the_valid_ones():
    plan = make("pipeline_outermost", **SIZES[0])
    for axes in itertools.permutations(("pp", "dp_replicate", "dp_shard", "cp", "tp")):
        rules = {each.rule: each for each in check(plan.model_copy(update={"axis_order": axes}))}
        assert ("plan_axis_order" in rules) == (axes not in AXIS_ORDERS.values())
        for found in rules.values():
            assert "pp, dp_replicate, dp_shard, cp, tp (pipeline_outermost)" in found.message
            assert "dp_replicate, dp_shard, pp, cp, tp (data_outermost)" in found.message


@pytest.mark.parametrize("runtime", list_runtimes())
def test_a_runtime_takes_the_orders_that_it_has(runtime):
    """Only torch's executor and Megatron-LM (--use-tp-pp-dp-mapping) number their processes in the second order."""
    valid = ["pipeline_outermost", "data_outermost"] if runtime in ("torch", "megatron") else ["pipeline_outermost"]
    profile = load_runtime(runtime)
    assert list(profile.axis_orders) == valid
    plan, _ = world(runtime=runtime, num_micro_batches=1)
    moved = plan.model_copy(update={"axis_order": AXIS_ORDERS["data_outermost"]})
    found = [each for each in check(moved, profile) if each.rule == "runtime_axis_order"]
    assert len(found) == ("data_outermost" not in valid)
    for rejection in found:
        assert rejection.message == (
            f"runtime {runtime} does not support axis_order data_outermost; supported: pipeline_outermost"
        )

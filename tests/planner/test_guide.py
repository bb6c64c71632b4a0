"""The decision guide: every branch, the documents' ordered lists, and where search and guide differ."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_worlds import GIB, make_cluster, make_model, plan_space, recommend

from costmodel.specs import Guide
from planner.candidates import sift
from planner.guide import guide_alone
from planner.guide_advice import BRANCHES as DOCUMENTED
from planner.guide_advice import advise
from planner.guide_facts import Facts, LinkSpeed, gather_facts, state_bytes_per_parameter
from planner.guide_options import STRATEGIES, belongs

FAST = LinkSpeed(
    name="fast",
    communication_seconds=1.0,
    compute_seconds=2.0,
    link_bytes_per_second=2e10,
    crossover_bytes_per_second=1e10,
    num_micro_batches=1,
)
SLOW = replace(FAST, communication_seconds=4.0, crossover_bytes_per_second=4e10)
SMALL_MODEL = Facts(
    num_devices=1,
    devices_per_node=8,
    capacity_bytes=100,
    one_device_bytes=50,
    one_node_bytes=20,
    largest_layer_bytes=10,
    gathered_layer_bytes=2,
    link=None,
    sequence_length=4096,
    why_not_cut=None,
)
LARGE_MODEL = replace(SMALL_MODEL, one_device_bytes=500, one_node_bytes=90)
HUGE_LAYER = replace(LARGE_MODEL, largest_layer_bytes=200)
NODE, NODES = {"num_devices": 8}, {"num_devices": 64}

# facts, branch, the document's ordered list
BRANCHES: list[tuple[Facts, str, list[str]]] = [
    (SMALL_MODEL, "single device, the model fits", ["normal use"]),
    (
        LARGE_MODEL,
        "single device, the model does not fit",
        ["ZeRO + offload to CPU and optionally NVMe", "memory-centric tiling"],
    ),
    (
        replace(HUGE_LAYER, gathered_layer_bytes=150),
        "single device, the largest layer does not fit",
        ["memory-centric tiling", "ZeRO + offload to CPU and optionally NVMe"],
    ),
    (replace(SMALL_MODEL, **NODE), "single node, the model fits into one device", ["DDP", "ZeRO"]),
    (replace(LARGE_MODEL, **NODE), "single node, the model does not fit into one device", ["PP", "ZeRO", "TP"]),
    (
        replace(HUGE_LAYER, **NODE),
        "single node, the largest layer does not fit into one device",
        ["TP", "ZeRO", "memory-centric tiling"],
    ),
    (
        replace(LARGE_MODEL, link=FAST, **NODES),
        "multi node, the model fits into one node, fast links",
        ["ZeRO with multiple replicas", "ZeRO", "PP+TP+DP"],
    ),
    (
        replace(LARGE_MODEL, link=SLOW, **NODES),
        "multi node, the model fits into one node, slow links",
        ["ZeRO with multiple replicas", "DP+PP+TP+ZeRO-1"],
    ),
    (
        replace(LARGE_MODEL, link=FAST, one_node_bytes=200, **NODES),
        "multi node, the model does not fit into one node, fast links",
        ["ZeRO", "PP+TP+DP"],
    ),
    (
        replace(LARGE_MODEL, link=SLOW, one_node_bytes=None, **NODES),
        "multi node, the model does not fit into one node, slow links",
        ["DP+PP+TP+ZeRO-1"],
    ),
]


@pytest.mark.parametrize(("facts", "branch", "strategies"), BRANCHES, ids=[case[1] for case in BRANCHES])
def test_every_branch_gives_the_documents_list(facts: Facts, branch: str, strategies: list[str]) -> None:
    advice = advise(facts)
    assert advice.branch == branch
    assert [name for name, _ in advice.options] == strategies
    assert all(name in STRATEGIES for name in strategies)
    assert advice.steps
    assert all(step.numbers and "huggingface.co" in step.source for step in advice.steps)


@pytest.mark.parametrize(("facts", "branch", "strategies"), BRANCHES, ids=[case[1] for case in BRANCHES])
def test_long_sequences_are_shared_where_there_are_several_devices(
    facts: Facts, branch: str, strategies: list[str]
) -> None:
    advice = advise(replace(facts, sequence_length=8192))
    several = facts.num_devices > 1
    assert advice.branch == branch
    assert [name for name, _ in advice.options] == strategies + ["CP"] * several
    assert ("share" in advice.steps[-1].question) == several
    assert advice.options[-1][1].endswith("goes with the others") == several
    cannot = advise(replace(facts, sequence_length=8192, why_not_cut="runtime torch has none"))
    assert cannot.options[-1][1].endswith("runtime torch has none") == several


def test_every_branch_of_the_code_is_tested() -> None:
    assert [name for _, name, _ in BRANCHES] == [branch.name for branch in DOCUMENTED]


@given(
    devices=st.integers(1, 64),
    memory=st.tuples(*[st.integers(1, 200)] * 4),
    nothing_on_a_node=st.booleans(),
    fast=st.booleans(),
)
def test_exactly_one_branch_holds(
    devices: int, memory: tuple[int, int, int, int], nothing_on_a_node: bool, fast: bool
) -> None:
    facts = replace(
        SMALL_MODEL,
        num_devices=devices,
        one_device_bytes=memory[0],
        one_node_bytes=None if nothing_on_a_node else memory[1],
        largest_layer_bytes=memory[2],
        gathered_layer_bytes=memory[3],
        link=FAST if fast else SLOW,
    )
    (held,) = [branch for branch in DOCUMENTED if branch.holds(facts)]
    assert advise(facts).branch == held.name
    assert advise(facts).source.endswith(held.section)


def test_a_cluster_of_several_nodes_needs_a_link() -> None:
    with pytest.raises(ValueError, match="link between"):
        advise(replace(LARGE_MODEL, **NODES))


def test_plans_of_other_strategies_cut_no_sequences() -> None:
    space = plan_space(runtime="megatron", sequence=16384, batch=4)
    cut = space.grid.context_parallel_size > 1
    assert cut.any()
    for name, strategy in STRATEGIES.items():
        held = belongs(strategy, space.grid, 8)
        assert (held == cut).all() if name == "CP" else not (held & cut).any(), name


def test_offload_and_tiling_are_listed_as_not_modelled() -> None:
    for name, reason in advise(LARGE_MODEL).options:
        assert STRATEGIES[name].rows is None
        assert "not modelled yet" in reason


def guide_of(**world: object) -> Guide:
    return recommend(plan_space(**world)).guide  # type: ignore[arg-type]


def test_one_device_takes_the_plain_branch() -> None:
    guide = guide_of(cluster=make_cluster(per_node=1))
    assert guide.branch == "single device, the model fits"
    assert guide.agrees
    assert guide.source.endswith("(Which Strategy To Use When): Single GPU")
    assert guide.options[0].plan_summary is not None
    assert guide.options[0].step_time_seconds is not None


def test_a_small_model_on_one_node_is_told_ddp_first() -> None:
    guide = guide_of()
    assert guide.branch == "single node, the model fits into one device"
    ddp, zero = guide.options
    assert ddp.step_time_seconds is not None
    assert zero.step_time_seconds is not None
    assert "zero" not in (ddp.plan_summary or "zero")
    assert "zero" in (zero.plan_summary or "")
    assert ddp.model_code_change == "none"


LARGE = make_model(layers=8, hidden=1024, heads=8, key_values=8, feed_forward=4096, vocab=32000)


def test_a_model_too_large_for_a_device_is_told_pp_zero_tp() -> None:
    guide = guide_of(model=LARGE, cluster=make_cluster(memory_bytes=int(5.2 * GIB)))
    assert guide.branch == "single node, the model does not fit into one device"
    assert [option.strategy for option in guide.options] == ["PP", "ZeRO", "TP"]
    (step, _) = guide.steps
    assert step.answer == "no"
    needed, capacity = step.numbers["needed_bytes"], step.numbers["capacity_bytes"]
    assert isinstance(needed, int)
    assert isinstance(capacity, int)
    assert needed > capacity
    if not guide.agrees:
        assert guide.disagreement is not None
        assert " s" in guide.disagreement


# The state of LARGE's largest layer, a table of 32,000 x 1,024, is 524 MB, gathered it is 131 MB.
MACHINES: list[dict[str, float]] = [
    {"per_node": 1},
    {"per_node": 1, "memory_bytes": GIB},
    {"per_node": 1, "memory_bytes": 100_000_000},
    {"per_node": 8},
    {"per_node": 8, "memory_bytes": GIB},
    {"per_node": 8, "memory_bytes": 300_000_000},
    {"nodes": 2, "per_node": 4, "between": 1e12, "latency": 0.0},
    {"nodes": 2, "per_node": 4, "between": 1e7, "latency": 0.0},
    {"nodes": 2, "per_node": 4, "between": 1e12, "latency": 0.0, "memory_bytes": GIB},
    {"nodes": 2, "per_node": 4, "between": 1e7, "latency": 0.0, "memory_bytes": GIB},
]


def test_every_branch_is_reached_from_a_machine() -> None:
    reached = []
    for machine in MACHINES:
        space = plan_space(model=LARGE, cluster=make_cluster(**machine), sequence=4096)  # type: ignore[arg-type]
        reached.append(advise(gather_facts(sift(space))).branch)
    assert reached == [branch.name for branch in DOCUMENTED]


@pytest.mark.parametrize(("rate", "speed"), [(1e12, "fast"), (1e7, "slow")])
def test_fast_and_slow_links_are_computed(rate: float, speed: str) -> None:
    guide = guide_of(cluster=make_cluster(nodes=2, per_node=4, between=rate, latency=0.0), sequence=4096)
    assert guide.branch == f"multi node, the model fits into one node, {speed} links"
    step = next(step for step in guide.steps if "link between nodes" in step.question)
    crossover, link = step.numbers["crossover_bytes_per_second"], step.numbers["link_bytes_per_second"]
    assert isinstance(crossover, float)
    assert isinstance(link, float)
    assert (link >= crossover) == (speed == "fast")


def test_the_crossover_rate_is_where_the_answer_flips() -> None:
    # Without latency the traffic scales with 1 / rate, so the crossover does not depend on the rate.
    def link(rate: float) -> LinkSpeed:
        cluster = make_cluster(nodes=2, per_node=4, between=rate, latency=0.0)
        space = plan_space(cluster=cluster, sequence=4096, allow={"micro_batch_size": "1"})
        found = gather_facts(sift(space)).link
        assert found is not None
        return found

    first, second = link(1e8), link(1e9)
    assert first.crossover_bytes_per_second == pytest.approx(second.crossover_bytes_per_second, rel=1e-9)
    per_port = first.crossover_bytes_per_second / first.link_bytes_per_second * 1e8
    assert not link(0.99 * per_port).fast
    assert link(1.01 * per_port).fast


def test_state_bytes_are_the_published_sixteen() -> None:
    # 2 + 2 + 12 bytes per parameter with 16-bit parameters and gradients and Adam (arXiv 1910.02054, section 3.1).
    from planner_worlds import make_training

    from costmodel.runtimes.loader import load_runtime

    megatron = make_training(load_runtime("megatron"), precision="fp16")
    assert state_bytes_per_parameter(megatron) == 16


def test_strategies_partition_by_what_is_in_use() -> None:
    space = plan_space(cluster=make_cluster(nodes=2, per_node=4))
    grid = space.grid
    masks = {name: belongs(strategy, grid, 4) for name, strategy in STRATEGIES.items() if strategy.rows}
    assert not (masks["DDP"] & masks["ZeRO"]).any()
    assert (masks["ZeRO with multiple replicas"] & ~masks["ZeRO"]).sum() == 0
    assert (grid.data_parallel_shard_size[masks["ZeRO with multiple replicas"]] <= 4).all()
    assert (grid.zero_stage[masks["DP+PP+TP+ZeRO-1"]] == 1).all()
    assert (grid.tensor_parallel_size[masks["PP"]] == 1).all()
    assert (grid.pipeline_parallel_size[masks["TP"]] == 1).all()
    assert not belongs(STRATEGIES["memory-centric tiling"], grid, 4).any()


def test_where_nothing_fits_the_guide_still_advises() -> None:
    space = plan_space(model=LARGE, cluster=make_cluster(per_node=1, memory_bytes=GIB))
    guide = guide_alone(sift(space))
    assert guide.branch == "single device, the model does not fit"
    assert [option.plan_summary for option in guide.options] == [None, None]
    assert not guide.agrees


def test_an_option_says_what_makes_it_slower() -> None:
    guide = guide_of(model=LARGE, cluster=make_cluster(nodes=2, per_node=4, between=1e8), batch=32)
    slower = [option for option in guide.options if option.deciding]
    assert slower
    for option in slower:
        assert all(term.seconds > term.best_seconds for term in option.deciding)


def test_a_disagreement_without_a_plan_of_the_guide_says_so() -> None:
    guide = guide_of(fix={"tensor_parallel_size": "2"}, cluster=make_cluster(per_node=4))
    assert not guide.agrees
    assert "none of the guide's strategies has a plan" in (guide.disagreement or "")


@pytest.mark.parametrize(
    ("between", "words"), [(1e9, r"\d\.\d% faster, because of"), (1e8, r"\d\.\d\d times as fast, because of")]
)
def test_a_small_difference_is_a_percentage_and_a_large_one_a_factor(between: float, words: str) -> None:
    model = {} if between == 1e9 else {"model": LARGE}
    guide = guide_of(**model, cluster=make_cluster(nodes=2, per_node=4, between=between), batch=32)
    assert not guide.agrees
    assert re.search(words, guide.disagreement or "")

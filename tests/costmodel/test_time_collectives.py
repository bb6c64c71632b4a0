"""Collectives over a hierarchy: closed forms, shared network cards, gloo, and the law that bandwidth never hurts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from time_worlds import cluster, device, link

from costmodel.collectives import (
    all_gather_bytes,
    all_gather_seconds,
    all_reduce_bytes,
    all_reduce_seconds,
    all_to_all_seconds,
    boundary_seconds,
    group,
    link_rate,
    network,
    reduce_scatter_bytes,
    reduce_scatter_seconds,
    waiting_group,
)
from costmodel.specs import LevelSpec

MESSAGE = np.array([1e9])
OPERATIONS = (all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds)


def members(machine, *, size, stride=1, devices=None):
    count = machine.num_devices if devices is None else devices
    return group(
        network(machine),
        size=np.array([float(size)]),
        stride=np.array([float(stride)]),
        devices=np.array([float(count)]),
    )


def test_ring_inside_a_node():
    machine = cluster(nodes=1, inside=1e11, latency=1e-6)
    ring = members(machine, size=8)
    assert all_gather_seconds(ring, MESSAGE)[0] == pytest.approx(7 / 8 * 1e9 / 1e11 + 7e-6)
    assert reduce_scatter_seconds(ring, MESSAGE)[0] == pytest.approx(7 / 8 * 1e9 / 1e11 + 7e-6)
    assert all_reduce_seconds(ring, MESSAGE)[0] == pytest.approx(2 * (7 / 8 * 1e9 / 1e11 + 7e-6))
    assert all_gather_bytes(ring, MESSAGE)[0] == reduce_scatter_bytes(ring, MESSAGE)[0] == 7 / 8 * 1e9
    assert all_reduce_bytes(ring, MESSAGE)[0] == 2 * 7 / 8 * 1e9


def test_a_group_of_one_talks_to_nobody():
    alone = members(cluster(), size=1)
    for operation in OPERATIONS:
        assert operation(alone, MESSAGE)[0] == 0


def test_a_ring_over_whole_nodes_drives_all_network_cards():
    """Eight members per node on eight cards: the node's cards together, or the inner link where that is slower."""
    wide = members(cluster(nodes=4, inside=1e11, across=1e10), size=32)
    assert wide.bytes_per_second[0] == pytest.approx(8e10)
    bound_inside = members(cluster(nodes=4, inside=5e10, across=1e10), size=32)
    assert bound_inside.bytes_per_second[0] == pytest.approx(5e10)


def test_groups_on_one_node_share_its_cards():
    """Data parallel beside tensor parallel 8: eight groups with one member per node, one card each."""
    machine = cluster(nodes=4, across=1e10)
    assert members(machine, size=4, stride=8).bytes_per_second[0] == pytest.approx(1e10)
    assert members(machine, size=8, stride=4).bytes_per_second[0] == pytest.approx(2e10)
    few = cluster(nodes=4, across=1e10, ports=4)
    assert members(few, size=4, stride=8).bytes_per_second[0] == pytest.approx(0.5e10)
    # Only two devices of each node take part in the job: each still has its own card.
    assert members(cluster(nodes=4, per_node=2, across=1e10), size=4, stride=2).bytes_per_second[0] == pytest.approx(
        1e10
    )


def test_latency_counts_hops_per_level_and_trees_serve_all_reduces_only():
    machine = cluster(nodes=16, latency=1e-5)
    wide = members(machine, size=128)
    assert wide.ring_latency_seconds[0] == pytest.approx((7 + 15) * 1e-5)
    assert wide.tree_latency_seconds[0] == pytest.approx((7 + 4) * 1e-5)
    assert all_gather_seconds(wide, np.array([0.0]), 3.0)[0] == pytest.approx(3 * 22e-5)
    assert all_reduce_seconds(wide, np.array([0.0]), 3.0)[0] == pytest.approx(3 * 2 * 11e-5)


def test_a_group_waits_for_its_last_rank_once_per_phase_and_doubling():
    ring = members(cluster(nodes=4, inside=1e11, across=1e10, latency=1e-6), size=8)
    late = waiting_group(ring, 1e-4)
    for operation, phases in zip(OPERATIONS, (1, 2, 1), strict=True):
        wait = operation(late, MESSAGE, 5.0) - operation(ring, MESSAGE, 5.0)
        assert wait[0] == pytest.approx(5 * phases * 3 * 1e-4)
    assert all_reduce_seconds(waiting_group(members(cluster(), size=1), 1e-4), MESSAGE)[0] == 0


def test_processes_of_gloo_do_not_wait_beyond_what_was_measured():
    ring = members(cluster(nodes=1, per_node=4, of=device(kind="cpu")), size=4)
    assert waiting_group(ring, 1e-4) is ring


def test_three_levels_and_oversubscription():
    machine = cluster(nodes=4, across=1e10)
    rack = LevelSpec(name="racks", size=2, link=link(1e10), ports=32, oversubscription=4.0)
    machine = machine.model_copy(update={"levels": (*machine.levels, rack)})
    assert link_rate(rack) == pytest.approx(2.5e9)
    wide = members(machine, size=64)
    assert wide.bytes_per_second[0] == pytest.approx(32 * 2.5e9)
    assert wide.level[0] == 1  # 8 cards of a node are as slow as 32 oversubscribed ones: the first level wins the tie
    assert members(machine, size=2, stride=32).bytes_per_second[0] == pytest.approx(2.5e9)


def test_a_misaligned_group_is_priced_where_it_straddles_nodes():
    machine = cluster(nodes=4, inside=1e11, across=1e10)
    assert members(machine, size=8).bytes_per_second[0] == pytest.approx(1e11)
    assert members(machine, size=6).bytes_per_second[0] < 1e11


def test_a_measured_rate_is_preferred():
    machine = cluster(nodes=1)
    measured = machine.levels[0].model_copy(update={"link": link(1e11, measured=3e10)})
    assert link_rate(measured) == 3e10
    assert link_rate(measured.model_copy(update={"link": link(1e11).model_copy(update={"efficiency": 0.5})})) == 5e10


def test_gloo_reduces_and_scatters_at_the_price_of_an_all_reduce():
    machine = cluster(nodes=1, per_node=4, of=device(kind="cpu"))
    ring = members(machine, size=4)
    assert reduce_scatter_seconds(ring, MESSAGE)[0] == all_reduce_seconds(ring, MESSAGE)[0]
    assert reduce_scatter_bytes(ring, MESSAGE)[0] == all_reduce_bytes(ring, MESSAGE)[0]
    assert all_gather_seconds(ring, MESSAGE)[0] < all_reduce_seconds(ring, MESSAGE)[0]


def test_two_processes_of_gloo_gather_in_turns():
    """Three halves of the bytes follow one another; in a larger ring, and on GPUs, both directions run at once."""
    for kind, size, turns in (("cpu", 2, 1.5), ("cpu", 4, 1.0), ("cuda", 2, 1.0)):
        ring = members(cluster(nodes=1, per_node=4, inside=1e9, latency=0.0, of=device(kind=kind)), size=size)
        assert all_gather_seconds(ring, MESSAGE)[0] == pytest.approx(turns * (size - 1) / size)
        assert all_gather_bytes(ring, MESSAGE)[0] == (size - 1) / size * 1e9


def test_gloo_exchanges_in_turns():
    for kind, turns in (("cpu", 2.0), ("cuda", 1.0)):
        everyone = members(cluster(nodes=1, per_node=4, inside=1e9, latency=0.0, of=device(kind=kind)), size=4)
        assert all_to_all_seconds(everyone, MESSAGE)[0] == pytest.approx(turns * 3 / 4)


def test_messages_between_pipeline_ranks_use_the_link_they_cross():
    machine = cluster(nodes=2, inside=1e11, across=1e10, latency=0.0)
    seconds = boundary_seconds(network(machine), message_bytes=np.array([1e9]), stride=np.array([4.0]), ranks=4)
    # Ranks 0, 1 share node 0 and ranks 2, 3 node 1; the last column goes back from rank 3 to rank 0.
    assert seconds[0] == pytest.approx([1e9 / 1e11, 1e9 / 1e10, 1e9 / 1e11, 1e9 / 1e10])
    few = cluster(nodes=2, inside=1e11, across=1e10, ports=2, latency=0.0)
    shared = boundary_seconds(network(few), message_bytes=np.array([1e9]), stride=np.array([4.0]), ranks=4)
    assert shared[0, 1] == pytest.approx(2e9 / 1e10)


rates = st.floats(1e8, 1e12)


@given(
    inside=rates,
    across=rates,
    factor=st.floats(1.0, 100.0),
    size=st.sampled_from([1, 2, 3, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 4, 8]),
    ports=st.sampled_from([1, 4, 8, 16]),
)
def test_more_bandwidth_never_slows_a_collective(inside, across, factor, size, stride, ports):
    shape = {"nodes": 32, "ports": ports}
    slow = members(cluster(inside=inside, across=across, **shape), size=size, stride=stride)
    for better in ({"inside": inside * factor, "across": across}, {"inside": inside, "across": across * factor}):
        fast = members(cluster(**better, **shape), size=size, stride=stride)
        for operation in OPERATIONS:
            assert operation(fast, MESSAGE)[0] <= operation(slow, MESSAGE)[0]

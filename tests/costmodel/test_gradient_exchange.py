"""Ring all-reduce and parameter server, against formulas written out by hand."""

from __future__ import annotations

import pytest

from costmodel.gradient_exchange import gradient_exchange
from costmodel.models.loader import load_model
from costmodel.models.parameters import num_parameters
from costmodel.specs import GradientExchange, OptimizerSpec, PrecisionSpec, TrainingSpec
from hardware_profiles.loader import load_cluster

MODEL = load_model("gpt2")
PRECISION = PrecisionSpec(compute="bf16", parameter="fp32", gradient="fp32", reduce="fp32", master=None, state="fp32")
HELD = 4 * num_parameters(MODEL)


def exchange(cluster: str) -> GradientExchange:
    found = load_cluster(cluster)
    training = TrainingSpec(global_batch_size=64, sequence_length=128, precision=PRECISION, optimizer=OptimizerSpec())
    made = gradient_exchange(MODEL, found, training)
    assert made is not None
    return made


def rate(cluster: str, level: int) -> float:
    link = load_cluster(cluster).levels[level].link
    return link.measured_bytes_per_second or link.efficiency * link.nominal_bytes_per_second


def test_inside_a_node_the_ring_sends_as_much_as_servers_everywhere() -> None:
    made, link = exchange("8xA100-SXM-80GB"), rate("8xA100-SXM-80GB", 0)
    assert made.num_devices == 8
    assert made.gradient_bytes == HELD
    assert made.ring_seconds == pytest.approx(2 * 7 / 8 * HELD / link)
    assert made.server_seconds == pytest.approx(8 * HELD / link)
    assert made.sharded_seconds == pytest.approx(made.ring_seconds)
    assert made.server_link == load_cluster("8xA100-SXM-80GB").levels[0].link.name


def test_between_nodes_a_ring_adds_up_inside_the_node_first() -> None:
    # 4 nodes of 8 devices with 8 ports: a ring uses all ports for one gradient; workers push one gradient each.
    name = "4x8xA100-SXM-80GB"
    made, port = exchange(name), rate(name, 1)
    assert load_cluster(name).levels[1].ports == 8
    assert made.ring_seconds == pytest.approx(2 * 31 / 32 * HELD / (8 * port))
    assert made.server_seconds == pytest.approx(32 * HELD / (8 * port))
    # Of the 31/32 that a device pushes, 24/32 leave the node, through a port of its own.
    assert made.sharded_seconds == pytest.approx(2 * 24 / 32 * HELD / port)


@pytest.mark.parametrize("cluster", ["2xH100-SXM", "8xRTX-4090", "2x8xH100-SXM", "16x8xA100-SXM-80GB"])
def test_the_ring_is_never_slower(cluster: str) -> None:
    made = exchange(cluster)
    assert made.ring_seconds <= made.sharded_seconds * (1 + 1e-12)
    assert made.ring_seconds < made.server_seconds
    assert made.ring_seconds == pytest.approx(
        2 * (made.num_devices - 1) / made.num_devices * made.gradient_bytes / made.ring_bytes_per_second
    )


def test_a_server_alone_grows_with_the_devices_and_a_ring_does_not() -> None:
    few, many = exchange("2x8xH100-SXM"), exchange("16x8xH100-SXM")
    assert many.server_seconds == pytest.approx(8 * few.server_seconds)
    assert many.ring_seconds / few.ring_seconds == pytest.approx((127 / 128) / (15 / 16))


def test_directions_take_turns_in_gloos_exchange() -> None:
    made, link = exchange("4xcpu"), rate("4xcpu", 0)
    assert made.ring_seconds == pytest.approx(2 * 3 / 4 * HELD / link)
    assert made.sharded_seconds == pytest.approx(2 * made.ring_seconds)


def test_one_device_exchanges_nothing() -> None:
    training = TrainingSpec(global_batch_size=64, sequence_length=128, precision=PRECISION, optimizer=OptimizerSpec())
    assert gradient_exchange(MODEL, load_cluster("1xA100-SXM-80GB"), training) is None

"""Both orders of mesh axes in a search: where they are candidates, which of them wins, and what is said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planner_worlds import make_cluster, make_model, plan_space, recommend

from costmodel.estimate import step_seconds
from costmodel.runtimes.grid import DATA_OUTERMOST
from costmodel.specs import AXIS_ORDERS, DEFAULT_AXIS_ORDER, InputError
from planner.axis_orders import SHARE, message_share, orders_differ
from planner.space import declare_space, describe_space
from planner.summary import summarize

MODEL = make_model(layers=8, hidden=512, feed_forward=2048)
# Two nodes of four: a pipeline of four fits in one.
SLOW = make_cluster(nodes=2, per_node=4, between=5e7, latency=0.0)
FIX = {"tensor_parallel_size": "1", "pipeline_parallel_size": "4", "pipeline_schedule": "1f1b", "recompute": "none"}
WORLD: dict[str, Any] = {"model": MODEL, "cluster": SLOW, "batch": 256, "sequence": 2048, "fix": FIX}


def orders_of(space: Any) -> set[int]:
    return set(space.grid.axis_order.tolist())


def test_pipelines_stay_in_a_node_where_their_messages_are_dearer_than_gradients() -> None:
    space = plan_space(**WORLD)
    assert orders_of(space) == {0, 1}
    found = recommend(space)
    assert found.best.axis_order == AXIS_ORDERS["data_outermost"]
    assert summarize(found.best).endswith(" data-outermost")
    # The same plan in the other order is priced beside it, as the estimator prices it.
    (other,) = [each for each in found.neighbours if each.axis == "axis_order"]
    moved = found.best.model_copy(update={"axis_order": DEFAULT_AXIS_ORDER})
    assert other.value == "pipeline_outermost"
    assert other.step_time_seconds is not None
    assert other.step_time_seconds > found.certificate.upper_seconds
    assert other.step_time_seconds <= step_seconds(moved, space.context.runtime) * (1 + 1e-9)
    fixed = recommend(plan_space(**{**WORLD, "fix": {**FIX, "axis_order": "pipeline_outermost"}}))
    assert fixed.best.axis_order == DEFAULT_AXIS_ORDER
    assert fixed.certificate.upper_seconds > found.certificate.upper_seconds


def test_gradients_stay_in_a_node_where_they_are_dearer() -> None:
    found = recommend(plan_space(**{**WORLD, "batch": 8, "sequence": 128}))
    assert found.best.axis_order == DEFAULT_AXIS_ORDER
    assert "outermost" not in summarize(found.best)
    (other,) = [each for each in found.neighbours if each.axis == "axis_order"]
    assert other.value == "data_outermost"
    assert other.slowdown is not None
    assert other.slowdown > 0


def test_the_default_is_preferred_where_both_cost_the_same() -> None:
    """Equal links in and between nodes."""
    equal = make_cluster(nodes=2, per_node=4, inside=1e9, between=1e9, latency=0.0)
    allow = {"axis_order": "data_outermost,pipeline_outermost", "zero_stage": "0"}
    context = plan_space(**{**WORLD, "cluster": equal, "allow": allow}).context
    flat = {"wide_group_growth": context.runtime.constants["wide_group_growth"].model_copy(update={"value": 0.0})}
    runtime = context.runtime.model_copy(update={"constants": {**context.runtime.constants, **flat}})
    space = declare_space(context.model, equal, context.training, runtime, fix=FIX, allow=allow)
    assert orders_of(space) == {0, 1}
    assert recommend(space).best.axis_order == DEFAULT_AXIS_ORDER


def test_one_order_where_they_are_the_same() -> None:
    """One node, a group that fills the node, no pipeline, one pipeline; then what is stated stands for all."""
    assert not orders_differ(make_cluster(nodes=1), 1, 4, 2)
    assert not orders_differ(SLOW, 4, 2, 1)
    assert not orders_differ(make_cluster(nodes=4, per_node=4), 4, 2, 2)
    assert not orders_differ(SLOW, 1, 1, 8)
    assert orders_differ(SLOW, 1, 4, 2)
    assert orders_differ(SLOW, 2, 2, 2)
    assert orders_of(plan_space(model=MODEL, cluster=make_cluster(), batch=32)) == {0}
    for words, codes in (("data_outermost", {1}), ("pipeline_outermost", {0})):
        stated = plan_space(model=MODEL, cluster=make_cluster(), batch=32, fix={"axis_order": words})
        assert orders_of(stated) == codes


def test_the_second_order_joins_where_messages_are_not_small() -> None:
    """2 messages of h elements a token against 6 N / (p t) FLOP at the peak."""
    for rate in (25e9, 5e7):
        cluster = make_cluster(nodes=2, per_node=4, between=rate, latency=0.0)
        wide = make_model(layers=32, hidden=4096, heads=32, key_values=32, feed_forward=16384, vocab=32000)
        space = plan_space(model=wide, cluster=cluster, batch=64)
        rows = np.flatnonzero(space.grid.axis_order == DATA_OUTERMOST)
        sizes = {
            tuple(int(getattr(space.grid, f"{name}_size")[row]) for name in ("tensor_parallel", "pipeline_parallel"))
            for row in range(len(space.grid))
        }
        second = {
            (int(space.grid.tensor_parallel_size[row]), int(space.grid.pipeline_parallel_size[row])) for row in rows
        }
        for tensor, pipeline in sizes:
            data = 8 // (tensor * pipeline)
            share = message_share(space.context, tensor=tensor, cut=1, pipeline=pipeline, data=data)
            worth = orders_differ(cluster, tensor, pipeline, data) and share >= SHARE
            assert ((tensor, pipeline) in second) == worth
        assert bool(len(rows)) == (rate < 1e9)
        stated = plan_space(
            model=wide, cluster=cluster, batch=64, allow={"axis_order": "pipeline_outermost,data_outermost"}
        )
        assert orders_of(stated) == {0, 1}


def test_message_share_by_hand() -> None:
    """Two ranks of four devices on one card each way: 2 x 2 h bytes a token at 0.8 x 5e7 / 4 bytes per second a device."""
    from costmodel.models.parameters import num_parameters

    context = plan_space(**WORLD).context
    cards = context.cluster.levels[1].ports
    rate = 0.8 * 5e7 * min(1.0, cards / 4)
    expected = 2 * 2 * 512 / rate / (6 * num_parameters(MODEL) / 2 / 300e12)
    assert message_share(context, tensor=1, cut=1, pipeline=2, data=4) == pytest.approx(expected)


def test_the_certificate_lists_the_axis() -> None:
    (axis,) = [each for each in describe_space(plan_space(**WORLD)) if each.axis == "axis_order"]
    assert axis.values == ("pipeline_outermost", "data_outermost")


def test_wrong_orders_are_told_with_the_right_ones() -> None:
    with pytest.raises(InputError, match="axis_order is 'tp_outermost'; valid: pipeline_outermost, data_outermost"):
        plan_space(**{**WORLD, "fix": {**FIX, "axis_order": "tp_outermost"}})
    with pytest.raises(
        InputError, match="runtime deepspeed does not support axis_order data_outermost; supported: pipe"
    ):
        plan_space(model=MODEL, cluster=SLOW, batch=64, runtime="deepspeed", fix={"axis_order": "data_outermost"})

"""Where the order of mesh axes is worth searching.

Either order puts some groups on faster links and others on slower ones: with the pipeline outermost a rank's replicas are
neighbours and its messages leave the node, with data outermost a pipeline's ranks are neighbours and its gradients do. The second
order is searched where

    (1) some group is on another level of the cluster in it: several pipelines of several ranks, on more devices than a unit of a
        level has, and tensor- and context-parallel groups, inside both, that do not fill whole units
    (2) messages are not small beside what they wait for. Of a sequence of s tokens a rank of a model of N parameters computes at
        most at the device's peak for 6 N s / (p t c) FLOP, forward and backward, and sends 2 messages of s h / c elements; the
        order is left out where these take less than `SHARE` of it with the pipeline outermost. That is a choice of what is
        declared, no bound: one message may be waited for more than once

Stated orders are not held to (2).
"""

from __future__ import annotations

import numpy as np

from costmodel.collectives import boundary_seconds, network
from costmodel.models.parameters import num_parameters
from costmodel.runtimes.axis_orders import AXIS_ORDER_WORDS
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import BYTES_PER_ELEMENT, ClusterSpec

SHARE = 0.05


def order_values(
    context: RuleContext, stated: tuple[int, ...] | None, *, tensor: int, cut: int, pipeline: int, data: int
) -> tuple[int, ...]:
    """Orders to search for candidates of these sizes, as indices into `AXIS_ORDER_WORDS`; the default where they are equal.

    Args:
        context: model, cluster, training, runtime.
        stated: the values that the user declared; None for what the runtime has.
        tensor: tensor-parallel size.
        cut: context-parallel size.
        pipeline: pipeline-parallel size.
        data: data-parallel size.
    """
    values = stated or tuple(AXIS_ORDER_WORDS.index(word) for word in context.runtime.axis_orders)
    if len(values) == 1 or not orders_differ(context.cluster, tensor * cut, pipeline, data):
        return (min(values),)
    worth = stated is not None or message_share(context, tensor=tensor, cut=cut, pipeline=pipeline, data=data) >= SHARE
    return values if worth else (min(values),)


def orders_differ(cluster: ClusterSpec, within: int, pipeline: int, data: int) -> bool:
    """Condition (1); ``within``: tensor x context parallel size."""
    devices, unit, differ = within * pipeline * data, 1, False
    for level in cluster.levels:
        unit *= level.size
        differ |= unit < devices and within % unit != 0
    return differ and pipeline > 1 and data > 1


def message_share(context: RuleContext, *, tensor: int, cut: int, pipeline: int, data: int) -> float:
    """Seconds of messages with the pipeline outermost over the least seconds of computation beside them, condition (2)."""
    model, training, device = context.model, context.training, context.cluster.device
    peak = device.peak_flops_per_second.get(training.precision.compute)
    if peak is None:
        return 0.0
    elements = training.sequence_length * model.hidden_size / cut
    sent = boundary_seconds(
        network(context.cluster),
        message_bytes=np.array([elements * float(BYTES_PER_ELEMENT[training.precision.compute])]),
        stride=np.array([float(tensor * cut * data)]),
        ranks=pipeline,
    )
    computed = 6.0 * num_parameters(model) * training.sequence_length / (pipeline * tensor * cut) / peak
    return float(2.0 * sent.max() / computed)

"""Two ways to sum gradients over n devices: a ring all-reduce and a parameter server (Li et al., OSDI 2014).

B bytes of gradients on every device; rates are those of collectives.py, seconds leave latency out.

    (1) ring all-reduce: every device sends 2 (n - 1)/n B                       2 (n - 1)/n B / ring rate
        (Patarasuk and Yuan 2009, section 3: no algorithm sends less)
    (2) one server: n gradients arrive at its node and n copies of the parameters leave it. Pushes of one layer run
        beside pulls of another, which is the most that full-duplex ports can do      n B / rate of one node's ports
    (3) a server on every device, each with 1/n of the parameters: every device sends (n - 1)/n B of pushes and as much
        in answer to pulls, as much as in the ring, but to all others            2 (n - 1)/n B / exchange rate

Gradients and parameters travel in the same format. The ring adds up inside a node before anything leaves it; a server's
workers push one by one, which is why (3) loses to (1) where devices share a node's ports.
"""

from __future__ import annotations

import numpy as np

from costmodel.collectives import all_reduce_seconds, all_to_all_seconds, group, link_rate, network
from costmodel.models.parameters import num_parameters
from costmodel.specs import BYTES_PER_ELEMENT, ClusterSpec, GradientExchange, ModelSpec, TrainingSpec


def gradient_exchange(model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec) -> GradientExchange | None:
    """Equations (1) to (3) for the whole model over all devices; None on one device, which sums nothing."""
    devices = cluster.num_devices
    if devices == 1:
        return None
    column = np.array([float(devices)])
    everyone = group(network(cluster), size=column, stride=np.ones(1), devices=column)
    way_in = cluster.levels[min(1, len(cluster.levels) - 1)]
    server = link_rate(way_in) * way_in.ports
    held = num_parameters(model) * BYTES_PER_ELEMENT[training.precision.reduce]
    total, sent = np.array([float(held)]), 2 * (devices - 1) / devices * held
    ring = float(all_reduce_seconds(everyone, total, 0.0)[0])
    sharded = 2 * float(all_to_all_seconds(everyone, total, 0.0)[0])
    return GradientExchange(
        num_devices=devices,
        gradient_bytes=held,
        ring_bytes_per_second=sent / ring,
        ring_seconds=ring,
        server_link=way_in.link.name,
        server_bytes_per_second=server,
        server_seconds=devices * held / server,
        sharded_bytes_per_second=sent / sharded,
        sharded_seconds=sharded,
    )

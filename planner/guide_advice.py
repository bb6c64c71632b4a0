"""Which branch of the decision guide the facts lead to, and its ordered list of strategies.

Every question is answered by a computed number (guide_facts.py), never by a constant.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.specs import GuideStep
from planner.candidates import GIB
from planner.guide_facts import Facts
from planner.guide_options import SOURCE

Options = tuple[tuple[str, str], ...]


class Advice(NamedTuple):
    """A branch of the document: the questions asked on the way and the ordered list of (strategy, reason)."""

    branch: str
    steps: tuple[GuideStep, ...]
    options: Options


def advise(facts: Facts) -> Advice:
    """The branch of the document that the facts lead to."""
    if facts.num_devices == 1:
        return _single_device(facts)
    if facts.num_devices <= facts.devices_per_node:
        return _single_node(facts)
    return _multi_node(facts)


def _step(question: str, yes: bool, **numbers: float | int | str) -> GuideStep:
    return GuideStep(question=question, answer="yes" if yes else "no", numbers=numbers, source=SOURCE)


def _device_step(facts: Facts) -> GuideStep:
    return _step(
        "Does the model fit into one device?",
        facts.fits_device,
        needed_bytes=facts.one_device_bytes,
        capacity_bytes=facts.capacity_bytes,
    )


def _layer_step(facts: Facts) -> GuideStep:
    return _step(
        "Does the largest layer fit into one device?",
        facts.largest_layer_fits,
        training_state_bytes=facts.largest_layer_bytes,
        gathered_bytes=facts.gathered_layer_bytes,
        capacity_bytes=facts.capacity_bytes,
    )


def _single_device(facts: Facts) -> Advice:
    first = _device_step(facts)
    if facts.fits_device:
        return Advice("single device, the model fits", (first,), (("normal use", "the model fits into the device"),))
    over = (facts.one_device_bytes - facts.capacity_bytes) / GIB
    offload = (
        "ZeRO + offload to CPU and optionally NVMe",
        f"{over:.1f} GiB too little on the device; not modelled yet",
    )
    tiling = (
        "memory-centric tiling",
        "for the largest layer: cuts gathered parameters, not activations; not modelled yet",
    )
    steps = (first, _layer_step(facts))
    if facts.gathered_layer_fits:
        return Advice("single device, the model does not fit", steps, (offload, tiling))
    return Advice("single device, the largest layer does not fit", steps, (tiling, offload))


def _single_node(facts: Facts) -> Advice:
    first = _device_step(facts)
    if facts.fits_device:
        options: Options = (
            ("DDP", "every device holds the whole model; gradients are all-reduced"),
            ("ZeRO", "may or may not be faster, depending on the situation and configuration"),
        )
        return Advice("single node, the model fits into one device", (first,), options)
    steps = (first, _layer_step(facts))
    if not facts.largest_layer_fits:
        options = (
            (
                "TP",
                "without ZeRO, tensor parallelism is a must: pipeline parallelism alone cannot hold the largest layer",
            ),
            ("ZeRO", "gathers one layer at a time" + ("" if facts.gathered_layer_fits else ", which needs tiling")),
            ("memory-centric tiling", "with ZeRO, for a layer too large to gather; not modelled yet"),
        )
        return Advice("single node, the largest layer does not fit into one device", steps, options)
    options = (
        ("PP", "on par with ZeRO and TP over NVLink or NVSwitch, faster than both without"),
        ("ZeRO", "on par over NVLink or NVSwitch; no change to the model"),
        ("TP", "on par over NVLink or NVSwitch; the degree makes a difference; stay inside the node"),
    )
    return Advice("single node, the model does not fit into one device", steps, options)


def _multi_node(facts: Facts) -> Advice:
    link = facts.link
    if link is None:
        raise ValueError("a cluster of several nodes has a link between them")
    fits_node = _step(
        "Does the model fit into one node?",
        facts.fits_node,
        needed_bytes=facts.one_node_bytes if facts.one_node_bytes is not None else "no valid plan",
        capacity_bytes=facts.capacity_bytes,
    )
    speed = _step(
        "Is the link between nodes fast enough to hide ZeRO-3's traffic behind computation?",
        link.fast,
        link=link.name,
        communication_seconds=link.communication_seconds,
        compute_seconds=link.compute_seconds,
        link_bytes_per_second=link.link_bytes_per_second,
        crossover_bytes_per_second=link.crossover_bytes_per_second,
        num_micro_batches=link.num_micro_batches,
    )
    first = ("ZeRO with multiple replicas", "ZeRO over the fast links of a node, data parallelism over the slow ones")
    replicas = (first,) if facts.fits_node else ()
    place = "the model fits into one node" if facts.fits_node else "the model does not fit into one node"
    if link.fast:
        options = (
            ("ZeRO", "close to no modifications to the model"),
            ("PP+TP+DP", "less communication, but massive changes to the model"),
        )
        return Advice(f"multi node, {place}, fast links", (fits_node, speed), (*replicas, *options))
    slow = f"{link.communication_seconds:.3g} s of ZeRO-3 traffic against {link.compute_seconds:.3g} s of computation"
    last = ("DP+PP+TP+ZeRO-1", f"slow links ({slow}) and low device memory")
    return Advice(f"multi node, {place}, slow links", (fits_node, speed, _device_step(facts)), (*replicas, last))

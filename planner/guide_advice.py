"""Which branch of the decision guide the facts lead to, and its ordered list of strategies.

`BRANCHES` are the document's, each a named rule: the section it comes from, the facts under which it holds (exactly one
does), the questions asked on the way and the list. Where several devices train on long sequences, each asks about them too, and
lists context parallelism last, because it goes with all others: the document's sequence parallelism, which splits the
processing of one sequence over several devices. Every question is answered by a computed number (guide_facts.py), never by a
constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from costmodel.specs import GuideStep
from planner.candidates import GIB
from planner.context_values import LEAST_TOKENS
from planner.guide_facts import Facts, LinkSpeed
from planner.guide_options import SOURCE

Options = tuple[tuple[str, str], ...]
Question = Callable[[Facts], GuideStep]


class Advice(NamedTuple):
    """A branch of the document: its section, the questions asked on the way and the ordered list of (strategy, reason)."""

    branch: str
    source: str
    steps: tuple[GuideStep, ...]
    options: Options


class Branch(NamedTuple):
    """One branch: it holds for some facts, and lists (strategy, reason) for them."""

    name: str
    section: str
    holds: Callable[[Facts], bool]
    questions: tuple[Question, ...]
    options: Callable[[Facts], Options]


def advise(facts: Facts) -> Advice:
    """The branch of the document that the facts lead to.

    Raises:
        ValueError: when a cluster of several nodes comes without the link between them.
    """
    branch = next(branch for branch in BRANCHES if branch.holds(facts))
    steps, options = tuple(question(facts) for question in branch.questions), branch.options(facts)
    if facts.num_devices > 1 and facts.long_sequences:
        steps, options = (*steps, _long_sequences(facts)), (*options, _cut(facts))
    return Advice(branch.name, f"{SOURCE}: {branch.section}", steps, options)


def _step(question: str, yes: bool, **numbers: float | int | str) -> GuideStep:
    return GuideStep(question=question, answer="yes" if yes else "no", numbers=numbers, source=SOURCE)


def _fits_device(facts: Facts) -> GuideStep:
    return _step(
        "Does the model fit into one device?",
        facts.fits_device,
        needed_bytes=facts.one_device_bytes,
        capacity_bytes=facts.capacity_bytes,
    )


def _largest_layer(facts: Facts) -> GuideStep:
    return _step(
        "Does the largest layer fit into one device?",
        facts.largest_layer_fits,
        training_state_bytes=facts.largest_layer_bytes,
        gathered_bytes=facts.gathered_layer_bytes,
        capacity_bytes=facts.capacity_bytes,
    )


def _fits_node(facts: Facts) -> GuideStep:
    return _step(
        "Does the model fit into one node?",
        facts.fits_node,
        needed_bytes=facts.one_node_bytes if facts.one_node_bytes is not None else "no valid plan",
        capacity_bytes=facts.capacity_bytes,
    )


def _fast_link(facts: Facts) -> GuideStep:
    link = _link(facts)
    return _step(
        "Is the link between nodes fast enough to hide ZeRO-3's traffic behind computation?",
        link.fast,
        link=link.name,
        communication_seconds=link.communication_seconds,
        compute_seconds=link.compute_seconds,
        link_bytes_per_second=link.link_bytes_per_second,
        crossover_bytes_per_second=link.crossover_bytes_per_second,
        num_micro_batches=link.num_micro_batches,
    )


def _long_sequences(facts: Facts) -> GuideStep:
    return _step(
        "Are sequences long enough for several devices to share one?",
        facts.long_sequences,
        sequence_length=facts.sequence_length,
        least_tokens_of_a_device=LEAST_TOKENS,
    )


def _cut(facts: Facts) -> tuple[str, str]:
    why = f"context parallelism cuts each of the {facts.sequence_length} tokens long sequences over several devices"
    return "CP", f"{why}; {facts.why_not_cut or 'goes with the others'}"


def _link(facts: Facts) -> LinkSpeed:
    if facts.link is None:
        raise ValueError("a cluster of several nodes has a link between them")
    return facts.link


def _on_one_device(facts: Facts) -> bool:
    return facts.num_devices == 1


def _on_one_node(facts: Facts) -> bool:
    return 1 < facts.num_devices <= facts.devices_per_node


def _on_nodes(facts: Facts, *, fits: bool, fast: bool) -> bool:
    several = facts.num_devices > facts.devices_per_node
    return several and facts.fits_node == fits and _link(facts).fast == fast


def _offload(facts: Facts) -> tuple[str, str]:
    over = (facts.one_device_bytes - facts.capacity_bytes) / GIB
    return "ZeRO + offload to CPU and optionally NVMe", f"{over:.1f} GiB too little on the device; not modelled yet"


def _cut_layer(facts: Facts) -> Options:
    gathers = "gathers one layer at a time" + ("" if facts.gathered_layer_fits else ", which needs tiling")
    must = "without ZeRO, tensor parallelism is a must: pipeline parallelism alone cannot hold the largest layer"
    tiling = ("memory-centric tiling", "with ZeRO, for a layer too large to gather; not modelled yet")
    return ("TP", must), ("ZeRO", gathers), tiling


def _slow(facts: Facts) -> tuple[str, str]:
    link = _link(facts)
    traffic = (
        f"{link.communication_seconds:.3g} s of ZeRO-3 traffic against {link.compute_seconds:.3g} s of computation"
    )
    return "DP+PP+TP+ZeRO-1", f"slow links ({traffic}) and low device memory"


_TILING = (
    "memory-centric tiling",
    "for the largest layer: cuts gathered parameters, not activations; not modelled yet",
)
_REPLICAS = ("ZeRO with multiple replicas", "ZeRO over the fast links of a node, data parallelism over the slow ones")
_ON_FAST_LINKS: Options = (
    ("ZeRO", "close to no modifications to the model"),
    ("PP+TP+DP", "less communication, but massive changes to the model"),
)
_WHOLE_MODELS: Options = (
    ("DDP", "every device holds the whole model; gradients are all-reduced"),
    ("ZeRO", "may or may not be faster, depending on the situation and configuration"),
)
_SPLIT_MODEL: Options = (
    ("PP", "on par with ZeRO and TP over NVLink or NVSwitch, faster than both without"),
    ("ZeRO", "on par over NVLink or NVSwitch; no change to the model"),
    ("TP", "on par over NVLink or NVSwitch; the degree makes a difference; stay inside the node"),
)
_ONE, _NODE, _NODES = "Single GPU", "Single Node / Multi-GPU", "Multi-Node / Multi-GPU"

BRANCHES: tuple[Branch, ...] = (
    Branch(
        "single device, the model fits", _ONE,
        lambda facts: _on_one_device(facts) and facts.fits_device,
        (_fits_device,),
        lambda _: (("normal use", "the model fits into the device"),),
    ),
    Branch(
        "single device, the model does not fit", _ONE,
        lambda facts: _on_one_device(facts) and not facts.fits_device and facts.gathered_layer_fits,
        (_fits_device, _largest_layer),
        lambda facts: (_offload(facts), _TILING),
    ),
    Branch(
        "single device, the largest layer does not fit", _ONE,
        lambda facts: _on_one_device(facts) and not facts.fits_device and not facts.gathered_layer_fits,
        (_fits_device, _largest_layer),
        lambda facts: (_TILING, _offload(facts)),
    ),
    Branch(
        "single node, the model fits into one device", _NODE,
        lambda facts: _on_one_node(facts) and facts.fits_device,
        (_fits_device,),
        lambda _: _WHOLE_MODELS,
    ),
    Branch(
        "single node, the model does not fit into one device", _NODE,
        lambda facts: _on_one_node(facts) and not facts.fits_device and facts.largest_layer_fits,
        (_fits_device, _largest_layer),
        lambda _: _SPLIT_MODEL,
    ),
    Branch(
        "single node, the largest layer does not fit into one device", _NODE,
        lambda facts: _on_one_node(facts) and not facts.fits_device and not facts.largest_layer_fits,
        (_fits_device, _largest_layer),
        _cut_layer,
    ),
    Branch(
        "multi node, the model fits into one node, fast links", _NODES,
        lambda facts: _on_nodes(facts, fits=True, fast=True),
        (_fits_node, _fast_link),
        lambda _: (_REPLICAS, *_ON_FAST_LINKS),
    ),
    Branch(
        "multi node, the model fits into one node, slow links", _NODES,
        lambda facts: _on_nodes(facts, fits=True, fast=False),
        (_fits_node, _fast_link, _fits_device),
        lambda facts: (_REPLICAS, _slow(facts)),
    ),
    Branch(
        "multi node, the model does not fit into one node, fast links", _NODES,
        lambda facts: _on_nodes(facts, fits=False, fast=True),
        (_fits_node, _fast_link),
        lambda _: _ON_FAST_LINKS,
    ),
    Branch(
        "multi node, the model does not fit into one node, slow links", _NODES,
        lambda facts: _on_nodes(facts, fits=False, fast=False),
        (_fits_node, _fast_link, _fits_device),
        lambda facts: (_slow(facts),),
    ),
)  # fmt: skip

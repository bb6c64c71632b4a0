"""Answers to questions that take more than one search: other objectives, the largest value, and how training scales.

Every search made on the way is kept as a `Trial` with its own bound, so that a reader can check the conclusion.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from costmodel.specs.miss import NearestMiss
from costmodel.specs.plan import Plan
from hardware_profiles.spec import Spec

ObjectiveName = Literal["step-time", "devices", "cost", "memory-headroom"]
Quantity = Literal["sequence_length", "micro_batch_size", "global_batch_size"]


class Trial(Spec):
    """One value that was tried.

    ``fits``: the space holds a plan that fits. ``lower_seconds``: no plan of it is faster; ``step_time_seconds``: of the
    fastest, None where the bound alone excluded the value. ``plan_summary`` and ``needed_bytes``: that plan, or the one
    that misses by least (None where every candidate breaks a rule, which ``reason`` then names).
    """

    value: PositiveInt
    candidates: NonNegativeInt
    fits: bool
    lower_seconds: NonNegativeFloat | None = None
    step_time_seconds: NonNegativeFloat | None = None
    plan_summary: str | None = None
    needed_bytes: NonNegativeInt | None = None
    reason: str = ""


class Objective(Spec):
    """What was optimised other than the step time, and what is proven about it.

    ``value`` is that of the best plan, ``bound`` what no plan of the searched space beats, ``gap`` their relative
    difference. Units: ``devices``; ``cost`` in units of money per 1e9 tokens; ``memory-headroom`` in bytes of a device.
    ``trials``: numbers of devices, or for memory-headroom the bytes that plans were held to. ``nearest_miss``: of the next
    smaller number of devices.
    """

    name: ObjectiveName
    value: NonNegativeFloat
    bound: NonNegativeFloat
    gap: NonNegativeFloat
    statement: str
    trials: tuple[Trial, ...] = ()
    price_per_device_hour: PositiveFloat | None = None
    within: NonNegativeFloat | None = None
    fastest_seconds: NonNegativeFloat | None = None
    nearest_miss: NearestMiss | None = None


class Maximum(Spec):
    """The largest value of one input for which the space holds a plan that fits.

    ``next_value`` was tried and does not fit; None at the largest value that may be stated, or where there is no other.
    ``nearest_miss``: of the next value, None where every candidate breaks a rule.
    """

    quantity: Quantity
    value: PositiveInt
    next_value: PositiveInt | None
    statement: str
    trials: tuple[Trial, ...]
    granularity: PositiveInt | None = None
    nearest_miss: NearestMiss | None = None


class ScalingPoint(Spec):
    """The best plan on some nodes.

    Devices are all of the nodes, idle ones included, because they are paid for. ``efficiency``: tokens/s per device over
    those of the smallest number of nodes that fits. ``marginal_efficiency``: tokens/s that the nodes added since the point
    before bring, over what they would bring at the per-device rate of that smallest number. Costs are None without a price,
    ``cost`` and ``training_seconds`` without a number of tokens. Where nothing fits, only ``reason`` and ``nearest_miss``.
    """

    num_nodes: PositiveInt
    num_devices: PositiveInt
    global_batch_size: PositiveInt
    best: Plan | None = None
    plan_summary: str | None = None
    step_time_seconds: NonNegativeFloat | None = None
    lower_seconds: NonNegativeFloat | None = None
    tokens_per_second: NonNegativeFloat | None = None
    tokens_per_second_per_device: NonNegativeFloat | None = None
    efficiency: NonNegativeFloat | None = None
    marginal_efficiency: float | None = None
    cost_per_billion_tokens: NonNegativeFloat | None = None
    cost: NonNegativeFloat | None = None
    training_seconds: NonNegativeFloat | None = None
    reason: str = ""
    nearest_miss: NearestMiss | None = None


class Scaling(Spec):
    """How training speeds up, and what it costs, from few nodes to many.

    ``batch``: ``fixed`` for every number of nodes, or ``per_node``. ``stops_paying_at``: the first number of nodes whose
    marginal efficiency is below ``marginal_efficiency_wanted``; None where none is. ``cheapest``: the number of nodes with
    the lowest cost per token, which needs no price because it has the most tokens/s per device.
    """

    batch: Literal["fixed", "per_node"]
    points: tuple[ScalingPoint, ...] = Field(min_length=1)
    marginal_efficiency_wanted: PositiveFloat
    stops_paying_at: PositiveInt | None
    cheapest: PositiveInt
    price_per_device_hour: PositiveFloat | None = None
    total_tokens: PositiveInt | None = None
    statement: str
    warnings: tuple[str, ...] = ()

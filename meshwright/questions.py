"""Which question is asked, and its own inputs: objectives, prices, and what to make as large as fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from costmodel.specs import (
    MAX_SEQUENCE_LENGTH,
    ClusterSpec,
    Infeasible,
    InputError,
    ObjectiveName,
    Quantity,
    Recommendation,
)
from hardware_profiles.errors import show_value
from hardware_profiles.units import parse_quantity
from meshwright.inputs import one_of, parse_share, whole_number
from meshwright.statement import Statement

if TYPE_CHECKING:
    from planner.inquiry import Inquiry

Answer = Recommendation | Infeasible
Progress = Callable[[str], None]
OBJECTIVES: tuple[str, ...] = get_args(ObjectiveName)
QUANTITIES: tuple[str, ...] = get_args(Quantity)
_WITHIN = 0.1


def make_inquiry(
    stated: Statement, *, top: int = 1, total_tokens: int | None = None, progress: Progress | None = None
) -> Inquiry:
    """What the planner is asked about."""
    from planner.inquiry import Inquiry

    inquiry = Inquiry(
        model=stated.model,
        cluster=stated.cluster,
        training=stated.training,
        runtime=stated.runtime,
        fix=stated.fix,
        allow=stated.allow,
        memory_limit=stated.memory_limit,
        top=top,
        total_tokens=total_tokens,
    )
    return inquiry if progress is None else inquiry.changed(report=progress)


def choose_objective(
    objective: str, *, price: float | str | None, within: float | str | None, cluster: ClusterSpec
) -> Callable[[Inquiry], Answer]:
    """The question behind an objective.

    Raises:
        InputError: for an unknown objective, ``cost`` without a price, and a price or ``within`` that another objective needs.
    """
    name = one_of("objective", objective, OBJECTIVES)
    if price is not None and name != "cost":
        raise InputError(f"price is for objective cost, found objective {name}; leave out the price, or ask for cost")
    if within is not None and name != "memory-headroom":
        raise InputError(
            f"within is for objective memory-headroom, found objective {name}; leave it out, or ask for memory-headroom"
        )
    from planner import fewer_devices, headroom, objectives

    if name == "cost":
        paid = device_price(price, cluster)
        if paid is None:
            raise InputError(
                f"objective cost needs the price of a device-hour, and {cluster.name} has none; give --price 2.5, or "
                "price_per_device_hour: 2.5 in the cluster file"
            )
        return lambda inquiry: objectives.cheapest(inquiry, paid)
    if name == "memory-headroom":
        share = _WITHIN if within is None else parse_share("within", within, example=_WITHIN)
        return lambda inquiry: headroom.most_headroom(inquiry, share)
    return objectives.fewest_devices if name == "devices" else fewer_devices.fastest


def device_price(price: float | str | None, cluster: ClusterSpec) -> float | None:
    """The price of a device-hour: the one stated, else the cluster's; None where neither is given.

    Raises:
        InputError: when it is no number above 0.
    """
    if price is None:
        return cluster.price_per_device_hour or None  # a price of 0 is none
    try:
        number = float(parse_quantity(price, None, "price"))
    except InputError:
        number = 0.0
    if number <= 0:
        raise InputError(
            f"price is {show_value(price)}; needed a number above 0, the price of a device-hour, such as 2.5"
        )
    return number


def choose_maximum(
    quantity: str, *, global_batch_size: object, sequence_length: object, granularity: int | None
) -> Callable[[Inquiry], Answer]:
    """The question behind a quantity to make as large as fits.

    Raises:
        InputError: for an unknown quantity, one that is stated all the same, a missing batch or length, and a granularity of
            anything but a sequence length.
    """
    name = one_of("quantity to maximize", quantity, QUANTITIES)
    stated = {"global_batch_size": global_batch_size, "sequence_length": sequence_length}
    if stated.get(name) is not None:
        raise InputError(
            f"{name} {show_value(stated[name])} is stated, and is what is maximized; leave one of them out"
        )
    missing = [other for other, value in stated.items() if value is None and other != name]
    if missing:
        raise InputError(f"maximizing {name} needs {' and '.join(missing)}; give it")
    if granularity is not None and name != "sequence_length":
        raise InputError(f"granularity is for sequence_length, found {name} to maximize; leave it out")
    step = None if granularity is None else whole_number("granularity", granularity, 1, MAX_SEQUENCE_LENGTH)
    from planner import maximize

    if name == "sequence_length":
        return lambda inquiry: maximize.longest_sequence(inquiry, step)
    return maximize.largest_micro_batch if name == "micro_batch_size" else maximize.largest_global_batch

"""The words for orders of mesh axes."""

from __future__ import annotations

from costmodel.specs import AXIS_ORDERS, Axis, AxisOrder, InputError

AXIS_ORDER_WORDS: tuple[AxisOrder, ...] = tuple(AXIS_ORDERS)


def axis_order_word(order: tuple[Axis, ...]) -> AxisOrder:
    """The word of an order of mesh axes.

    Raises:
        InputError: for one that is none of `AXIS_ORDERS`.
    """
    for word, axes in AXIS_ORDERS.items():
        if axes == order:
            return word
    valid = "; ".join(f"{', '.join(axes)} ({word})" for word, axes in AXIS_ORDERS.items())
    raise InputError(f"axis_order {', '.join(order)} is not supported; valid: {valid}")

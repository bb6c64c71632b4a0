"""Collectives of one kind as one call, and the bytes that one rank sends for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.collectives import Group, all_gather_bytes, all_reduce_bytes, reduce_scatter_bytes


@dataclass(frozen=True, slots=True)
class Call:
    """``count`` collectives over ``total_bytes`` of unsharded tensors, all calls together.

    Of a ``send`` and an ``all_to_all``: bytes of one rank. ``along``: devices of the axis, where they are not the group's.
    """

    axis: str
    op: str
    count: float
    total_bytes: float
    members: Group
    along: int | None = None

    @property
    def group_size(self) -> int:
        """Devices that take part in one call; for a message those of its axis."""
        return int(np.ravel(self.members.size)[0]) if self.along is None else self.along

    @property
    def sent_bytes(self) -> float:
        """Bytes one rank sends."""
        if self.op == "send":
            return self.total_bytes
        if self.op == "all_to_all":
            return float(np.ravel(self.members.fraction)[0]) * self.total_bytes
        sent = {"all_gather": all_gather_bytes, "all_reduce": all_reduce_bytes, "reduce_scatter": reduce_scatter_bytes}
        return float(np.ravel(sent[self.op](self.members, np.array([self.total_bytes])))[0])

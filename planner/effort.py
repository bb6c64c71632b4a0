"""How much work a search may put into closing its gap."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Effort:
    """``rows``: candidates that may be worked on; for each ``branches`` of boundaries and ``cuts`` of counts. ``seconds``: time
    limit, None for none. Without a time limit the answer does not depend on the machine. ``progress`` is told of every row;
    ``enough``: a gap that is small enough; ``ended``: why work ended before the gap was closed, ``interrupted`` for good.
    """

    rows: int
    branches: int
    cuts: int
    seconds: float | None = None
    progress: Callable[[str], None] | None = None
    enough: float = 0.0
    ended: str = ""
    interrupted: bool = False
    _started: float = field(default_factory=time.perf_counter)

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""
        return float("inf") if self.seconds is None else self.seconds - (time.perf_counter() - self._started)

    def first(self) -> Effort:
        """What every search puts in, within the same time: it closes most of a gap at a fraction of the cost."""
        return replace(quick(), seconds=self.seconds, progress=self.progress, _started=self._started)

    def begin(self, *, gap: float, left: int) -> bool:
        """Whether there is work left for another row; ``gap`` and ``left`` open rows are told."""
        if self.seconds_left <= 0:
            self.ended = f"the time limit of {self.seconds:g} s ended it"
        self.rows -= 1
        if self.progress is not None:
            self.progress(f"gap {gap:.2%}, {left:,} candidates open")
        return self.rows >= 0 and self.seconds_left > 0 and gap > self.enough


def quick() -> Effort:
    """What every search puts in."""
    return Effort(rows=32, branches=2_000, cuts=4, enough=0.01)


def exact(seconds: float | None = None, progress: Callable[[str], None] | None = None) -> Effort:
    """As much as it takes, or as the time limit allows."""
    return Effort(rows=1_000_000_000, branches=2_000_000, cuts=400, seconds=seconds, progress=progress)

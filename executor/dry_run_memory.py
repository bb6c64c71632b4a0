"""Every storage of a dry run, from birth to death, and what was alive when most bytes were.

A ledger is written while the run goes on: one line for every birth, resize and death of a storage. What a storage *is* often
shows later only (a buffer that receives a reduction becomes a gradient; an output that outlives its forward is an activation),
so storages are named after the run:

    parameters, gradients, optimizer_state, gathered_parameters    what the training run or FSDP2 held as such at any time
    batch                     the token ids of the step
    pipeline_buffers          sent or received between stages
    communication_buffers     flat inputs and outputs of FSDP2's collectives
    activations               made in a forward, alive after it: kept for a backward
    temporaries               made and freed within one forward
    backward_temporaries      made in a backward: gradients of activations, and what is recomputed

A storage that deserves several names has the first of this list.

The step is cut into windows, because as micro-batches are added each grows by its own line: ``first``, until the first backward
is over; ``last``, from the last backward on; ``steady`` between them; ``optimizer``, its step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from executor.fake_cluster import NO_TASK, backward_task

MARKS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "gathered_parameters",
    "batch",
    "pipeline_buffers",
    "communication_buffers",
)
Phase = Literal["init", "forward", "backward", "optimizer"]
Window = Literal["first", "steady", "last", "optimizer"]


class Span(NamedTuple):
    """Consecutive lines of a ledger, from ``start`` on: in one phase, and in one backward or outside all."""

    start: int
    phase: Phase
    task: int


@dataclass(slots=True)
class StorageLife:
    """One storage: the operation that made it, the phases of its birth and death, and the marks it got."""

    operation: str
    born: Phase
    died: Phase | None = None
    marks: int = 0

    @property
    def category(self) -> str:
        """Its name, by the list of the module."""
        for index, mark in enumerate(MARKS):
            if self.marks >> index & 1:
                return mark
        if self.born == "backward":
            return "backward_temporaries"
        return "temporaries" if self.died == self.born else "activations"


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes alive at the fullest instant of a window, by category."""

    terms: dict[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.terms.values())


class Ledger:
    """Births, resizes and deaths of storages. ``phase`` outside backward is the caller's to set."""

    def __init__(self) -> None:
        self.phase: Phase = "init"
        self._lives: list[StorageLife] = []
        self._open: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._lines: list[tuple[int, int]] = []  # (number of the storage, its bytes from now on)
        self._spans: list[Span] = []
        self._resize = torch.UntypedStorage.resize_

    def watch_resizes(self) -> None:
        """Follow storages that FSDP2 empties and fills in place."""

        def resize_(storage: torch.UntypedStorage, size: int) -> object:
            result = self._resize(storage, size)
            if (found := self._open.get(storage._cdata)) is not None:
                self._write(found[0], storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment, method-assign]

    def stop_watching(self) -> None:
        """Undo `watch_resizes`."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def see(self, tensor: torch.Tensor, operation: str) -> None:
        """Register the storage under a plain tensor, unless it is known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._open:
            return
        number = len(self._lives)
        self._lives.append(StorageLife(operation, self._now()))
        self._open[key] = number, weakref.ref(storage, lambda _: self._bury(key, number))
        self._write(number, storage.nbytes())

    def mark(self, tensors: Iterable[torch.Tensor], mark: str) -> None:
        """Say what the storages under the tensors are; unknown ones are left out."""
        bit = 1 << MARKS.index(mark)
        for tensor in tensors:
            if (found := self._open.get(tensor.untyped_storage()._cdata)) is not None:
                self._lives[found[0]].marks |= bit

    def begin_step(self) -> None:
        """Forget the spans before the step that is measured."""
        self._spans = [Span(len(self._lines), "forward", NO_TASK)]

    def peaks(self) -> dict[Window, Peak]:
        """The fullest instant of every window of the step."""
        best = self._fullest_lines()
        found: dict[Window, Peak] = {}
        for window, line in best.items():
            terms: dict[str, int] = {}
            for number, size in dict(self._lines[: line + 1]).items():
                if size:
                    category = self._lives[number].category
                    terms[category] = terms.get(category, 0) + size
            found[window] = Peak(terms)
        return found

    def _fullest_lines(self) -> dict[Window, int]:
        live, sizes, largest = 0, dict[int, int](), dict[Window, int]()
        best: dict[Window, int] = {}
        windows = windows_of(self._spans)
        ends = [span.start for span in self._spans[1:]] + [len(self._lines)]
        current, span = "first", 0
        for line, (number, size) in enumerate(self._lines):
            live += size - sizes.get(number, 0)
            sizes[number] = size
            while span < len(ends) - 1 and line >= ends[span]:
                span += 1
            if line < self._spans[0].start - 1:
                continue
            current = windows[span]
            if live > largest.get(current, -1):
                largest[current], best[current] = live, line
        return best

    def _now(self) -> Phase:
        return "backward" if backward_task() != NO_TASK else self.phase

    def _write(self, number: int, size: int) -> None:
        task = backward_task()
        if self._spans and (self._spans[-1].task, self._spans[-1].phase) != (task, self.phase):
            self._spans.append(Span(len(self._lines), self.phase, task))
        self._lines.append((number, size))

    def _bury(self, key: int, number: int) -> None:
        del self._open[key]
        self._lives[number].died = self._now()
        self._write(number, 0)


def windows_of(spans: Sequence[Span]) -> list[Window]:
    """The window of every span of a step."""
    backwards = [index for index, span in enumerate(spans) if span.task != NO_TASK]
    tasks = [spans[index].task for index in backwards]
    first = max(index for index, task in zip(backwards, tasks, strict=True) if task == tasks[0])
    last = min(index for index, task in zip(backwards, tasks, strict=True) if task == tasks[-1])
    windows: list[Window] = []
    for index, span in enumerate(spans):
        if span.phase == "optimizer":
            windows.append("optimizer")
        elif index <= first:
            windows.append("first")
        else:
            windows.append("last" if index >= last else "steady")
    return windows

"""What a person sees while a run trains: a bar on a terminal, lines elsewhere; always on stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressReport(Protocol):
    """Shows the steps of a run."""

    def __enter__(self) -> ProgressReport: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def notice(self, text: str) -> None:
        """One sentence that the user should read."""

    def step(self, number: int, *, loss: float, tokens_per_second: float) -> None:
        """Step ``number`` (from 1) is done."""


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def notice(self, text: str) -> None:
        """Say nothing."""

    def step(self, number: int, *, loss: float, tokens_per_second: float) -> None:
        """Show nothing."""


class Bar:
    """A bar with the loss and the speed; on a stream that is no terminal, about ten lines."""

    def __init__(self, num_steps: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._num_steps = num_steps
        self._every = max(1, num_steps // 10)
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("training", total=num_steps, loss="-", speed="-")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def notice(self, text: str) -> None:
        """Print the sentence above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def step(self, number: int, *, loss: float, tokens_per_second: float) -> None:
        """Move the bar, or print a line now and then."""
        loss_text, speed = f"{loss:.4f}", f"{tokens_per_second:,.0f}"
        self._progress.update(self._task, completed=number, loss=loss_text, speed=speed)
        last = number == self._num_steps
        if not self._console.is_terminal and (number == 1 or last or number % self._every == 0):
            self._console.print(f"step {number}/{self._num_steps}  loss {loss_text}  {speed} tokens/s", soft_wrap=True)


def progress_report(num_steps: int, *, enabled: bool) -> ProgressReport:
    """The report of the process that speaks; every other process gets a silent one."""
    return Bar(num_steps) if enabled else Silent()

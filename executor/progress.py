"""What a person sees while a run trains: a bar on a terminal, lines elsewhere; always on stderr."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressReport:
    """A bar with the loss and the speed; about ten lines where stderr is no terminal; nothing unless ``enabled``."""

    def __init__(self, num_steps: int, *, enabled: bool = True, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, quiet=not enabled)
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
            disable=self._console.quiet or not self._console.is_terminal,
        )
        self._task = self._progress.add_task("training", total=num_steps, loss="-", speed="-")

    def __enter__(self) -> ProgressReport:
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

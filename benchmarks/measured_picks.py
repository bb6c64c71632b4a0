"""What running the layout that the model would choose costs, among layouts that were measured.

python -m benchmarks.measured_picks

For every rank group of aleph and bloom_prequel in data/published_runs: of the layouts that were tried, the one that is predicted
to be the fastest of those predicted to fit, and by how much its measured time exceeds the best measured one; a layout that ran
out of memory is no answer. Repeats of a layout count with the median of what was measured. Twice: with all of a device's memory,
and with the share of it above which `plan` warns that a plan is borderline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from meshwright import replay
from meshwright.validation.results import ReplayRow
from planner.cautions import BORDERLINE_FRACTION

RUNS = Path(__file__).parent / "data" / "published_runs"
RANKED = ("aleph", "bloom_prequel")
MEAN_LOSS, WORST_LOSS = 0.02, 0.07


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The model's choice in one rank group: how many layouts were tried, its measured seconds (None: out of memory, or no
    layout is predicted to fit) and those of the best.
    """

    dataset: str
    group: str
    layouts: int
    out_of_memory: bool
    seconds: float | None
    best_seconds: float

    @property
    def loss(self) -> float | None:
        """What the choice costs, relative."""
        return None if self.seconds is None else self.seconds / self.best_seconds - 1


def picks(rows: Iterable[ReplayRow], *, share: float = 1.0) -> list[Pick]:
    """The choice in every rank group of two layouts or more, of which one ran at least, among the layouts that are predicted to
    need no more than a share of the devices' memory.
    """
    groups: dict[tuple[str, str], dict[float, list[ReplayRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        tried = row.measured.step_time_seconds is not None or row.measured.oom
        if row.judged and row.predicted is not None and row.rank_group is not None and tried:
            groups[row.dataset, row.rank_group][row.predicted.step_time_seconds].append(row)
    ranked = {name: layouts for name, layouts in sorted(groups.items()) if len(layouts) > 1}
    found = [_pick(*name, layouts, share) for name, layouts in ranked.items()]
    return [pick for pick in found if pick is not None]


def _pick(dataset: str, group: str, layouts: dict[float, list[ReplayRow]], share: float) -> Pick | None:
    measured = {predicted: median(times) for predicted, runs in layouts.items() if (times := _seconds(runs))}
    if not measured:
        return None
    fitting = [predicted for predicted, runs in layouts.items() if all(_needs_at_most(run, share) for run in runs)]
    chosen = min(fitting, default=-1.0)
    ran_out = any(run.measured.oom for run in layouts.get(chosen, ()))
    return Pick(
        dataset=dataset,
        group=group,
        layouts=len(layouts),
        out_of_memory=ran_out,
        seconds=None if ran_out else measured.get(chosen),
        best_seconds=min(measured.values()),
    )


def _needs_at_most(row: ReplayRow, share: float) -> bool:
    needed, held = row.device_peak_bytes, row.device_capacity_bytes
    return needed is not None and held is not None and needed <= share * held


def _seconds(runs: Sequence[ReplayRow]) -> list[float]:
    return [run.measured.step_time_seconds for run in runs if run.measured.step_time_seconds is not None]


def _print_picks(found: Sequence[Pick]) -> None:
    print(f"\n{'rank group':64}{'layouts':>8}{'best s':>10}{'pick costs':>12}")
    for each in found:
        told = "OUT OF MEMORY" if each.out_of_memory else "none fits" if each.loss is None else f"{each.loss:.1%}"
        print(f"{each.dataset + ' ' + each.group:64}{each.layouts:8}{each.best_seconds:10.2f}{told:>14}")
    _print_losses(found)


def _print_losses(found: Sequence[Pick]) -> None:
    for dataset in sorted({each.dataset for each in found}):
        print(judged(dataset, [each for each in found if each.dataset == dataset]))
    print(judged("both", found))


def judged(name: str, found: Sequence[Pick]) -> str:
    """Mean and worst loss beside their limits, in one line."""
    losses = [each.loss for each in found if each.loss is not None]
    ran_out = sum(each.out_of_memory for each in found)
    if not losses:
        return f"{name}: no group has a choice"
    mean, worst = fmean(losses), max(losses)
    right = mean <= MEAN_LOSS and worst <= WORST_LOSS and not ran_out
    return (
        f"{name}: {len(losses)} of {len(found)} groups, mean {mean:.1%} (at most {MEAN_LOSS:.0%}), worst {worst:.1%}"
        f" (at most {WORST_LOSS:.0%}), {ran_out} out of memory: {'yes' if right else 'NO'}"
    )


def main() -> None:
    """Print every group, and the figures within less memory."""
    ranked = replay([RUNS / f"{name}.jsonl" for name in RANKED]).rows
    _print_picks(picks(ranked))
    print(f"among layouts predicted to need at most {BORDERLINE_FRACTION:.0%} of the memory, above which `plan` warns")
    _print_losses(picks(ranked, share=BORDERLINE_FRACTION))


if __name__ == "__main__":
    main()

"""The plans that are found beside the layouts that people ran, under the model.

python -m benchmarks.published_plans [--datasets aleph,amp] [--output FILE]

For every complete dense row of data/published_runs that ran: the fastest plan of the default space for its model, cluster, batch,
precision and runtime (as `meshwright replay` reads them) beside the row's own layout. Each row is one of

    at least as fast   the plan found is not slower than the row's layout
    slower             it is: the layout is not in the default space, and what is missing is named; otherwise the search is wrong
    breaks a rule      though it ran; the rule is named
    does not fit       under the model, though it ran, so that the search must not choose it
    memory unknown     the same, but it held less by something that the model does not have and that its source states
    not predicted      it uses something that the model does not have, such as offload

Rows whose memory is unknown are left out of the share that is rejected.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np

from costmodel.estimate import estimate
from costmodel.runtimes.grid import Grid
from costmodel.specs import InputError, Plan, RuntimeProfile
from meshwright.validation.adapters.errors import BrokenRuleError, UnsupportedRunError
from meshwright.validation.adapters.layout import AdaptedRun, adapt
from meshwright.validation.adapters.words import unmodelled_memory
from meshwright.validation.run_files import read_runs
from meshwright.validation.run_rows import RunRow, was_measured
from planner.axes import AXES, GRID_AXES
from planner.candidates import sift
from planner.closing import GAP_TOLERANCE, tighten
from planner.effort import quick
from planner.evaluation import Search
from planner.search import NODE_BUDGET
from planner.space import Space, completer_of, declare_space

RUNS = Path(__file__).parent / "data" / "published_runs"
MOST_REJECTED = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The best step time of a space in seconds, infinite where no plan fits; the space it was found in."""

    seconds: float
    lower_seconds: float
    space: Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One row that ran: seconds under the model, None where there are none. ``why``: the rule, what the space lacks, or what
    is not predicted.
    """

    id: str
    dataset: str
    outcome: str
    own_seconds: float | None = None
    found_seconds: float | None = None
    why: str = ""


def rows_that_ran(datasets: Sequence[str] = ()) -> list[RunRow]:
    """Dense, complete, undoubted rows of which something was measured, and that did not run out of memory or fail."""
    rows = [line.row for line in read_runs(sorted(RUNS.glob("*.jsonl"))) if line.row is not None]
    usable = [row for row in rows if row.config_complete and not row.doubtful and row.model.moe is None]
    ran = [row for row in usable if was_measured(row) and not row.measured.oom and not row.measured.error]
    return [row for row in ran if not datasets or row.dataset in datasets]


@dataclass(slots=True)
class Judge:
    """Judges rows one after the other; rows in a row that ask the same share their search."""

    _last: tuple[Plan, RuntimeProfile] | None = None
    _answer: Answer | None = None
    searches: int = 0

    def verdict(self, row: RunRow) -> Verdict:
        """What became of a row."""
        about = {"id": row.id, "dataset": row.dataset}
        try:
            run = adapt(row)
            made = estimate(run.plan, run.runtime, ignore_memory=True)
        except BrokenRuleError as error:
            return Verdict(**about, outcome="breaks a rule", why=f"{error.rule}: {error}")
        except (UnsupportedRunError, InputError) as error:
            return Verdict(**about, outcome="not predicted", why=str(error))
        found, own = self.answer(run), made.step_time_seconds.value
        times = {"own_seconds": own, "found_seconds": found.seconds if np.isfinite(found.seconds) else None}
        if not made.fits:
            saved = unmodelled_memory(row.parallel)
            need, have = made.peak_memory_bytes.device / 2**30, made.memory_capacity_bytes / 2**30
            why = f"{need:.1f} GiB of {have:.1f} GiB" + (f" without {saved}" if saved else "")
            return Verdict(**about, outcome="memory unknown" if saved else "does not fit", **times, why=why)
        if found.seconds <= own * (1.0 + GAP_TOLERANCE):
            return Verdict(**about, outcome="at least as fast", **times)
        return Verdict(**about, outcome="slower", **times, why=missing(run.plan, found.space))

    def answer(self, run: AdaptedRun) -> Answer:
        """The best of the default space for a run's model, cluster, training and runtime."""
        if self._answer is None or self._last is None or not _same_question(self._last, run):
            self._answer, self._last = best_of(run), (run.plan, run.runtime)
            self.searches += 1
        return self._answer


def _same_question(last: tuple[Plan, RuntimeProfile], run: AdaptedRun) -> bool:
    one, other = last[0], run.plan
    same = (one.model, one.cluster, one.training) == (other.model, other.cluster, other.training)
    return same and last[1] == run.runtime


def best_of(run: AdaptedRun) -> Answer:
    """Search the default space of a run's question as `meshwright plan` does."""
    plan = run.plan
    space = declare_space(plan.model, plan.cluster, plan.training, run.runtime)
    found = Search(sift(space), completer_of(space), NODE_BUDGET)
    if found.fastest() is None:
        return Answer(seconds=float("inf"), lower_seconds=float("inf"), space=space)
    tighten(found, quick())
    return Answer(seconds=float(found.time.min()), lower_seconds=float(found.lower[found.fits].min()), space=space)


def missing(plan: Plan, space: Space) -> str:
    """What of a plan's layout a space does not hold; empty where it is in the space."""
    own, grid = Grid.from_plan(plan), space.grid
    foreign = [
        f"{name} {AXES[name].show(int(getattr(own, name)[0]))}"
        for name in GRID_AXES
        if not np.isin(getattr(own, name), getattr(grid, name))[0]
    ]
    if foreign:
        return ", ".join(foreign)
    columns = [field.name for field in fields(Grid)]
    same = np.logical_and.reduce([getattr(grid, name) == getattr(own, name) for name in columns])
    if not same.any():
        alike = [name for name in GRID_AXES if _but(own, grid, columns, name)]
        return f"the combination; {' or '.join(alike) or 'more than one axis'} differs from what is in the space"
    return _missing_stages(plan, space, own)


def _but(own: Grid, grid: Grid, columns: Sequence[str], left_out: str) -> bool:
    """Whether a row of the grid is the plan's but for one axis."""
    others = [getattr(grid, name) == getattr(own, name) for name in columns if name != left_out]
    return bool(np.logical_and.reduce(others).any())


def _missing_stages(plan: Plan, space: Space, own: Grid) -> str:
    layers = tuple(stage.num_layers for stage in plan.stages)
    found = completer_of(space).best(own)
    if not np.isfinite(found.seconds[0]):
        return "no completion of its candidate fits"
    if not space.free_stages and layers != tuple(found.layers[0].tolist()):
        return f"layers_per_stage {','.join(map(str, layers))}"
    return ""


def _print_plans(verdicts: Sequence[Verdict], searches: int) -> None:
    datasets = sorted({each.dataset for each in verdicts})
    names = ("at least as fast", "slower", "breaks a rule", "does not fit", "memory unknown", "not predicted")
    print(
        f"{len(verdicts)} complete dense rows that ran, {searches} searches\n{'':24}"
        + "".join(f"{n:>18}" for n in names)
    )
    for dataset in (*datasets, ""):
        counts = Counter(each.outcome for each in verdicts if dataset in ("", each.dataset))
        print(f"{dataset or 'all':24}" + "".join(f"{counts[name]:18}" for name in names))
    gains = [v.own_seconds / v.found_seconds - 1 for v in verdicts if v.own_seconds and v.found_seconds]
    if gains:
        print(f"the plan found is faster by {median(gains):.0%} (median), at most {max(gains):.0%}")
    for name in names[1:]:
        for each in verdicts:
            if each.outcome == name:
                print(f"  {name}: {each.id}{_slower_by(each)}: {each.why or 'IT IS IN THE SPACE'}")
    _print_rejected("by rules", verdicts, ("breaks a rule",))
    _print_rejected("by rules or memory", verdicts, ("breaks a rule", "does not fit"))


def _print_rejected(what: str, verdicts: Sequence[Verdict], outcomes: Sequence[str]) -> None:
    share = rejected_share(verdicts, outcomes)
    print(f"rejected {what}: {share:.1%}, at most {MOST_REJECTED:.0%}: {'yes' if share <= MOST_REJECTED else 'NO'}")


def rejected_share(verdicts: Sequence[Verdict], outcomes: Sequence[str]) -> float:
    """Share of the rows with one of the outcomes; those whose memory is unknown do not count."""
    counted = [each for each in verdicts if each.outcome != "memory unknown"]
    return sum(each.outcome in outcomes for each in counted) / max(1, len(counted))


def _slower_by(each: Verdict) -> str:
    if each.own_seconds is None:
        return ""
    if each.found_seconds is None:
        return " (no plan found)"
    return f" (found {each.found_seconds / each.own_seconds - 1:+.1%})"


def main() -> None:
    """Print what became of the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="", help="only these, comma-separated")
    parser.add_argument("--output", type=Path, help="write what became of every row as JSON")
    asked = parser.parse_args()
    judge = Judge()
    verdicts = [judge.verdict(row) for row in rows_that_ran([name for name in asked.datasets.split(",") if name])]
    if asked.output is not None:
        asked.output.write_text(json.dumps([asdict(each) for each in verdicts], indent=1))
    _print_plans(verdicts, judge.searches)


if __name__ == "__main__":
    main()

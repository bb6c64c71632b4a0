"""What calibration with a few runs does to the runs it has not seen: ``python benchmarks/calibrate_site.py``.

The published runs of one dataset, runtime and device are a site. For every site with enough judged rows, 1, 3 and 5 of them
are drawn at random (fixed seeds), the model is calibrated with them, and the errors on the others are compared with those of
the uncorrected model: once with the site's own runtime profile, and once with the profile ``unknown``, as for a framework
that has none.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from costmodel.runtimes.loader import load_runtime
from costmodel.site import apply_site
from costmodel.specs import SiteProfile
from meshwright.validation.adapters.errors import UnsupportedRunError
from meshwright.validation.adapters.frameworks import FRAMEWORKS
from meshwright.validation.adapters.kernels import with_kernels
from meshwright.validation.adapters.layout import adapt
from meshwright.validation.calibrate import calibrate_runs, predict_seconds
from meshwright.validation.run_files import read_runs
from meshwright.validation.run_rows import step_time_seconds
from meshwright.validation.site_runs import MeasuredRun

RUNS = Path(__file__).parent / "data" / "published_runs"
FEWEST_ROWS = 6
MOST_HELD_OUT = 30
DRAWS = (1, 3, 5)
GOOD = 0.06
Site = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One draw: absolute relative errors of the runs held out, before and after, and whether the 80% interval holds them."""

    site: Site
    runs: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    covered: tuple[bool, ...]


def load_sites(paths: Iterable[Path], *, unknown: bool = False) -> dict[Site, list[MeasuredRun]]:
    """Judged rows with a step time by dataset, runtime and device; ``unknown`` predicts all with the profile of that name."""
    sites: dict[Site, list[MeasuredRun]] = defaultdict(list)
    for line in read_runs(sorted(paths)):
        row = line.row
        if row is None or row.doubtful or not row.config_complete or (seconds := step_time_seconds(row)) is None:
            continue
        try:
            run = adapt(row)
        except UnsupportedRunError:
            continue
        runtime = with_kernels(load_runtime("unknown"), row, FRAMEWORKS["unknown"]) if unknown else run.runtime
        measured = MeasuredRun(
            id=row.id, where=line.where, plan=run.plan, runtime=runtime, seconds=seconds, allocated_bytes=None
        )
        sites[row.dataset, run.framework, run.plan.cluster.device.name].append(measured)
    return {site: runs for site, runs in sites.items() if len(runs) >= FEWEST_ROWS}


def draw(site: Site, runs: Sequence[MeasuredRun], count: int, seed: int, *, held_out: int = MOST_HELD_OUT) -> Outcome:
    """Calibrate with ``count`` runs drawn at random and judge on at most ``held_out`` others."""
    order = random.Random(f"{site} {seed}").sample(range(len(runs)), len(runs))
    chosen = [runs[index] for index in order[:count]]
    others = [runs[index] for index in order[count : count + held_out]]
    profile = calibrate_runs(chosen).site
    after = [_signed(run, profile) for run in others]
    return Outcome(
        site=site,
        runs=count,
        before=tuple(abs(_signed(run, None)) for run in others),
        after=tuple(abs(error) for error in after),
        covered=tuple(abs(math.log1p(error)) <= math.log1p(profile.error_band) for error in after),
    )


def _signed(run: MeasuredRun, profile: SiteProfile | None) -> float:
    runtime = run.runtime if profile is None else apply_site(run.runtime, profile)
    return predict_seconds(run, runtime) / run.seconds - 1


def evaluate(
    sites: dict[Site, list[MeasuredRun]], *, draws: Sequence[int], seeds: int, held_out: int = MOST_HELD_OUT
) -> list[Outcome]:
    """Every site, number of runs and seed; draws that would leave no run to judge on are skipped."""
    return [
        draw(site, runs, count, seed, held_out=held_out)
        for site, runs in sorted(sites.items())
        for count in draws
        if len(runs) > count
        for seed in range(seeds)
    ]


def mean_errors(outcomes: Sequence[Outcome]) -> tuple[float, float, float, float, float]:
    """Median and mean error before, the same after, and coverage: within every draw, then averaged over draws."""
    return (
        fmean(median(outcome.before) for outcome in outcomes),
        fmean(fmean(outcome.before) for outcome in outcomes),
        fmean(median(outcome.after) for outcome in outcomes),
        fmean(fmean(outcome.after) for outcome in outcomes),
        fmean(fmean(outcome.covered) for outcome in outcomes),
    )


def show(title: str, outcomes: Sequence[Outcome]) -> None:
    """One line a site and number of runs, and the mean over sites."""
    print(f"\n{title}\n{'':52} runs   median         mean           in 80% interval")
    for count in sorted({outcome.runs for outcome in outcomes}):
        some = [outcome for outcome in outcomes if outcome.runs == count]
        by_site = {
            site: [outcome for outcome in some if outcome.site == site] for site in sorted({o.site for o in some})
        }
        for site, own in by_site.items():
            _line(" / ".join(site), count, own)
        _line("mean over sites", count, some)
        good = [outcome for own in by_site.values() if mean_errors(own)[0] < GOOD for outcome in own]
        if good:
            _line(f"mean over sites with a median below {GOOD:.0%} before", count, good)


def _line(name: str, count: int, outcomes: Sequence[Outcome]) -> None:
    old_median, old_mean, new_median, new_mean, covered = mean_errors(outcomes)
    print(
        f"{name[:52]:52} {count:4}  {old_median:5.1%} {new_median:5.1%}   {old_mean:5.1%} {new_mean:5.1%}   {covered:5.0%}"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(RUNS.glob("*.jsonl")))
    parser.add_argument("--seeds", type=int, default=5, help="random draws per site and number of runs")
    given = parser.parse_args()
    for title, unknown in (("Runtime known (before, after)", False), ("Runtime unknown (before, after)", True)):
        show(title, evaluate(load_sites(given.files, unknown=unknown), draws=DRAWS, seeds=given.seeds))


if __name__ == "__main__":
    main()

"""Errors of predictions over a set of runs.

(1) relative error e = (predicted - measured) / measured
(2) a pair of one rank group is ordered right (1) when predicted and measured order agree, counts one half when the
    predictions are equal, and is left out when the measurements are equal; averaged over pairs, and over rank groups
(3) regret of the top k = best measured time among the k best predicted / best measured time of the group - 1;
    equal predictions are taken in the worst order
(4) OOM recall = share of the runs out of memory that are predicted not to fit; fits recall = share of the runs that ran
    and are predicted to fit; both over rank groups that hold runs of both kinds
(5) runs of one group with the same prediction repeat one layout, on another day or with another release: numbers (2) and
    (3) over layouts take the median of what was measured
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from meshwright.validation.results import MacroErrors, ReplayErrors, ReplayRow

NEAR = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One judged run: seconds and bytes, predicted and measured. ``memory`` holds pairs (predicted, measured)."""

    dataset: str
    runtime: str
    group: str | None
    predicted_seconds: float
    low_seconds: float
    high_seconds: float
    measured_seconds: float | None
    memory: tuple[float, float] | None
    fits: bool
    oom: bool | None


def outcome_of(row: ReplayRow) -> Outcome | None:
    """What the errors need of a row; None of a row that is not judged."""
    if not row.judged or row.predicted is None:
        return None
    predicted = row.predicted
    return Outcome(
        dataset=row.dataset,
        runtime=row.runtime,
        group=row.rank_group,
        predicted_seconds=predicted.step_time_seconds,
        low_seconds=predicted.step_time_low_seconds,
        high_seconds=predicted.step_time_high_seconds,
        measured_seconds=row.measured.step_time_seconds,
        memory=memory_pair(row),
        fits=predicted.fits,
        oom=row.measured.oom,
    )


def memory_pair(row: ReplayRow) -> tuple[float, float] | None:
    """Peak bytes, predicted and measured, like beside like: allocated where measured, else reserved, else all on the device."""
    if row.predicted is None:
        return None
    pairs = (
        (row.predicted.peak_memory_bytes, row.measured.peak_memory_bytes),
        (row.predicted.reserved_memory_bytes, row.measured.reserved_memory_bytes),
        (row.device_peak_bytes, row.measured.device_memory_bytes),
    )
    return next(((float(mine), float(theirs)) for mine, theirs in pairs if theirs and mine is not None), None)


def errors_of(outcomes: Sequence[Outcome]) -> ReplayErrors:
    """All figures of a set of runs."""
    timed = [(o, o.measured_seconds) for o in outcomes if o.measured_seconds is not None]
    signed = [o.predicted_seconds / seconds - 1 for o, seconds in timed]
    absolute = [abs(error) for error in signed]
    groups = rank_groups(outcomes)
    orders = [pair_orders(group) for group in groups]
    pairs = [order for group in orders for order in group]
    layouts = [merged for group in groups if len(merged := merge_repeats(group)) > 1]
    memory = [abs(pair[0] / pair[1] - 1) for o in outcomes if (pair := o.memory) is not None]
    out_of_memory, ran = _memory_verdicts(outcomes)
    return ReplayErrors(
        rows=len(timed),
        median_absolute_error=median(absolute) if absolute else None,
        mean_absolute_error=mean(absolute),
        bias=median(signed) if signed else None,
        within_20_percent=mean([float(error <= NEAR) for error in absolute]),
        interval_coverage=mean([float(o.low_seconds <= seconds <= o.high_seconds) for o, seconds in timed]),
        interval_mean_width=mean([(o.high_seconds - o.low_seconds) / o.predicted_seconds for o, _ in timed]),
        pairs=len(pairs),
        pair_order=mean(pairs),
        groups=len(groups),
        pair_order_of_groups=mean([fmean(group) for group in orders if group]),
        regret_top1=mean([regret(group, 1) for group in groups]),
        regret_top3=mean([regret(group, 3) for group in groups]),
        layouts_pair_order=mean([order for group in layouts for order in pair_orders(group)]),
        layouts_regret_top1=mean([regret(group, 1) for group in layouts]),
        memory_rows=len(memory),
        memory_mean_absolute_error=mean(memory),
        oom_rows=len(out_of_memory),
        oom_recall=mean([float(not o.fits) for o in out_of_memory]),
        fits_rows=len(ran),
        fits_recall=mean([float(o.fits) for o in ran]),
    )


def macro_errors(errors: Iterable[ReplayErrors]) -> MacroErrors:
    """The mean of each figure over datasets."""
    found = list(errors)
    names = [name for name in MacroErrors.model_fields if name != "datasets"]
    means = {name: mean([value for each in found if (value := getattr(each, name)) is not None]) for name in names}
    return MacroErrors.model_validate({"datasets": len(found), **means})


def rank_groups(outcomes: Iterable[Outcome]) -> list[list[tuple[float, float]]]:
    """(predicted, measured) seconds of every rank group with two timed runs or more."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.group is not None and outcome.measured_seconds is not None:
            groups[outcome.dataset, outcome.group].append((outcome.predicted_seconds, outcome.measured_seconds))
    return [group for group in groups.values() if len(group) > 1]


def merge_repeats(group: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Number (5): one entry a layout."""
    measured: dict[float, list[float]] = defaultdict(list)
    for predicted, seconds in group:
        measured[predicted].append(seconds)
    return [(predicted, median(found)) for predicted, found in measured.items()]


def pair_orders(group: Sequence[tuple[float, float]]) -> list[float]:
    """Number (2), one entry a pair."""
    orders = []
    for (predicted, measured), (other_predicted, other_measured) in combinations(group, 2):
        if measured == other_measured:
            continue
        if predicted == other_predicted:
            orders.append(0.5)
        else:
            orders.append(float((predicted < other_predicted) == (measured < other_measured)))
    return orders


def regret(group: Sequence[tuple[float, float]], top: int) -> float:
    """Number (3)."""
    ranked = sorted(group, key=lambda pair: (pair[0], -pair[1]))
    return min(measured for _, measured in ranked[:top]) / min(measured for _, measured in group) - 1


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean, or None of nothing."""
    return fmean(values) if values else None


def _memory_verdicts(outcomes: Iterable[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """The runs of number (4): out of memory, and those that ran."""
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.group is not None and outcome.oom is not None:
            groups[outcome.dataset, outcome.group].append(outcome)
    both = [group for group in groups.values() if len({outcome.oom for outcome in group}) > 1]
    judged = [outcome for group in both for outcome in group]
    return [o for o in judged if o.oom], [o for o in judged if not o.oom]

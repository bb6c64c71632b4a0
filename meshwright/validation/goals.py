"""What the cost model is held to, and whether it gets there; a goal that the rows cannot tell is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwright.validation import named_tables
from meshwright.validation.calibration_record import CalibrationRecord, FoldErrors
from meshwright.validation.metrics import mean, memory_pair
from meshwright.validation.results import Replay, ReplayErrors, ReplayRow

MANY_ROWS = 10
"""Datasets from here on are large enough that a share of their rows means something."""
_MEMORY_VERDICTS = ("aleph", "nanotron_bench")
_EXACT_MEMORY = "simumax_b200"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure and the range that it should lie in."""

    what: str
    found: float
    low: float | None = None
    high: float | None = None
    signed: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure lies in its range."""
        return self.missed_by == 0.0

    @property
    def missed_by(self) -> float:
        """How far the figure lies outside its range; 0 inside."""
        below = 0.0 if self.low is None else self.low - self.found
        above = 0.0 if self.high is None else self.found - self.high
        return max(below, above, 0.0)


def goals(answer: Replay, record: CalibrationRecord | None = None) -> tuple[Goal, ...]:
    """Every goal that these rows can tell, in the order: coverage, time, ranking, memory, published tables, unseen data."""
    found = [*_time_goals(answer), *_ranking_goals(answer), *_memory_goals(answer), *_table_goals(answer.rows)]
    return tuple([*found, *([] if record is None else _unseen_goals(record))])


def _goal(
    what: str, found: float | None, *, low: float | None = None, high: float | None = None, signed: bool = False
) -> list[Goal]:
    return [] if found is None else [Goal(what=what, found=found, low=low, high=high, signed=signed)]


def _time_goals(answer: Replay) -> list[Goal]:
    summary, pooled = answer.summary, answer.summary.pooled
    worst = worst_coverage(summary.datasets)
    return [
        *_goal("dense, complete, undoubted rows that are predicted", summary.coverage, low=0.97),
        *_goal("step time: median absolute error", pooled.median_absolute_error, high=0.06),
        *_goal("step time: mean absolute error", pooled.mean_absolute_error, high=0.09),
        *_goal("median absolute error, mean over datasets", summary.macro.median_absolute_error, high=0.07),
        *_goal("rows within 20%", pooled.within_20_percent, low=0.92),
        *_goal("bias (median of signed errors)", pooled.bias, low=-0.03, high=0.03, signed=True),
        *_goal("80% interval covers", pooled.interval_coverage, low=0.76, high=0.86),
        *(
            []
            if worst is None
            else _goal(f"... and the least of a dataset of 10 rows or more ({worst[0]})", worst[1], low=0.6)
        ),
    ]


def worst_coverage(datasets: dict[str, ReplayErrors]) -> tuple[str, float] | None:
    """The dataset of `MANY_ROWS` rows or more whose measurements lie least often in their intervals, and how often."""
    shares = [
        (errors.interval_coverage, name)
        for name, errors in datasets.items()
        if errors.rows >= MANY_ROWS and errors.interval_coverage is not None
    ]
    return None if not shares else (min(shares)[1], min(shares)[0])


def _ranking_goals(answer: Replay) -> list[Goal]:
    pooled, macro = answer.summary.pooled, answer.summary.macro
    return [
        *_goal("pairs ordered right within rank groups, mean over datasets", macro.pair_order, low=0.88),
        *_goal("pairs ordered right, mean over rank groups", pooled.pair_order_of_groups, low=0.88),
        *_goal("regret of the best predicted, mean over rank groups", pooled.regret_top1, high=0.03),
        *_goal("regret of the best three predicted", pooled.regret_top3, high=0.007),
    ]


def _memory_goals(answer: Replay) -> list[Goal]:
    found = _goal("peak memory: mean absolute error", answer.summary.pooled.memory_mean_absolute_error, high=0.08)
    exact = [pair for row in answer.rows if row.dataset == _EXACT_MEMORY and row.judged and (pair := memory_pair(row))]
    found += _goal(f"... of {_EXACT_MEMORY}", mean([abs(mine / theirs - 1) for mine, theirs in exact]), high=0.03)
    for name in _MEMORY_VERDICTS:
        errors = answer.summary.datasets.get(name)
        if errors is not None:
            found += _goal(f"runs out of memory told as such, {name}", errors.oom_recall, low=0.95)
            found += _goal(f"runs that fit told as such, {name}", errors.fits_recall, low=0.95)
    return found


def _table_goals(rows: Sequence[ReplayRow]) -> list[Goal]:
    table_5 = named_tables.selective_recomputation_rows(rows)
    errors = [abs(row.relative_error) for row in table_5 if row.relative_error is not None]
    zero_3 = [abs(error) for each in named_tables.ptd_and_zero_3(rows) for error in each.errors]
    oneflow = named_tables.oneflow_and_megatron(rows)
    return [
        *_goal("arXiv 2205.05198, table 5: mean absolute error", mean(errors), high=0.035),
        *_goal("arXiv 2104.04473, table 2: largest absolute error", max(zero_3, default=None), high=0.15),
        *_goal("DLPerf: OneFlow or Megatron-LM faster, told right", named_tables.framework_order(oneflow), low=0.9),
        *_goal("DLPerf: pairs of layouts ordered right", named_tables.layout_order(rows) if oneflow else None, low=0.9),
    ]


def _unseen_goals(record: CalibrationRecord) -> list[Goal]:
    left_out = record.leave_one_dataset_out
    known = _macro(errors for errors in left_out.values() if errors.runtime_known is True)
    other = _macro(errors for errors in left_out.values() if errors.runtime_known is False)
    return [
        *_goal("dataset left out, runtime known from another: median error, mean over datasets", known, high=0.12),
        *_goal("dataset left out, runtime unknown: median error, mean over datasets", other, high=0.30),
    ]


def _macro(parts: Iterable[FoldErrors]) -> float | None:
    return mean([errors.median for errors in parts if errors.median is not None])

"""Published tables that a cost model is commonly held to, found among replayed runs by their rows' names.

(1) arXiv 2205.05198, table 5: eight Megatron-LM runs of 22B to 1T parameters with full recomputation, and with selective
    recomputation and sequence parallelism
(2) arXiv 2104.04473, table 2: PTD parallelism beside ZeRO-3 on 384, 768 and 1,536 A100; the ratio of their step times
(3) Oneflow-Inc/DLPerf, GPT: OneFlow beside Megatron-LM in the same layout, and layouts of one framework beside each other
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.validation.metrics import mean, outcome_of, pair_orders, rank_groups
from meshwright.validation.results import ReplayRow

_TABLE_5 = tuple(
    f"korthikanti-{size}-{kind}" for size in ("22B", "175B", "530B", "1T") for kind in ("full", "selective")
)
_TABLE_2 = (384, 768, 1536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Two runs of one task: step times in seconds, predicted and measured, of the first and of the second."""

    task: str
    predicted: tuple[float, float]
    measured: tuple[float, float]

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors of both predictions."""
        return self.predicted[0] / self.measured[0] - 1, self.predicted[1] / self.measured[1] - 1

    @property
    def ratio_error(self) -> float:
        """Relative error of (time of the second / time of the first)."""
        predicted, measured = self.predicted[1] / self.predicted[0], self.measured[1] / self.measured[0]
        return predicted / measured - 1


def selective_recomputation_rows(rows: Sequence[ReplayRow]) -> tuple[ReplayRow, ...]:
    """Table (1), or nothing unless all eight rows are judged."""
    found = {row.id: row for row in rows if row.id in _TABLE_5 and row.judged and row.relative_error is not None}
    return tuple(found[name] for name in _TABLE_5) if len(found) == len(_TABLE_5) else ()


def ptd_and_zero_3(rows: Sequence[ReplayRow]) -> tuple[Versus, ...]:
    """Table (2): PTD parallelism first, ZeRO-3 second."""
    by_id = {row.id: row for row in rows}
    found = [
        _versus(f"GPT 174.6B on {devices:,} A100", by_id.get(f"sc21-t2-PTD-P-174.6B-{devices}gpu"), other)
        for devices in _TABLE_2
        if (other := by_id.get(f"sc21-t2-ZeRO-3-174.6B-{devices}gpu")) is not None
    ]
    return tuple(each for each in found if each is not None)


def oneflow_and_megatron(rows: Sequence[ReplayRow]) -> tuple[Versus, ...]:
    """The first half of (3): OneFlow first, Megatron-LM second, of every layout that both ran."""
    begin, other = "dlperf-oneflow-", "dlperf-megatron-"
    by_id: Mapping[str, ReplayRow] = {row.id: row for row in rows}
    layouts = [name.removeprefix(begin) for name in by_id if name.startswith(begin)]
    found = [_versus(layout, by_id[begin + layout], by_id.get(other + layout)) for layout in layouts]
    return tuple(each for each in found if each is not None)


def framework_order(pairs: Sequence[Versus]) -> float | None:
    """Share of the pairs whose faster one is predicted to be the faster one; a tie counts half."""
    orders = [order for each in pairs for order in pair_orders([(each.predicted[k], each.measured[k]) for k in (0, 1)])]
    return mean(orders)


def layout_order(rows: Sequence[ReplayRow], dataset: str = "oneflow_dlperf") -> float | None:
    """The second half of (3): share of the pairs of layouts, within rank groups, that are ordered right."""
    outcomes = [outcome for row in rows if row.dataset == dataset and (outcome := outcome_of(row)) is not None]
    return mean([order for group in rank_groups(outcomes) for order in pair_orders(group)])


def _versus(task: str, first: ReplayRow | None, second: ReplayRow | None) -> Versus | None:
    times = [_times(row) for row in (first, second) if row is not None]
    known = [pair for pair in times if pair is not None]
    if len(known) < len((first, second)):
        return None
    (predicted, measured), (other_predicted, other_measured) = known
    return Versus(task=task, predicted=(predicted, other_predicted), measured=(measured, other_measured))


def _times(row: ReplayRow) -> tuple[float, float] | None:
    measured = row.measured.step_time_seconds
    return (
        None
        if not row.judged or row.predicted is None or measured is None
        else (row.predicted.step_time_seconds, measured)
    )

"""Sections of the report: goals, errors of step times, rows that are off, and what became of every row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from meshwright.validation import named_tables
from meshwright.validation.calibration_record import CalibrationRecord
from meshwright.validation.goals import MANY_ROWS, Goal, goals, worst_coverage
from meshwright.validation.markdown import details, percent, seconds, shorten, table
from meshwright.validation.metrics import NEAR, memory_pair
from meshwright.validation.named_tables import Versus
from meshwright.validation.results import MacroErrors, Replay, ReplayErrors, ReplayRow

_SIGNED = "+.1%"
_WORST = 15
_WHY_LENGTH = 220
_TIME = ("rows", "median", "mean", "bias", "within 20%", "interval covers", "mean width", "farthest off")
_RANKING = (
    "rank groups",
    "pairs",
    "ordered right",
    "mean over groups",
    "regret",
    "regret of top 3",
    "ordered right, repeats merged",
    "regret, repeats merged",
)


def goal_section(answer: Replay, record: CalibrationRecord | None) -> str:
    """Every goal beside what is reached."""
    found = goals(answer, record)
    body = [
        (
            each.what,
            percent(each.found, _SIGNED if each.signed else ".1%"),
            _range(each),
            "yes" if each.met else f"**no**, by {100 * each.missed_by:.2g} points",
        )
        for each in found
    ]
    met = f"{sum(each.met for each in found)} of {len(found)} are met."
    return "\n\n".join(["## Goals", met, table(("what", "found", "goal", "met"), body)])


def _range(goal: Goal) -> str:
    low, high = (None if end is None else f"{100 * end:.3g}%" for end in (goal.low, goal.high))
    if low is None or high is None:
        return f"at most {high}" if low is None else f"at least {low}"
    return f"{low} to {high}"


def time_sections(answer: Replay) -> str:
    """Step times by dataset and by framework, then ranking."""
    summary = answer.summary
    ends: dict[str, ReplayErrors | MacroErrors] = {
        "**all**": summary.pooled,
        "all but derived": summary.pooled_without_derived,
        "mean over datasets": summary.macro,
    }
    by_dataset = _farthest(answer, "dataset")
    parts = [
        "## Step time by dataset",
        "`rows` are judged ones with a step time. `derived` rows have one that their source did not time: it follows from "
        f"TFLOP/s by the source's own formula; {_num_derived(answer)} of the judged rows are such.",
        _time_table("dataset", summary.datasets, ends, by_dataset),
        _interval_sentence(answer),
        "## Step time by framework",
        _time_table("framework", summary.runtimes, {}, _farthest(answer, "runtime")),
        "## Ranking",
        "Runs of one rank group differ in their layout alone. Regret: what running the best predicted one (or the best of the "
        "best three) loses against the best one measured.",
        _ranking_table(answer),
    ]
    return "\n\n".join(parts)


def short_table(answer: Replay) -> str:
    """The table of a README: by dataset, what matters most."""
    summary = answer.summary
    parts: dict[str, ReplayErrors | MacroErrors] = {
        **_timed(summary.datasets),
        "**all**": summary.pooled,
        "mean over datasets": summary.macro,
    }
    body = [
        (
            *_time_cells(name, errors),
            percent(errors.pair_order, ".0%"),
            percent(errors.memory_mean_absolute_error),
        )
        for name, errors in parts.items()
    ]
    header = ("dataset", "runs", "median error", "mean", "bias", "within 20%", "in 80% interval", "pairs", "memory")
    return table(header, body)


def _time_cells(name: str, errors: ReplayErrors | MacroErrors) -> tuple[str, ...]:
    """What every table of step times begins with."""
    return (
        name,
        f"{errors.rows:,}" if isinstance(errors, ReplayErrors) else "",
        percent(errors.median_absolute_error),
        percent(errors.mean_absolute_error),
        percent(errors.bias, _SIGNED),
        percent(errors.within_20_percent, ".0%"),
        percent(errors.interval_coverage, ".0%"),
    )


def _timed(parts: Mapping[str, ReplayErrors]) -> dict[str, ReplayErrors]:
    return {name: errors for name, errors in parts.items() if errors.rows}


def _time_table(
    what: str,
    parts: Mapping[str, ReplayErrors],
    ends: Mapping[str, ReplayErrors | MacroErrors],
    farthest: Mapping[str, str],
) -> str:
    body = [
        (
            *_time_cells(name, errors),
            percent(errors.interval_mean_width, ".0%"),
            farthest.get(name, ""),
        )
        for name, errors in {**_timed(parts), **ends}.items()
    ]
    return table((what, *_TIME), body, left=("farthest off",))


def _farthest(answer: Replay, field: str) -> dict[str, str]:
    """The worst row of each part and its error."""
    parts: dict[str, list[ReplayRow]] = defaultdict(list)
    for row in ranked_by_error(answer):
        parts[getattr(row, field)].append(row)
    return {name: f"{rows[0].id} ({percent(rows[0].relative_error, '+.0%')})" for name, rows in parts.items()}


def _num_derived(answer: Replay) -> int:
    return sum(row.derived and row.judged for row in answer.rows)


def _interval_sentence(answer: Replay) -> str:
    pooled, worst = answer.summary.pooled, worst_coverage(answer.summary.datasets)
    if pooled.interval_coverage is None:
        return ""
    least = (
        f" Of datasets with {MANY_ROWS} rows or more it covers least in {worst[0]}: {worst[1]:.0%}." if worst else ""
    )
    return (
        f"The 80% interval covers {pooled.interval_coverage:.0%} of the measurements; on average it is "
        f"{percent(pooled.interval_mean_width, '.0%')} of the prediction wide.{least}"
    )


def _ranking_table(answer: Replay) -> str:
    summary = answer.summary
    parts = {name: errors for name, errors in summary.datasets.items() if errors.pairs}
    body = [
        (
            name,
            f"{errors.groups}",
            f"{errors.pairs:,}",
            percent(errors.pair_order),
            percent(errors.pair_order_of_groups),
            percent(errors.regret_top1),
            percent(errors.regret_top3),
            percent(errors.layouts_pair_order),
            percent(errors.layouts_regret_top1),
        )
        for name, errors in {**parts, "**all**": summary.pooled}.items()
    ]
    macro = summary.macro
    last = (
        macro.pair_order,
        macro.pair_order_of_groups,
        macro.regret_top1,
        macro.regret_top3,
        macro.layouts_pair_order,
        macro.layouts_regret_top1,
    )
    averaged = ("mean over datasets", "", "", *map(percent, last))
    return table(("dataset", *_RANKING), [*body, averaged])


def ranked_by_error(answer: Replay) -> list[ReplayRow]:
    """The judged rows with a step time, the worst first; an error of a factor counts the same either way."""
    found = [(_factor(row), row) for row in answer.rows if row.judged and row.relative_error is not None]
    return [row for _, row in sorted(found, key=lambda pair: (-pair[0], pair[1].id))]


def _factor(row: ReplayRow) -> float:
    ratio = 1 + (row.relative_error or 0.0)
    return max(ratio, 1 / ratio) if ratio > 0 else float("inf")


def bad_rows_section(answer: Replay) -> str:
    """The worst rows with what their files say about them, and the names of all that are off by more than 20%."""
    ranked = ranked_by_error(answer)
    off = [row for row in ranked if abs(row.relative_error or 0.0) > NEAR]
    body = [(*_row_cells(row), shorten(_why(row), _WHY_LENGTH)) for row in ranked[:_WORST]]
    parts = [
        "## The worst rows",
        "By the factor between prediction and measurement; the last column is what the file remarks.",
        table((*_ROW, "remarks"), body, left=("run", "remarks")),
    ]
    if off:
        all_off = table(_ROW, [_row_cells(row) for row in off], left=("run",))
        parts.append(details(f"All {len(off)} judged rows that are off by more than 20%", all_off))
    return "\n\n".join(parts) if ranked else ""


_ROW = ("row", "run", "predicted s", "measured s", "error")


def _row_cells(row: ReplayRow) -> tuple[str, ...]:
    predicted = None if row.predicted is None else row.predicted.step_time_seconds
    error = percent(row.relative_error, "+.0%")
    return (row.id, row.description, seconds(predicted), seconds(row.measured.step_time_seconds), error)


def _why(row: ReplayRow) -> str:
    derived = ("step time derived from TFLOP/s",) if row.derived else ()
    return "; ".join(part for part in (*derived, *row.flags, row.notes) if part)


def comparison_section(answer: Replay) -> str:
    """Published comparisons of two systems, predicted and measured; empty where the rows are not among the runs."""
    zero_3, oneflow = named_tables.ptd_and_zero_3(answer.rows), named_tables.oneflow_and_megatron(answer.rows)
    parts = []
    if zero_3:
        parts += [
            "ZeRO-3 against PTD parallelism (arXiv 2104.04473, table 2; seconds):",
            _versus("PTD-P", "ZeRO-3", zero_3),
        ]
    if oneflow:
        told = percent(named_tables.framework_order(oneflow), ".0%")
        layouts = percent(named_tables.layout_order(answer.rows), ".0%")
        parts += [
            "OneFlow against Megatron-LM in one layout (data x tensor x pipeline parallel), Oneflow-Inc/DLPerf: the faster "
            f"one is told right in {told}; of two layouts of one framework in {layouts}.",
            _versus("OneFlow", "Megatron-LM", oneflow),
        ]
    return "\n\n".join(["## Two systems on one task", *parts]) if parts else ""


def _versus(first: str, second: str, pairs: tuple[Versus, ...]) -> str:
    header = (
        "task",
        f"{first} predicted",
        "measured",
        f"{second} predicted",
        "measured",
        "errors",
        "error of the ratio",
    )
    body = [
        (
            each.task,
            seconds(each.predicted[0]),
            seconds(each.measured[0]),
            seconds(each.predicted[1]),
            seconds(each.measured[1]),
            f"{each.errors[0]:+.0%}, {each.errors[1]:+.0%}",
            f"{each.ratio_error:+.0%}",
        )
        for each in pairs
    ]
    return table(header, body)


def accounting_section(answer: Replay) -> str:
    """What became of every line, and every reason for which rows are not predicted."""
    summary, rows = answer.summary, answer.rows
    judged = [row for row in rows if row.judged]
    timed = sum(row.relative_error is not None for row in judged)
    held = sum(row.relative_error is None and _tells_memory(row) for row in judged)
    body = [
        ("lines that are no run", len(summary.bad_lines)),
        ("not predicted", summary.unsupported),
        ("predicted, not judged: doubtful or incomplete", summary.predicted - len(judged)),
        ("judged by step time", timed),
        ("judged by memory alone", held),
        ("to be judged, but nothing was measured", len(judged) - timed - held),
    ]
    reasons = [(each.reason, f"{each.rows}", f"{each.expected}", each.first) for each in summary.reasons]
    parts = [
        "## What became of every row",
        table(("rows", "number"), [(name, f"{count:,}") for name, count in body]),
        f"{summary.expected:,} rows are dense, complete and not doubtful; {percent(summary.coverage)} of them are predicted.",
    ]
    if reasons:
        header = ("why not predicted", "rows", "of them dense, complete, undoubted", "first")
        parts.append(table(header, reasons, left=("first",)))
    if summary.bad_lines:
        parts.append(
            table(
                ("line", "what is wrong"),
                [(bad.where, bad.reason) for bad in summary.bad_lines],
                left=("what is wrong",),
            )
        )
    return "\n\n".join(parts)


def _tells_memory(row: ReplayRow) -> bool:
    return row.measured.oom is True or memory_pair(row) is not None

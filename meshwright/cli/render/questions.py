"""Answers to questions of several searches as tables: objectives, largest values, scaling."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from costmodel.specs import NearestMiss, Objective, Recommendation, Scaling, ScalingPoint, Trial
from meshwright import units
from meshwright.cli.render.tables import facts, heading, lines, rows

_MOST_TRIALS = 8
_WIDE = 100


def render_question(console: Console, answer: Recommendation) -> None:
    """What was asked beside the fastest plan, and its answer; nothing where that was all."""
    if answer.objective is not None:
        name = answer.objective.name
        heading(console, "Objective", name)
        lines(console, [answer.objective.statement], bullet=">")
        title = "bytes" if name == "memory-headroom" else "devices"
        _render_trials(console, title, _shown(answer.objective.trials, _chosen(answer)), answer.objective)
        _render_miss(console, answer.objective.nearest_miss, "next smaller")
    if answer.maximum is not None:
        maximum = answer.maximum
        heading(console, "Maximum", maximum.quantity)
        lines(console, [maximum.statement], bullet=">")
        _render_trials(console, maximum.quantity, _shown(maximum.trials, maximum.value), None)
        _render_miss(console, maximum.nearest_miss, "next larger")


def _chosen(answer: Recommendation) -> int:
    """The value of the trial that the best plan comes from."""
    if answer.objective is not None and answer.objective.name == "memory-headroom":
        made = answer.best.estimate
        return 0 if made is None else made.peak_memory_bytes.device
    return answer.best.num_devices_used


def _shown(trials: Sequence[Trial], chosen: int) -> list[Trial]:
    """The trials around the chosen value, in ascending order."""
    ordered = sorted(trials, key=lambda trial: trial.value)
    index = min(range(len(ordered)), key=lambda number: abs(ordered[number].value - chosen), default=0)
    start = max(0, min(index - _MOST_TRIALS // 2, len(ordered) - _MOST_TRIALS))
    return ordered[start : start + _MOST_TRIALS]


def _render_trials(console: Console, title: str, trials: Sequence[Trial], objective: Objective | None) -> None:
    if not trials:
        return
    body = [
        (
            units.memory(trial.value) if title == "bytes" else f"{trial.value:,}",
            "yes" if trial.fits else "no",
            _step_time(trial),
            units.memory(trial.needed_bytes) if trial.needed_bytes is not None else "-",
            trial.plan_summary or trial.reason or "-",
        )
        for trial in trials
    ]
    name = "at most" if title == "bytes" else title
    console.print()
    rows(console, (name, "fits", "step time", "memory", "plan"), body, left=("fits",), wrap="plan")


def _step_time(trial: Trial) -> str:
    """What was found, or the bound that made a search needless."""
    if trial.step_time_seconds is not None:
        return units.seconds(trial.step_time_seconds)
    return f">= {units.seconds(trial.lower_seconds)}" if trial.lower_seconds is not None else "-"


def _render_miss(console: Console, miss: NearestMiss | None, which: str) -> None:
    if miss is None:
        return
    over = miss.needed_bytes - miss.capacity_bytes
    console.print()
    facts(
        console,
        [
            (
                f"{which} misses",
                f"{miss.plan_summary} needs {units.memory(miss.needed_bytes)} of {units.memory(miss.capacity_bytes)} a "
                f"device, {units.memory(over)} too much",
            )
        ],
    )


def render_scaling(console: Console, scaling: Scaling) -> None:
    """One row for every number of nodes, and where more stop paying."""
    batch = "one global batch for all (strong scaling)" if scaling.batch == "fixed" else "batch grows with the nodes"
    heading(console, "Scaling", batch)
    prices = scaling.price_per_device_hour is not None
    tokens = scaling.total_tokens
    columns = ["nodes", "devices", "batch", "step", "tokens/s", "efficiency", "added"]
    columns += ["per 1B tokens"] * prices
    rows(
        console,
        columns,
        [_scaling_row(point, prices) for point in scaling.points],
        gap=2 if console.width >= _WIDE else 1,
    )
    if tokens is not None:
        heading(console, "Training", f"{units.count(tokens)} tokens")
        names = ["nodes", "duration", *["cost"] * prices]
        rows(console, names, [_training_row(point, prices) for point in scaling.points if point.best is not None])
    heading(console, "Plans")
    plans = [(str(point.num_nodes), point.plan_summary or _reason(point)) for point in scaling.points]
    rows(console, ("nodes", "plan"), plans, wrap="plan")
    heading(console, "Where it stops paying")
    notes = [scaling.statement]
    if prices:
        notes.append(f"costs at {scaling.price_per_device_hour:g} per device-hour of all devices of the nodes")
    else:
        notes.append("no costs: give --price, or price_per_device_hour in the cluster file")
    lines(console, notes)


def _scaling_row(point: ScalingPoint, prices: bool) -> list[str]:
    sizes = [f"{point.num_nodes:,}", f"{point.num_devices:,}", f"{point.global_batch_size:,}"]
    if point.best is None or point.step_time_seconds is None:
        return [*sizes, "none fits", *["-"] * (3 + prices)]
    added = point.marginal_efficiency
    cells = [
        *sizes,
        units.seconds(point.step_time_seconds),
        units.significant(point.tokens_per_second or 0.0, 4),
        units.percent(point.efficiency or 0.0),
        "-" if added is None else f"{added:.1%}",
    ]
    return [*cells, units.significant(point.cost_per_billion_tokens or 0.0, 4)] if prices else cells


def _training_row(point: ScalingPoint, prices: bool) -> list[str]:
    cells = [f"{point.num_nodes:,}", units.duration(point.training_seconds or 0.0)]
    return [*cells, f"{point.cost or 0.0:,.0f}"] if prices else cells


def _reason(point: ScalingPoint) -> str:
    miss = point.nearest_miss
    if miss is None:
        return point.reason
    return (
        f"none fits; {miss.plan_summary} needs {units.memory(miss.needed_bytes)} of {units.memory(miss.capacity_bytes)}"
    )

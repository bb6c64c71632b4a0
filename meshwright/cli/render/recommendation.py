"""The planner's answer as tables: alternatives, rejections, certificate, guide."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from costmodel.specs import (
    Certificate,
    Guide,
    Infeasible,
    Plan,
    Recommendation,
    RejectionCount,
    TrainingDuration,
)
from meshwright import units
from meshwright.cli.render.plan import recompute_of, render_estimate, render_sizes, render_subject
from meshwright.cli.render.questions import render_question
from meshwright.cli.render.tables import facts, heading, lines, rows

_RECOMPUTE_SHORT = {"core_attention": "core", "op_policy": "ops"}


def render_recommendation(console: Console, answer: Recommendation) -> None:
    """Everything a person needs to trust, question and use the recommendation."""
    render_subject(console, answer.best)
    render_question(console, answer)
    render_sizes(console, answer.best)
    if answer.best.estimate is not None:
        render_estimate(console, answer.best, answer.best.estimate)
    if answer.duration is not None:
        render_duration(console, answer.duration)
    render_alternatives(console, answer.best, answer.alternatives)
    if answer.ties:
        heading(console, "Ties", "within the model's own error: worth measuring, the simplest first")
        lines(console, answer.ties)
    render_rejections(console, answer.rejections)
    render_certificate(console, answer.certificate)
    render_guide(console, answer.guide)


def render_duration(console: Console, duration: TrainingDuration) -> None:
    """Time to train on the stated tokens."""
    heading(console, "Training", f"{units.count(duration.total_tokens)} tokens")
    facts(
        console,
        [
            ("duration", f"{units.duration(duration.seconds)} for {duration.num_steps:,} steps"),
            ("device hours", f"{duration.device_hours:,.0f}"),
        ],
    )


def render_alternatives(console: Console, best: Plan, alternatives: Sequence[Plan]) -> None:
    """The best plan and the next ones, one a row, in short forms."""
    if not alternatives:
        return
    plans = [best, *alternatives]
    heading(console, "Alternatives", "dp: replicate x shard; batch: size x number of micro-batches")
    cells = [_short_sizes(plan) for plan in plans]
    used = [name for name in cells[0] if any(row[name] not in ("", "-") for row in cells)]
    body = [
        ["best" if plan is best else str(index), *(row[name] for name in used), *_outcome(plan, best)]
        for index, (plan, row) in enumerate(zip(plans, cells, strict=True))
    ]
    columns = ["", *used, "step", "slower", "memory"]
    # Recomputation stage by stage is the one long cell; were it not to break, numbers would be cut.
    gap = 2 if console.width >= 100 else 1
    rows(console, columns, body, left=("", "schedule"), wrap="recompute", gap=gap)


def _short_sizes(plan: Plan) -> dict[str, str]:
    parallel = plan.parallel
    chunks = f" x{parallel.num_model_chunks}" if parallel.num_model_chunks > 1 else ""
    recompute = recompute_of(plan)
    return {
        "tp": str(parallel.tensor_parallel_size),
        "cp": str(parallel.context_parallel_size) if parallel.context_parallel_size > 1 else "-",
        "pp": str(parallel.pipeline_parallel_size),
        "dp": f"{parallel.data_parallel_replicate_size}x{parallel.data_parallel_shard_size}",
        "zero": str(parallel.zero_stage),
        "hpz": str(parallel.hierarchical_partition_size or "-"),
        "batch": f"{parallel.micro_batch_size}x{parallel.num_micro_batches}",
        "schedule": parallel.pipeline_schedule.removeprefix("interleaved_").replace("none", "-") + chunks,
        "recompute": _RECOMPUTE_SHORT.get(recompute, recompute),
    }


def _outcome(plan: Plan, best: Plan) -> tuple[str, str, str]:
    if plan.estimate is None or best.estimate is None:
        return "", "", ""
    step, reference = plan.estimate.step_time_seconds.value, best.estimate.step_time_seconds.value
    slower = f"{step / reference - 1:+.1%}" if reference and plan is not best else ""
    return units.seconds(step), slower, units.memory(plan.estimate.peak_memory_bytes.device)


def render_rejections(console: Console, rejections: Sequence[RejectionCount]) -> None:
    """Why candidates fell out, by rule."""
    if not rejections:
        return
    heading(console, "Rejected", "candidates by the rule that removed them, with one example")
    body = [(rejection.rule, f"{rejection.count:,}", rejection.example) for rejection in rejections]
    rows(console, ("rule", "count", "example"), body, left=("rule",), wrap="example")


def render_certificate(console: Console, certificate: Certificate) -> None:
    """What was searched and what is proven."""
    heading(console, "Certificate", certificate.statement)
    by_bound = f", {certificate.pruned_by_bound:,} by a bound" if certificate.pruned_by_bound else ""
    facts(
        console,
        [
            (
                "searched",
                f"{certificate.candidates:,} candidates: {certificate.rejected_by_rule:,} rejected by rules, "
                f"{certificate.rejected_by_memory:,} by memory{by_bound}; {certificate.evaluated:,} evaluated in "
                f"{units.seconds(certificate.search_seconds)}",
            ),
            (
                "step time",
                f"best {units.seconds(certificate.upper_seconds)}, no plan of the space below "
                f"{units.seconds(certificate.lower_seconds)}",
            ),
            (
                "space",
                "; ".join(f"{axis.axis} {','.join(axis.values)}" for axis in certificate.space if axis.values[1:]),
            ),
        ],
    )


def render_guide(console: Console, guide: Guide) -> None:
    """The decision guide's branch, its ordered list, and where the search disagrees."""
    heading(console, "Guide", guide.branch)
    body = [
        (
            str(option.rank),
            option.strategy,
            units.seconds(option.step_time_seconds) if option.step_time_seconds is not None else "no plan",
            option.model_code_change,
            option.plan_summary or "-",
        )
        for option in guide.options
    ]
    columns = ("", "strategy", "fastest", "model change", "plan")
    rows(console, columns, body, left=("", "strategy", "model change"), wrap="plan")
    if guide.disagreement:
        lines(console, [guide.disagreement], bullet="!")


def render_infeasible(
    console: Console, answer: Infeasible, title: str = "No feasible plan in the declared space."
) -> None:
    """The nearest miss term by term, what would fix it, and what was rejected."""
    console.print(title, style="bold red", markup=False)
    miss = answer.nearest_miss
    if miss is not None:
        over = miss.needed_bytes - miss.capacity_bytes
        heading(console, "Nearest miss", miss.plan_summary)
        facts(
            console,
            [
                ("needed", f"{units.memory(miss.needed_bytes)} a device"),
                ("available", f"{units.memory(miss.capacity_bytes)} ({units.memory(over)} too little)"),
                ("limit", miss.memory_limit.words if miss.memory_limit else ""),
            ],
        )
        column = units.MemoryColumn([term.bytes for term in miss.terms])
        console.print()
        body = [(term.name, column(term.bytes)) for term in sorted(miss.terms, key=lambda term: -term.bytes)]
        rows(console, ("term", column.unit), body, left=("term",))
    # Without a miss the first rejection is the statement that leaves no valid plan; what it says to change was tried.
    fixes = miss.fixes if miss is not None else [rejection.fix for rejection in answer.rejections[:1]]
    if fixes:
        heading(console, "What would fix it")
        lines(console, fixes)
    render_rejections(console, answer.rejections)
    if answer.guide is not None:
        heading(console, "Guide", answer.guide.branch)
        lines(console, [f"{option.strategy}: {option.reason}" for option in answer.guide.options])

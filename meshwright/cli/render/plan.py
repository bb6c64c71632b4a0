"""A plan and its estimate as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from costmodel.specs import Estimate, ParallelConfig, Plan, PrecisionSpec, StageMemory, StageSpec
from meshwright import units
from meshwright.cli.render.tables import facts, heading, rows

_MAX_STAGES = 8
_NEGLIGIBLE = 1e-5  # of the step time


def render_subject(console: Console, plan: Plan) -> None:
    """One block: what is trained, where, and how."""
    training, cluster = plan.training, plan.cluster
    idle = cluster.num_devices - plan.num_devices_used
    facts(
        console,
        [
            (
                "model",
                f"{plan.model.name} ({plan.model.num_hidden_layers} layers, hidden size {plan.model.hidden_size})",
            ),
            (
                "cluster",
                f"{cluster.name}: {plan.num_devices_used} of {cluster.num_devices} devices"
                + f", {idle} idle" * bool(idle),
            ),
            (
                "training",
                f"global batch {training.global_batch_size} x {training.sequence_length} tokens, "
                f"{formats_of(training.precision)}, {training.optimizer.name}, {training.attention_implementation} "
                "attention" + f", loss in {training.loss_chunks} chunks" * (training.loss_chunks > 1),
            ),
            ("runtime", f"{plan.runtime.name} {plan.runtime.version}"),
            ("site", plan.site.title if plan.site else ""),
        ],
    )


def render_sizes(console: Console, plan: Plan) -> None:
    """The sizes of the plan by their long names; sizes of 1 and what is off are left out."""
    heading(console, "Plan", plan.plan_hash[:12])
    facts(
        console,
        [*describe_parallel(plan.parallel), ("recompute", recompute_of(plan)), ("layers", layers_of(plan.stages))],
    )


def describe_parallel(parallel: ParallelConfig) -> list[tuple[str, str]]:
    """Names and values of what the plan uses."""
    schedule: str = parallel.pipeline_schedule
    if parallel.num_model_chunks > 1:
        schedule += f", num_model_chunks {parallel.num_model_chunks}"
    together = [name for name in ("sequence_parallel", "loss_parallel") if getattr(parallel, name)]
    used = [
        ("tensor_parallel_size", parallel.tensor_parallel_size, f" with {' and '.join(together)}" if together else ""),
        ("pipeline_parallel_size", parallel.pipeline_parallel_size, f", {schedule}"),
        ("data_parallel_replicate_size", parallel.data_parallel_replicate_size, ""),
        ("data_parallel_shard_size", parallel.data_parallel_shard_size, ""),
        ("context_parallel_size", parallel.context_parallel_size, f", {parallel.context_parallel_method}"),
    ]
    shown = [(name, f"{size}{note}") for name, size, note in used if size > 1] or [("devices", "1")]
    if parallel.zero_stage:
        shown.append(("zero_stage", str(parallel.zero_stage)))
    if parallel.hierarchical_partition_size:
        shown.append(("hierarchical_partition_size", str(parallel.hierarchical_partition_size)))
    shown.append(("micro_batch_size", f"{parallel.micro_batch_size}, num_micro_batches {parallel.num_micro_batches}"))
    return shown


def formats_of(precision: PrecisionSpec) -> str:
    """The compute format, and how projections are scaled to fp8."""
    return precision.compute + (
        f" with fp8 projections ({precision.fp8_recipe} scaling)" if precision.fp8_recipe else ""
    )


def recompute_of(plan: Plan) -> str:
    """The kinds of recomputation in the plan, usually one, with the number of layers where it is not all."""
    return ", ".join(dict.fromkeys(stage.recompute.word for stage in plan.stages))


def layers_of(stages: Sequence[StageSpec]) -> str:
    """Layers per virtual stage, runs of equal counts shortened; empty without a pipeline."""
    if len(stages) == 1:
        return ""
    runs: list[tuple[int, int]] = []
    for stage in stages:
        if runs and runs[-1][1] == stage.num_layers:
            runs[-1] = (runs[-1][0] + 1, stage.num_layers)
        else:
            runs.append((1, stage.num_layers))
    return ", ".join(f"{times} x {count}" if times > 1 else str(count) for times, count in runs) + " per stage"


def render_estimate(console: Console, plan: Plan, estimate: Estimate) -> None:
    """Step time, throughput, memory; then the terms and the stages."""
    interval, peak = estimate.step_time_seconds, estimate.peak_memory_bytes
    heading(console, "Estimate", "memory ignored: this plan does not fit" if estimate.memory_ignored else "")
    fit = "fits" if estimate.fits else "DOES NOT FIT"
    facts(
        console,
        [
            (
                "step time",
                f"{units.seconds(interval.value)}  ({interval.level:.0%} interval {units.seconds(interval.low)} to "
                f"{units.seconds(interval.high)}), bound by {estimate.bound_by}",
            ),
            (
                "throughput",
                f"{units.significant(estimate.tokens_per_second_per_device, 4)} tokens/s/device, "
                f"{units.significant(estimate.tokens_per_second, 4)} tokens/s",
            ),
            (
                "MFU",
                f"{units.percent(estimate.model_flops_utilization)}  (without recomputation, causal attention at half)",
            ),
            (
                "peak memory",
                f"{units.memory(peak.device)} of {available_memory(estimate)} a device ({fit}), in "
                f"phase {estimate.peak_phase}: tensors {units.memory(peak.allocated)}, with allocator "
                f"{units.memory(peak.reserved)}",
            ),
            ("host memory", f"{units.memory(estimate.host_memory_bytes)} a node" if estimate.host_memory_bytes else ""),
        ],
    )
    render_terms(console, estimate)
    render_memory(console, plan.stages, estimate)
    for note in estimate.notes:
        console.print(f"  note: {note}", style="dim", markup=False)


def available_memory(estimate: Estimate) -> str:
    """What the plan may use of a device, and where a stated limit comes from."""
    limit = estimate.memory_limit
    if limit is None:
        return units.memory(estimate.memory_capacity_bytes)
    return f"{units.memory(limit.usable_bytes)} ({limit.words})"


def render_terms(console: Console, estimate: Estimate) -> None:
    """Where the step time goes; terms that cost nothing are left out."""
    total = estimate.step_time_seconds.value
    column = units.TimeColumn([total])
    heading(console, "Time", f"{column.unit}; exposed adds up to the step time, hidden overlaps with it")
    body: list[Sequence[str]] = [
        (
            term.name,
            column(term.exposed_seconds),
            units.percent(term.exposed_seconds / total) if total and term.exposed_seconds else "-",
            column(term.hidden_seconds),
            term.evidence,
        )
        for term in sorted(estimate.terms, key=lambda term: -term.exposed_seconds)
        if max(term.exposed_seconds, term.hidden_seconds) > _NEGLIGIBLE * total
    ]
    body.append(("step", column(total), "100%", "", ""))
    rows(console, ("term", "exposed", "share", "hidden", "evidence"), body, left=("term", "evidence"))


def render_memory(
    console: Console, stages: Sequence[StageSpec], estimate: Estimate, *, limit: int = _MAX_STAGES
) -> None:
    """Bytes per term on the fullest device of each pipeline rank at its peak; a long pipeline is shortened."""
    shown = _choose_stages(estimate.memory, limit)
    column = units.MemoryColumn([stage.peak_bytes for stage in shown])
    at_peak = [{term.name: term.bytes for term in stage.terms if term.phase == stage.peak_phase} for stage in shown]
    names = list(dict.fromkeys(name for terms in at_peak for name, value in terms.items() if value))
    peak = max(estimate.memory, key=lambda stage: stage.peak_bytes)
    note = f"{column.unit}, fullest device of each stage at its own peak"
    if len(shown) < len(estimate.memory):
        note += f"; {len(shown)} of {len(estimate.memory)} stages"
    heading(console, "Memory", note)
    headers = ["stage", *(str(stage.rank) + "*" * (stage is peak and len(shown) > 1) for stage in shown)]
    body = [[name, *(column(terms.get(name, 0)) for terms in at_peak)] for name in names]
    body.append(["peak", *(column(stage.peak_bytes) for stage in shown)])
    if len(stages) > 1:
        layers = {stage.rank: sum(s.num_layers for s in stages if s.rank == stage.rank) for stage in shown}
        body.insert(0, ["layers", *(str(layers[stage.rank]) for stage in shown)])
    rows(console, headers, body, left=("stage",))


def _choose_stages(memory: Sequence[StageMemory], limit: int) -> list[StageMemory]:
    """All stages, or the first ones, the fullest and the last when there are more than ``limit``."""
    if len(memory) <= limit:
        return list(memory)
    fullest = max(range(len(memory)), key=lambda rank: memory[rank].peak_bytes)
    keep = sorted({*range(limit - 2), fullest, len(memory) - 1})
    return [memory[rank] for rank in keep]

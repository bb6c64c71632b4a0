"""Rules on pipeline sizes and schedules."""

from __future__ import annotations

import numpy as np

from costmodel.runtimes.grid import Grid, IntColumn
from costmodel.runtimes.placement import LOOPED_SCHEDULES, ROUND_SCHEDULES, SPLIT_BACKWARD_SCHEDULES, V_SCHEDULES
from costmodel.runtimes.rules_core import (
    BoolColumn,
    Finding,
    Rule,
    RuleContext,
    listed,
    schedule_is,
    schedule_of,
)


def virtual_stages(grid: Grid) -> IntColumn:
    """Ranks x chunks of every row, [n]."""
    return grid.pipeline_parallel_size * grid.num_model_chunks


def _enough_layers(context: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray(virtual_stages(grid) <= context.model.num_hidden_layers)


def _explain_layers(context: RuleContext, grid: Grid, row: int) -> Finding:
    pipeline, chunks = int(grid.pipeline_parallel_size[row]), int(grid.num_model_chunks[row])
    layers = context.model.num_hidden_layers
    return Finding(
        f"pipeline_parallel_size {pipeline} x num_model_chunks {chunks} = {pipeline * chunks} stages, but "
        f"{context.model.name} has {layers} layers and every stage needs one",
        f"keep pipeline_parallel_size x num_model_chunks at or below {layers}",
        {"stages": pipeline * chunks, "num_hidden_layers": layers},
    )


def _schedule_matches(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray(schedule_is(grid, "none") == (grid.pipeline_parallel_size == 1))


def _explain_schedule(context: RuleContext, grid: Grid, row: int) -> Finding:
    pipeline, schedule = int(grid.pipeline_parallel_size[row]), schedule_of(grid, row)
    valid = listed(["none"] if pipeline == 1 else [s for s in context.runtime.schedules if s != "none"])
    return Finding(
        f"pipeline_schedule {schedule} with pipeline_parallel_size {pipeline}: the schedule is 'none' exactly when "
        f"pipeline_parallel_size is 1; valid here: {valid}",
        f"set pipeline_schedule to {valid}, or change pipeline_parallel_size",
        {"pipeline_parallel_size": pipeline, "pipeline_schedule": schedule, "valid": valid},
    )


def _naive_one(_: RuleContext, grid: Grid) -> BoolColumn:
    return np.asarray(~schedule_is(grid, "naive") | (grid.num_micro_batches == 1))


def _explain_naive(context: RuleContext, grid: Grid, row: int) -> Finding:
    count = int(grid.num_micro_batches[row])
    whole = context.training.global_batch_size // int(grid.data_parallel_size[row])
    return Finding(
        f"pipeline_schedule naive runs the batch as one piece (num_micro_batches 1), found num_micro_batches {count}",
        f"set micro_batch_size to {whole} so that num_micro_batches is 1, or use pipeline_schedule gpipe or 1f1b",
        {"num_micro_batches": count, "micro_batch_size_needed": whole},
    )


def _chunks_match(_: RuleContext, grid: Grid) -> BoolColumn:
    chunks, looped, v_shaped = (
        grid.num_model_chunks,
        schedule_is(grid, *LOOPED_SCHEDULES),
        schedule_is(grid, *V_SCHEDULES),
    )
    return np.asarray(np.where(looped, chunks > 1, chunks == np.where(v_shaped, 2, 1)))


def _explain_chunks(_: RuleContext, grid: Grid, row: int) -> Finding:
    chunks, schedule = int(grid.num_model_chunks[row]), schedule_of(grid, row)
    need, fix = "exactly 1", "1, or use interleaved_1f1b"
    if schedule in LOOPED_SCHEDULES:
        need, fix = "at least 2", "2 or more"
    elif schedule in V_SCHEDULES:
        need, fix = "exactly 2", "2"
    return Finding(
        f"pipeline_schedule {schedule} needs num_model_chunks {need}, found {chunks}",
        f"set num_model_chunks to {fix}",
        {"num_model_chunks": chunks, "pipeline_schedule": schedule},
    )


def _fewest_micro_batches(grid: Grid) -> IntColumn:
    """One for every rank; dualpipe_v wants one for every virtual stage, of which each rank has two."""
    return grid.pipeline_parallel_size * np.where(schedule_is(grid, "dualpipe_v"), 2, 1)


def _full_pipeline(context: RuleContext, grid: Grid) -> BoolColumn:
    needs = schedule_is(grid, *context.runtime.full_pipeline_schedules)
    return np.asarray(~needs | (grid.num_micro_batches >= _fewest_micro_batches(grid)))


def _explain_full_pipeline(context: RuleContext, grid: Grid, row: int) -> Finding:
    count, stages = int(grid.num_micro_batches[row]), int(grid.pipeline_parallel_size[row])
    fewest = int(_fewest_micro_batches(grid)[row])
    virtual = fewest > stages
    free = listed(
        s for s in context.runtime.schedules if s != "none" and s not in context.runtime.full_pipeline_schedules
    )
    return Finding(
        f"pipeline_schedule {schedule_of(grid, row)} of runtime {context.runtime.name} needs at least as many "
        f"micro-batches as {'virtual ' if virtual else ''}stages: num_micro_batches {count}, "
        f"pipeline_parallel_size {stages}{f' x 2 chunks = {fewest}' if virtual else ''}",
        f"raise num_micro_batches to {fewest} (a smaller micro_batch_size), lower pipeline_parallel_size to "
        f"{max(1, count * stages // fewest)}, or use one of {free}",
        {"num_micro_batches": count, "pipeline_parallel_size": stages, "valid": free},
    )


def _interleaving_divisor(context: RuleContext, grid: Grid) -> IntColumn:
    """What num_micro_batches must be a multiple of: the stages (Megatron), or the rounds m // p (torch)."""
    if context.runtime.interleaving_multiple == "pipeline_parallel_size":
        return grid.pipeline_parallel_size
    rounds: IntColumn = np.maximum(1, grid.num_micro_batches // grid.pipeline_parallel_size)
    return rounds


def _interleaving_multiple(context: RuleContext, grid: Grid) -> BoolColumn:
    interleaved = schedule_is(grid, *ROUND_SCHEDULES)
    return np.asarray(~interleaved | (grid.num_micro_batches % _interleaving_divisor(context, grid) == 0))


def _explain_interleaving(context: RuleContext, grid: Grid, row: int) -> Finding:
    count, stages = int(grid.num_micro_batches[row]), int(grid.pipeline_parallel_size[row])
    multiple = int(_interleaving_divisor(context, grid)[row])
    by_rounds = context.runtime.interleaving_multiple == "rounds"
    name = f"the number of rounds ({count} // {stages})" if by_rounds else "pipeline_parallel_size"
    nearest = max(stages, count // stages * stages)
    return Finding(
        f"{schedule_of(grid, row)} of runtime {context.runtime.name} needs num_micro_batches to be a multiple of {name} = "
        f"{multiple}, "
        f"found {count}; valid near it: {nearest}, {nearest + stages}",
        f"set num_micro_batches to {nearest} or {nearest + stages}, or use pipeline_schedule 1f1b",
        {"num_micro_batches": count, "multiple": multiple},
    )


def _split_backward_zero(context: RuleContext, grid: Grid) -> BoolColumn:
    split = schedule_is(grid, *SPLIT_BACKWARD_SCHEDULES)
    return np.asarray(~split | np.isin(grid.zero_stage, context.runtime.split_backward_zero_stages))


def _explain_split_backward_zero(context: RuleContext, grid: Grid, row: int) -> Finding:
    stage, valid = int(grid.zero_stage[row]), listed(context.runtime.split_backward_zero_stages)
    whole = listed(s for s in context.runtime.schedules if s not in ("none", *SPLIT_BACKWARD_SCHEDULES))
    return Finding(
        f"pipeline_schedule {schedule_of(grid, row)} with zero_stage {stage}: runtime {context.runtime.name} computes wrong "
        f"gradients when a split backward meets parameters that are freed in between; valid zero_stage: {valid}",
        f"set zero_stage to one of {valid}, or use one of {whole}",
        {"zero_stage": stage, "pipeline_schedule": schedule_of(grid, row), "valid": valid},
    )


def _tied_stages(context: RuleContext, grid: Grid) -> BoolColumn:
    fine = context.runtime.tied_pipelines or not context.model.tie_word_embeddings
    return np.asarray(fine | (grid.pipeline_parallel_size == 1))


def _explain_tied_stages(context: RuleContext, grid: Grid, row: int) -> Finding:
    stages = int(grid.pipeline_parallel_size[row])
    return Finding(
        f"runtime {context.runtime.name} cannot tie the head to an embedding on another pipeline stage: {context.model.name} "
        f"has tied embeddings, pipeline_parallel_size {stages}; valid: 1",
        "set pipeline_parallel_size to 1, choose another runtime, or a model with tie_word_embeddings false",
        {"pipeline_parallel_size": stages},
    )


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(
        name="runtime_tied_pipeline",
        stated_axes=("pipeline_parallel_size",),
        mask=_tied_stages,
        explain=_explain_tied_stages,
    ),
    Rule(name="pipeline_layers", stated_axes=(), mask=_enough_layers, explain=_explain_layers),
    Rule(
        name="schedule_matches_pipeline",
        stated_axes=("pipeline_schedule", "pipeline_parallel_size"),
        mask=_schedule_matches,
        explain=_explain_schedule,
    ),
    Rule(
        name="naive_one_micro_batch",
        stated_axes=("pipeline_schedule", "num_micro_batches"),
        mask=_naive_one,
        explain=_explain_naive,
    ),
    Rule(
        name="model_chunks_match_schedule",
        stated_axes=("pipeline_schedule", "num_model_chunks"),
        mask=_chunks_match,
        explain=_explain_chunks,
    ),
    Rule(
        name="full_pipeline",
        stated_axes=("pipeline_schedule", "pipeline_parallel_size", "num_micro_batches"),
        mask=_full_pipeline,
        explain=_explain_full_pipeline,
    ),
    Rule(
        name="interleaving_multiple",
        stated_axes=("pipeline_schedule", "pipeline_parallel_size", "num_micro_batches"),
        mask=_interleaving_multiple,
        explain=_explain_interleaving,
    ),
    Rule(
        name="split_backward_zero_stage",
        stated_axes=("pipeline_schedule", "zero_stage"),
        mask=_split_backward_zero,
        explain=_explain_split_backward_zero,
    ),
)

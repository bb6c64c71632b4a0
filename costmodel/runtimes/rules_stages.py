"""Rules on the layers of the pipeline stages, as a user lists them."""

from __future__ import annotations

import numpy as np

from costmodel.runtimes.grid import Grid
from costmodel.runtimes.layer_split import dealt_layers, even_split
from costmodel.runtimes.rules_core import BoolColumn, Finding, Rule, RuleContext, everywhere, listed
from costmodel.runtimes.rules_pipeline import virtual_stages


def _even_or_dealt(context: RuleContext, num_ranks: int, num_chunks: int) -> tuple[tuple[int, ...], ...]:
    """What a runtime that deals layers itself makes of a shape: an even split stands for it where nothing is listed."""
    even = even_split(context.model.num_hidden_layers, num_ranks * num_chunks)
    return even, dealt_layers(context.model, context.runtime, num_ranks, num_chunks)


def _dealt_by_runtime(context: RuleContext, grid: Grid) -> BoolColumn:
    counts = context.layers_per_stage
    if context.runtime.uneven_stages or counts is None or sum(counts) != context.model.num_hidden_layers:
        return everywhere(grid, True)
    stages = len(counts)
    # A list of another length, or with an empty stage, breaks the rule on it below.
    judged = (virtual_stages(grid) == stages) & (min(counts) >= 1)
    fine = {
        ranks: counts in _even_or_dealt(context, ranks, stages // ranks)
        for ranks in {int(size) for size in grid.pipeline_parallel_size[judged]}
    }
    return np.array(
        [not each or fine[int(ranks)] for each, ranks in zip(judged, grid.pipeline_parallel_size, strict=True)]
    )


def _explain_dealt(context: RuleContext, grid: Grid, row: int) -> Finding:
    ranks, chunks = int(grid.pipeline_parallel_size[row]), int(grid.num_model_chunks[row])
    counts = listed(context.layers_per_stage or ())
    valid = " or ".join(dict.fromkeys(",".join(map(str, split)) for split in _even_or_dealt(context, ranks, chunks)))
    return Finding(
        f"runtime {context.runtime.name} deals layers to pipeline stages itself, found layers_per_stage {counts}; valid: {valid}",
        f"leave layers_per_stage out or set it to {valid}, or choose a runtime that takes a list",
        {"layers_per_stage": counts, "valid": valid},
    )


def _stages_sum(context: RuleContext, grid: Grid) -> BoolColumn:
    counts = context.layers_per_stage
    ok = counts is None or (sum(counts) == context.model.num_hidden_layers and min(counts) >= 1)
    return everywhere(grid, ok)


def _stages_count(context: RuleContext, grid: Grid) -> BoolColumn:
    if context.layers_per_stage is None:
        return everywhere(grid, True)
    return np.asarray(virtual_stages(grid) == len(context.layers_per_stage))


def _explain_stages_sum(context: RuleContext, _: Grid, _row: int) -> Finding:
    counts, layers = context.layers_per_stage or (), context.model.num_hidden_layers
    return Finding(
        f"layers_per_stage {listed(counts)} sums to {sum(counts)} layers; {context.model.name} has {layers}, and "
        "every stage "
        "needs at least one",
        f"list positive numbers that sum to {layers}",
        {"layers": sum(counts), "num_hidden_layers": layers},
    )


def _explain_stages_count(context: RuleContext, grid: Grid, row: int) -> Finding:
    counts = context.layers_per_stage or ()
    pipeline, chunks = int(grid.pipeline_parallel_size[row]), int(grid.num_model_chunks[row])
    return Finding(
        f"layers_per_stage {listed(counts)} lists {len(counts)} stages, but pipeline_parallel_size {pipeline} x "
        f"num_model_chunks {chunks} = {pipeline * chunks}",
        f"list {pipeline * chunks} stages, or choose sizes that multiply to {len(counts)}",
        {"stages": len(counts), "needed": pipeline * chunks},
    )


STAGE_RULES: tuple[Rule, ...] = (
    Rule(
        name="runtime_layers_per_stage",
        stated_axes=("pipeline_parallel_size", "num_model_chunks"),
        mask=_dealt_by_runtime,
        explain=_explain_dealt,
    ),
    Rule(name="layers_per_stage_sum", stated_axes=(), mask=_stages_sum, explain=_explain_stages_sum),
    Rule(
        name="layers_per_stage_count",
        stated_axes=("pipeline_parallel_size", "num_model_chunks"),
        mask=_stages_count,
        explain=_explain_stages_count,
    ),
)

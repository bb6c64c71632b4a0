"""Lower bounds on the step time of every completion of a candidate: whatever its stage boundaries and recomputed layers are.

Notation of paths.py; W is the sum of t over all stages, which no boundary changes, without any recomputation.

    (1) 1f1b. For every rank s with m >= k + 2, equation (3) of paths.py with both max(0, x) >= x and without trips between gives
            T >= P_s + m t_s + (D_s - k f_s) + (D_s - k b_s) = W + D_s + (m - 1 - k) t_s,
        and for m <= k + 1, since min(f_s, b_s) <= t_s / 2,
            T >= P_s + m t_s + D_s - (m - 1) min(f_s, b_s) >= W + (m - 1) t_s / 2.
        Any convex combination of these is a bound too. With weights w_s such that every t_r has the same factor C in it,
            w_r g_r + (sum of w_s over s < r with m >= k + 2) = C,   g_r = m - 1 - k or (m - 1) / 2,   sum of w = 1,
        it is T >= (1 + C) W, whatever the boundaries. All w are positive: the sums stay below C because
        C - S_(r+1) = (C - S_r)(1 - 1 / g_r). For m > p the product telescopes and C = (m - 1) / p: no boundaries make a
        pipeline faster than the even split of all its work would, were there one.
    (2) gpipe: T >= W + (m - 1)(max f + max b) >= W + (m - 1) W / p.
    (3) none, naive: T >= m W.
    (4) messages add 2 x the sum of c to (1) and (2), m times that to (3): every path above crosses all boundaries both ways.
    (5) exposed gathers and reductions of all stages together are at least those of one stage with everything in it, because what
        is hidden is a minimum of sums, which is concave: hidden <= overlap x min(sum of communication, sum of computation)
    (6) after the last backward: the largest w_s-weighted sum over ranks is at most the maximum, so at least
        p min(w) x the mean over ranks of reduction (and, without clipping, optimizer); with clipping the mean of the optimizer.
    (7) a lane between ranks carries m messages one after the other, and all backwards of the last one's micro-batch come after
        it: T >= m max c + the sum of b, equation (8) of paths.py. Under gpipe lanes are machines like ranks (equation (3) of
        steady_state.py), so in (2) max c stands for the mean of f, and of b, where it is larger
    (8) every rank takes at least the sum of what it does, and so does the mean over the ranks, which (5) bounds without looking
        at stages: T >= (start + m t + reduction + optimizer of one stage with everything in it) / p

Schedules of several chunks are split evenly and have the bounds of paths.py. (8), and (1) to (3) alone, are computed for all
shapes of pipelines at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from costmodel.bounds import ROUNDING, bound_ends, by_shape
from costmodel.compute import Column
from costmodel.runtimes.grid import DATA_OUTERMOST, SCHEDULES, Grid, distinct_rows
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.placement import LOOPED_SCHEDULES, V_SCHEDULES
from costmodel.setting import Problem, Setting, grid_contents, mean_stage, prepare
from costmodel.step import StepTimes, step_times
from costmodel.tables import RECOMPUTE
from costmodel.vocabulary import padded_models

_SHAPE = ("pipeline_schedule", "pipeline_parallel_size", "num_model_chunks")
_SEVERAL_CHUNKS = (*LOOPED_SCHEDULES, *V_SCHEDULES)


def relaxed_seconds(problem: Problem, grid: Grid, *, layers_per_stage: tuple[int, ...] | None = None) -> Column:
    """A lower bound on the step time of all completions of every candidate [n], in seconds.

    Args:
        problem: what is trained on what.
        grid: n candidates; what they recompute does not count.
        layers_per_stage: stated boundaries, which all completions of all candidates share; None leaves them open.

    Raises:
        InputError: as `costmodel.bounds.step_time_lower_bound`.
    """

    def seconds(problem: Problem, grid: Grid) -> Column:
        return _relaxed(problem, grid, layers_per_stage)

    return by_shape(problem, grid, _SHAPE, seconds)


def average_seconds(problem: Problem, grid: Grid, recomputed: Column) -> Column:
    """Equation (8), and (1) to (3) where a rank has one chunk, of all shapes at once [n], in seconds; 0 where data is outermost.

    Args:
        problem: what is trained on what.
        grid: n candidates.
        recomputed: layers that all ranks together recompute at least [n].

    Raises:
        InputError: as `costmodel.bounds.step_time_lower_bound`.
    """
    ranks, factor, bound = grid.pipeline_parallel_size, pipeline_factors(grid), np.zeros(len(grid))
    for model, rows in padded_models(problem.model, problem.runtime, grid):
        where = slice(None) if rows is None else rows
        part = grid if rows is None else grid.take(rows)
        setting = prepare(replace(problem, model=model), part, mean_stage(model, 1), one_stage=True)
        times = step_times(_with_recomputation(setting, recomputed[where]))
        passes = (times.forward.sum(axis=2) + times.backward.sum(axis=2))[:, 0]
        optimizer = times.optimizer[:, 0] / ranks[where]
        once = (times.start + times.reduction)[:, 0] / ranks[where] + optimizer
        mean = part.num_micro_batches * passes / ranks[where] + once
        bound[where] = np.maximum(mean, factor[where] * passes + times.clips * optimizer)
    return np.where(grid.axis_order == DATA_OUTERMOST, 0.0, bound) * (1.0 - ROUNDING)


def _with_recomputation(setting: Setting, layers: Column) -> Setting:
    """The same with so many layers [n] recomputed, of the kind that takes least, which the one stage's head does for them."""
    table = setting.table
    again = table.layer_backward[..., RECOMPUTE].min(axis=1)[np.arange(len(layers)), setting.grid.recompute]
    head = table.head.copy()
    head[:, 1, RECOMPUTE] += layers * again
    return replace(setting, table=replace(table, head=head))


def _relaxed(problem: Problem, grid: Grid, layers_per_stage: tuple[int, ...] | None) -> Column:
    """`relaxed_seconds` of candidates that share the pipeline's shape and the padded model."""
    chunks, ranks = int(grid.num_model_chunks[0]), int(grid.pipeline_parallel_size[0])
    plain = replace(grid, recompute=np.zeros_like(grid.recompute))
    if layers_per_stage is not None or chunks > 1 or ranks == 1:
        counts = layers_per_stage or even_split(problem.model.num_hidden_layers, ranks * chunks)
        times = step_times(prepare(problem, plain, grid_contents(problem.model, counts, plain.recompute)))
        return np.asarray(times.finish(bound_ends(plain, times)))
    times = step_times(prepare(problem, plain, mean_stage(problem.model, ranks)))
    return _whole_step(grid, times) * (1.0 - ROUNDING)


def _whole_step(grid: Grid, times: StepTimes) -> Column:
    """Equations (1) to (4), (6) and (7)."""
    ranks, count = int(grid.pipeline_parallel_size[0]), grid.num_micro_batches
    schedule = SCHEDULES[int(grid.pipeline_schedule[0])]
    work = (times.forward.sum(axis=2) + times.backward.sum(axis=2)).sum(axis=1)
    messages = 2.0 * times.transfer[:, :-1].sum(axis=1)
    factor, least = np.empty(len(grid)), np.zeros(len(grid))
    for number in np.unique(count):
        rows = count == number
        factor[rows], least[rows] = pipeline_factor(schedule, ranks, int(number))
    crossings = count if schedule in ("none", "naive") else 1
    after = least * times.reduction.sum(axis=1)
    optimizer = times.optimizer.mean(axis=1) if times.clips else least * times.optimizer.sum(axis=1)
    slowest, back = times.transfer[:, :-1].max(axis=1), times.backward.sum(axis=(1, 2))
    passes = factor * work
    if schedule == "gpipe":
        passes = work + (count - 1.0) * np.maximum(np.stack([work - back, back]) / ranks, slowest).sum(axis=0)
    crowded = count * slowest + back + times.clips * optimizer
    return np.asarray(np.maximum(passes + crossings * messages + after + optimizer, crowded))


def pipeline_factors(grid: Grid) -> Column:
    """1 + C of every row [n], and 0 where (1) to (3) say nothing: without a pipeline, and with several chunks a rank."""
    shapes, index = distinct_rows([grid.pipeline_schedule, grid.pipeline_parallel_size, grid.num_micro_batches])
    columns = (grid.pipeline_schedule[shapes], grid.pipeline_parallel_size[shapes], grid.num_micro_batches[shapes])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    factors = [
        0.0
        if ranks == 1 or SCHEDULES[schedule] in _SEVERAL_CHUNKS
        else pipeline_factor(SCHEDULES[schedule], ranks, count)[0]
        for schedule, ranks, count in rows
    ]
    return np.where(grid.num_model_chunks > 1, 0.0, np.array(factors)[index])


@cache
def pipeline_factor(schedule: str, ranks: int, micro_batches: int) -> tuple[float, float]:
    """1 + C of equations (1) to (3), and the smallest weight of a rank."""
    m, p = micro_batches, ranks
    if schedule in ("none", "naive"):
        return float(m), 0.0
    if schedule == "gpipe":
        return 1.0 + (m - 1.0) / p, 0.0
    if m == 1:
        return 1.0, 0.0
    weights, before = [], 0.0
    for rank in range(p):
        behind = p - 1 - rank
        strong = m >= behind + 2
        weight = (1.0 - before) / (m - 1.0 - behind if strong else 0.5 * (m - 1.0))
        weights.append(weight)
        before += weight if strong else 0.0
    common = 1.0 / sum(weights)
    return 1.0 + common, common * min(weights)

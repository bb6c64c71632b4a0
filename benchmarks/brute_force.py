"""The search against all completions of all candidates of random small instances, one after the other.

python -m benchmarks.brute_force [--instances 200] [--first 0] [--cut] [--output FILE]

Every instance is a random model of 4 to 8 layers (one or two kinds of layer, a table of random size), 4 or 8 devices of
random memory, a batch and a part of the axes. With ``--cut`` they are of runtimes that cut sequences, by 2 or 4 beside all other
axes. Brute force writes out every candidate that obeys the rules, every contiguous
split of its layers and every number of recomputed layers of every stage, and takes the fastest that fits, once inside the
declared window and once over all splits. Step time and memory of one completion of each candidate are compared with the
estimate of the complete plan. The search must say L <= optimum <= U, and U = optimum where its gap is 0.

Printed: instances with a gap of 0 and how large the others are; where the split with the least slowest stage is not the fastest,
and by how much; by how much splits outside the window would beat the optimum.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.brute_force_instances import make_space
from costmodel.build import build_plan
from costmodel.completions import StageColumns, completion_bytes, completion_seconds, completion_times
from costmodel.estimate import estimate
from costmodel.runtimes.grid import SCHEDULES, Grid
from costmodel.runtimes.layer_split import even_split
from costmodel.runtimes.placement import SPLIT_BACKWARD_SCHEDULES
from costmodel.runtimes.rules import obeys_rules
from costmodel.setting import Problem
from costmodel.specs import Infeasible, RecomputeSpec
from planner.effort import exact
from planner.search import search
from planner.space import Space
from planner.stage_table import WINDOW

_CHUNK = 20_000
_TOLERANCE = 1e-9
Columns = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One instance; seconds of None where nothing fits."""

    seed: int
    candidates: int
    completions: int
    optimum: float | None
    upper: float | None
    lower: float | None
    gap: float | None
    anywhere: float | None
    min_max_loss: float

    @property
    def right(self) -> bool:
        """Whether the search told the truth."""
        if self.optimum is None or self.upper is None or self.lower is None:
            return self.optimum is None and self.upper is None
        inside = self.lower <= self.optimum * (1 + _TOLERANCE) and self.optimum <= self.upper * (1 + _TOLERANCE)
        return inside and (self.gap != 0 or abs(self.upper / self.optimum - 1) <= _TOLERANCE)


def run_instance(seed: int, *, cut: bool = False) -> Outcome:
    """Brute force and search of one instance; odd seeds ask for an exact answer."""
    space = make_space(seed, cut=cut)
    context = space.context
    effort = exact() if seed % 2 else None
    found = search(context.model, context.cluster, context.training, context.runtime, space, effort=effort)
    best = _brute_force(space, random.Random(seed))
    certificate = None if isinstance(found, Infeasible) else found.certificate
    return Outcome(
        seed=seed,
        candidates=len(space.grid),
        completions=best.completions,
        optimum=best.inside,
        upper=None if certificate is None else certificate.upper_seconds,
        lower=None if certificate is None else certificate.lower_seconds,
        gap=None if certificate is None else certificate.gap,
        anywhere=best.anywhere,
        min_max_loss=best.min_max_loss,
    )


@dataclass(slots=True)
class _Best:
    inside: float | None = None
    anywhere: float | None = None
    min_max: float | None = None
    completions: int = 0

    @property
    def min_max_loss(self) -> float:
        """How much slower the best completion with the least slowest stage is than the best of all."""
        return 0.0 if self.inside is None or self.min_max is None else self.min_max / self.inside - 1

    def take(self, name: str, seconds: NDArray[np.float64]) -> None:
        """Keep the smallest."""
        if len(seconds):
            known = getattr(self, name)
            setattr(self, name, float(seconds.min()) if known is None else min(known, float(seconds.min())))


def _brute_force(space: Space, rng: random.Random) -> _Best:
    context, best = space.context, _Best()
    problem = Problem(model=context.model, cluster=context.cluster, training=context.training, runtime=context.runtime)
    grid = space.grid.take(np.flatnonzero(obeys_rules(context, space.grid)))
    for row in range(len(grid)):
        one = grid.take(np.array([row]))
        slowest: dict[tuple[int, ...], float] = {}
        for stages in _completions(space, one):
            rows = one.take(np.zeros(len(stages.layers), dtype=np.int64))
            fits = completion_bytes(problem, rows, stages).max(axis=1) <= context.usable_bytes
            seconds = completion_seconds(problem, rows, stages)
            if not slowest:
                slowest = _slowest(problem, space, one)
            worst = np.array([slowest[tuple(layers)] for layers in stages.layers.tolist()])
            least = min(slowest.values())
            best.completions += len(seconds)
            best.take("anywhere", seconds[fits])
            best.take("inside", seconds[fits & (worst <= (1 + WINDOW) * least * (1 + 1e-9))])
            best.take("min_max", seconds[fits & (worst <= least * (1 + 1e-9))])
            _compare(space, one, stages, seconds, fits, rng.randrange(len(seconds)))
    return best


def _splits(space: Space, one: Grid) -> list[tuple[int, ...]]:
    """Declared boundaries and, where they are open, all others."""
    depth, virtual = space.context.model.num_hidden_layers, int(one.pipeline_parallel_size[0] * one.num_model_chunks[0])
    if not space.free_stages or one.num_model_chunks[0] > 1 or virtual == 1:
        return [even_split(depth, virtual)]
    cuts = itertools.combinations(range(1, depth), virtual - 1)
    return [tuple(int(size) for size in np.diff([0, *cut, depth])) for cut in cuts]


def _slowest(problem: Problem, space: Space, one: Grid) -> dict[tuple[int, ...], float]:
    """Slowest stage of every split without recomputation."""
    splits = _splits(space, one)
    layers = np.array(splits, dtype=np.int64)
    rows = one.take(np.zeros(len(layers), dtype=np.int64))
    times = completion_times(problem, rows, StageColumns.contiguous(layers, np.zeros_like(layers)))
    passes = times.forward.sum(axis=2) + times.backward.sum(axis=2)
    return dict(zip(splits, passes.max(axis=1).tolist(), strict=True))


def _completions(space: Space, one: Grid) -> Iterator[StageColumns]:
    """All splits and counts of one candidate, a part at a time."""
    layers: list[tuple[int, ...]] = []
    recomputed: list[tuple[int, ...]] = []
    for split in _splits(space, one):
        for counts in _counts(space, one, split):
            layers.append(split)
            recomputed.append(counts)
            if len(layers) == _CHUNK:
                yield StageColumns.contiguous(np.array(layers), np.array(recomputed))
                layers, recomputed = [], []
    if layers:
        yield StageColumns.contiguous(np.array(layers), np.array(recomputed))


def _counts(space: Space, one: Grid, split: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    kind = one.recompute_kind(0)
    if kind == "none":
        yield (0,) * len(split)
    elif SCHEDULES[int(one.pipeline_schedule[0])] in SPLIT_BACKWARD_SCHEDULES:
        yield split
    elif space.recompute_layers == "per_stage":
        yield from itertools.product(*(range(size + 1) for size in split))
    elif space.recompute_layers == "uniform" and kind == "full":
        yield from {tuple(min(size, number) for size in split) for number in range(max(split) + 1)}
    else:
        yield split


def _compare(
    space: Space, one: Grid, stages: StageColumns, seconds: NDArray[Any], fits: NDArray[Any], row: int
) -> None:
    """The columns against the estimate of one complete plan.

    Raises:
        AssertionError: where they differ.
    """
    context, kind = space.context, one.recompute_kind(0)
    modes = [
        RecomputeSpec(kind=kind, num_layers=count) if count else RecomputeSpec()
        for count in stages.recomputed[row].tolist()
    ]
    plan = build_plan(
        context.model, context.cluster, context.training, context.runtime, one.parallel(0),
        recompute=modes, layers_per_stage=tuple(stages.layers[row].tolist()), axis_order=one.order(0),
    )  # fmt: skip
    single = estimate(plan, context.runtime)
    assert abs(single.step_time_seconds.value / seconds[row] - 1) < _TOLERANCE, (plan.parallel, stages.layers[row])
    assert single.fits == bool(fits[row]), (plan.parallel, stages.layers[row])


def summary(outcomes: Sequence[Outcome]) -> str:
    """A few lines for a person."""
    solved = [outcome for outcome in outcomes if outcome.optimum is not None and outcome.gap is not None]
    gaps = [outcome.gap or 0.0 for outcome in solved if outcome.gap]
    losses = [outcome.min_max_loss for outcome in solved if outcome.min_max_loss > _TOLERANCE]
    outside = [1 - outcome.anywhere / outcome.optimum for outcome in solved if outcome.anywhere and outcome.optimum]
    beaten = [gain for gain in outside if gain > _TOLERANCE]
    return "\n".join(
        [
            f"{len(outcomes)} instances, {sum(outcome.completions for outcome in outcomes):,} completions; "
            f"{len(outcomes) - len(solved)} have no plan that fits",
            f"wrong: {sum(not outcome.right for outcome in outcomes)}",
            f"gap 0: {len(solved) - len(gaps)}; others: " + _spread(gaps),
            "the least slowest stage is not the fastest: " + _spread(losses),
            "boundaries outside the window beat the optimum: " + _spread(beaten),
        ]
    )


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "never"
    return f"{len(values)} (median {statistics.median(values):.2%}, worst {max(values):.2%})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the instances and print the summary.

    Raises:
        SystemExit: 1 when the search was wrong.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.brute_force", description="The search against all completions.")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first instance")
    parser.add_argument("--cut", action="store_true", help="instances with context parallelism")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    options = parser.parse_args(arguments)
    outcomes = []
    for seed in range(options.first, options.first + options.instances):
        outcomes.append(run_instance(seed, cut=options.cut))
        if not outcomes[-1].right:
            print("wrong:", outcomes[-1], flush=True)
    print(summary(outcomes))
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    if not all(outcome.right for outcome in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

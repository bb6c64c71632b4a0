"""Which steps of a plan are run dry, and how they say what the whole step does.

A step of m micro-batches repeats itself once its pipeline is full and every gradient exists, so beyond that point

    (1) counts, payloads and FLOP grow by the same amount with every micro-batch (or round of them)
    (2) the bytes of a category at the fullest instant of a window of the step do too, and the peak of the step is the largest
        over its windows (dry_run_memory.py)

Two counts past that point give (1) and (2) for any m:

    no pipeline       2 and 3        the first micro-batch makes gradients, the last reduces them; only the batch grows
    gpipe             3 and 4        everything is in flight: m activations
    1f1b              p + 1, p + 2   p in flight on the first rank, and once more beside gradients
    interleaved_1f1b  2 r and 3 r    rounds of r = m // max(1, m // p) micro-batches

Pipeline ranks are run one by one. Only under gpipe do ranks between the first and the last run the same operations, as no
step of its schedule depends on the rank; of such ranks with equal layers one is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from costmodel.specs import ParallelConfig, Plan
from executor.dry_run_memory import Peak, Window
from executor.dry_run_rank import TOKEN_BYTES, DryStep
from executor.dry_run_traffic import Route, Sum

_SAME_ON_EVERY_RANK = ("naive", "gpipe")


def micro_batch_counts(parallel: ParallelConfig) -> tuple[int, ...]:
    """Numbers of micro-batches to run: two past the steady state, or the plan's own where it has no more."""
    count, ranks = parallel.num_micro_batches, parallel.pipeline_parallel_size
    rounds = max(1, count // ranks)
    pairs = {
        "none": (2, 3),
        "gpipe": (3, 4),
        "1f1b": (ranks + 1, ranks + 2),
        "interleaved_1f1b": (2 * (count // rounds), 3 * (count // rounds)),
    }
    pair = pairs.get(parallel.pipeline_schedule)
    return (count,) if pair is None or count <= pair[1] else pair


def with_micro_batches(plan: Plan, count: int) -> Plan:
    """The plan with another number of micro-batches, and the batch that it makes."""
    parallel = plan.parallel.model_copy(update={"num_micro_batches": count})
    batch = parallel.micro_batch_size * count * parallel.data_parallel_size
    training = plan.training.model_copy(update={"global_batch_size": batch})
    return plan.model_copy(update={"parallel": parallel, "training": training, "plan_hash": ""})


def representatives(plan: Plan) -> dict[int, int]:
    """For every pipeline rank the one that is run in its place: itself, or an earlier one that does the same."""
    chosen: dict[int, int] = {}
    seen: dict[object, int] = {}
    last = plan.parallel.pipeline_parallel_size - 1
    for rank in range(last + 1):
        position = rank
        if plan.parallel.pipeline_schedule in _SAME_ON_EVERY_RANK and 0 < rank < last:
            position = 1
        held = tuple(
            (tuple(plan.model.layer(index) for index in range(stage.start, stage.stop)), stage.recompute)
            for stage in plan.stages
            if stage.rank == rank
        )
        chosen[rank] = seen.setdefault((position, held), rank)
    return chosen


def extend(steps: Mapping[int, DryStep], plan: Plan) -> DryStep:
    """Equations (1) and (2): the step of the plan from those of one or two smaller counts of micro-batches."""
    count = plan.parallel.num_micro_batches
    if count in steps:
        return steps[count]
    low, high = sorted(steps)
    ahead = Fraction(count - high, high - low)
    first, second = steps[low], steps[high]
    batch = plan.parallel.micro_batch_size * (plan.training.sequence_length + 1) * TOKEN_BYTES * (high - low)
    growing = plan.parallel.pipeline_parallel_size > 1
    return DryStep(
        peaks={
            window: _extend_peak(first.peaks[window] if growing else None, peak, ahead, batch)
            for window, peak in second.peaks.items()
        },
        state=second.state,
        flops=second.flops + float(ahead) * (second.flops - first.flops),
        traffic=_extend_traffic(first.traffic, second.traffic, ahead),
    )


def largest_window(peaks: Mapping[Window, Peak]) -> Window:
    """Where the step's peak is."""
    return max(peaks, key=lambda window: peaks[window].total)


def _extend_peak(first: Peak | None, second: Peak, ahead: Fraction, batch: int) -> Peak:
    """Equation (2); without a ``first`` only the batch grows, by ``batch`` bytes from one count to the next."""
    growth = {"batch": batch}
    if first is not None:
        growth = {name: size - first.terms.get(name, 0) for name, size in second.terms.items()}
    terms = {name: size + round(ahead * growth.get(name, 0)) for name, size in second.terms.items()}
    return Peak(terms)


def _extend_traffic(first: Mapping[Route, Sum], second: Mapping[Route, Sum], ahead: Fraction) -> dict[Route, Sum]:
    found = {}
    for route, each in second.items():
        before = first.get(route, Sum())
        found[route] = Sum(
            each.count + round(ahead * (each.count - before.count)),
            each.payload_bytes + round(ahead * (each.payload_bytes - before.payload_bytes)),
        )
    return found

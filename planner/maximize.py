"""The largest sequence length, micro batch or global batch for which a plan of the space fits.

Sequence length, in multiples of a granularity g. With one layout, more tokens need more memory, and rules that ask for
divisibility (sequence and context parallel) repeat with a period p. So among lengths of one residue modulo p, none fits above one
that does not, and where a length fits and none of the next lcm(p, g) / g multiples does, none above it does:

    fits(s) and not fits(s + g), ..., not fits(s + lcm(p, g))  =>  s is the largest                                          (1)

That asks for the same layouts at every length: the context-parallel sizes and methods of all lengths are tried at each.

Galloping and bisection find such an s; all lengths that (1) names are tried.

Micro batch: a divisor of the global batch, each larger one tried and found not to fit.                                      (2)

Global batch: with gradient accumulation every batch fits, so the question is how many sequences a step can take without it. A
layout without a pipeline then has one micro-batch, and p stages have p, the fewest that fill the pipeline (or a stated
num_micro_batches). For every (tensor t, context c, pipeline p) on n devices the data-parallel size is d = n / (t c p), the
batch of micro batches of b is b x m x d, and memory grows with b alone: galloping and bisection give the largest b, the next was
tried.                                                                                                                        (3)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import lcm

import numpy as np

from costmodel.runtimes.rules import divisors, longest_sequence_length
from costmodel.specs import (
    MAX_GLOBAL_BATCH_SIZE,
    MAX_SEQUENCE_LENGTH,
    Infeasible,
    InputError,
    Maximum,
    Quantity,
    Recommendation,
    Trial,
)
from planner.axes import AXES
from planner.batch_layouts import BatchLayout, bare_context, batch_layouts
from planner.context_values import context_sizes, cuts_sequences, undominated_methods
from planner.inquiry import Inquiry, miss_of, nearest_miss, searched, try_space
from planner.space import Space

_CUT, _METHOD = "context_parallel_size", "context_parallel_method"
GRANULARITIES = (1024, 128, 16)
"""Multiples that sequence lengths are tried in; a finer one where not even the coarser one itself fits."""


@dataclass(slots=True)
class _Trials:
    """Values tried so far, each once."""

    space_of: Callable[[int], Space]
    made: dict[int, Trial] = field(default_factory=dict)

    def fits(self, value: int) -> bool:
        """Whether a plan fits at one value."""
        if value not in self.made:
            self.made[value] = try_space(self.space_of(value), value)
        return self.made[value].fits


def largest(fits: Callable[[int], bool], *, start: int, step: int, period: int, limit: int) -> int | None:
    """The largest multiple of ``step`` from ``start`` to ``limit`` that fits, by equation (1); None for none.

    Args:
        fits: monotone along every residue modulo ``period``: what does not fit is followed only by what does not.
        start: the smallest value to try.
        step: between values; ``period`` is a multiple of it.
        period: see ``fits``.
        limit: the largest value allowed.
    """

    def next_fit(after: int) -> int | None:
        return next((value for value in range(after, min(after + period - step, limit) + 1, step) if fits(value)), None)

    best, found = None, next_fit(start)
    while found is not None:
        best, span = found, step
        while best + span <= limit and fits(best + span):
            best, span = best + span, 2 * span
        while span > step:  # best fits; best + span does not, or lies beyond the limit
            span = (span // step + 1) // 2 * step
            if best + span <= limit and fits(best + span):
                best += span
        found = next_fit(best + step)
    return best


def longest_sequence(inquiry: Inquiry, granularity: int | None = None) -> Recommendation | Infeasible:
    """The fastest plan at the largest sequence length for which one fits (1); the length of the inquiry itself is ignored.

    Args:
        inquiry: the question.
        granularity: lengths are multiples of it; None takes the first of `GRANULARITIES` at which anything fits.

    Raises:
        InputError: for stated values that break a rule by themselves, and a granularity beyond learned position embeddings.
    """
    inquiry, limit = _of_every_length(inquiry), longest_sequence_length(inquiry.model)
    steps = [step for step in GRANULARITIES if step <= limit] if granularity is None else [granularity]
    if not steps or steps[0] > limit:
        raise InputError(
            f"sequence lengths in steps of {(steps or GRANULARITIES)[-1]} exceed the {limit} learned position embeddings of "
            f"{inquiry.model.name}; needed a granularity of at most {limit}"
        )
    for step in steps:
        trials = _Trials(lambda length: _at_length(inquiry, length).narrowed())
        period = lcm(step, _period(_at_length(inquiry, step).space()))
        start = -(-inquiry.training.loss_chunks // step) * step
        value = largest(trials.fits, start=start, step=step, period=period, limit=limit)
        if value is not None:
            following = value + step if value + step <= limit else None
            end = (
                "the longest that may be stated"
                if limit == MAX_SEQUENCE_LENGTH
                else f"the model has {limit:,} positions"
            )
            statement = (
                f"{value:,} tokens, in steps of {step}: "
                + (f"{following:,} {_verdict(trials, following)}" if following else end)
                + f" ({len(trials.made)} lengths tried; longer ones need more memory)"
            )
            answer = _at_length(inquiry, value)
            return _answer(answer, answer.space(), "sequence_length", value, following, trials, statement, step)
    return miss_of(_at_length(inquiry, steps[-1]).narrowed())


def _of_every_length(inquiry: Inquiry) -> Inquiry:
    """The question with the context-parallel sizes and methods of all lengths, as far as they are not stated."""
    training = inquiry.training.model_copy(update={"sequence_length": MAX_SEQUENCE_LENGTH})
    context = bare_context(inquiry.changed(training=training))
    if not cuts_sequences(context):
        return inquiry
    methods = inquiry.stated(_METHOD) or (0, *undominated_methods(context))
    sizes = context_sizes(context, inquiry.stated(_CUT), inquiry.stated(_METHOD))
    values = {_CUT: sizes, _METHOD: methods}
    held = {name: [AXES[name].show(code) for code in codes] for name, codes in values.items()}
    return inquiry.changed(allow={**{n: w for n, w in held.items() if n not in inquiry.fix}, **inquiry.allow})


def _at_length(inquiry: Inquiry, length: int) -> Inquiry:
    inquiry.report(f"trying sequence_length {length}")
    return inquiry.changed(training=inquiry.training.model_copy(update={"sequence_length": length}))


def _period(space: Space) -> int:
    """Of the rules that ask whether a length is divisible: by tensor sizes, and by two pieces for every context rank."""
    tensor = [int(size) for size in np.unique(space.grid.tensor_parallel_size)]
    context = [2 * int(size) for size in np.unique(space.grid.context_parallel_size) if size > 1]
    return lcm(*tensor) * lcm(*context)


def largest_micro_batch(inquiry: Inquiry) -> Recommendation | Infeasible:
    """The fastest plan with the largest micro batch for which one fits (2).

    Raises:
        InputError: for stated values that break a rule by themselves, and where micro_batch_size is held at one value.
    """
    if "micro_batch_size" in inquiry.fix:
        raise InputError("--maximize micro_batch_size decides micro_batch_size; leave out --fix micro_batch_size")
    devices = inquiry.space().num_devices
    values = inquiry.stated("micro_batch_size") or tuple(divisors(inquiry.training.global_batch_size))
    free = {name: words for name, words in inquiry.allow.items() if name != "micro_batch_size"}
    question = inquiry.changed(allow=free)
    trials = _Trials(lambda size: question.narrowed(num_devices_used=devices, micro_batch_size=size))
    previous = None
    for size in sorted(values, reverse=True):
        inquiry.report(f"trying micro_batch_size {size}")
        if trials.fits(size):
            beyond = f"{previous} {_verdict(trials, previous)}" if previous else "the largest that may be chosen"
            statement = f"{size}: {beyond} (of the divisors of the global batch, from the largest down)"
            return _answer(question, trials.space_of(size), "micro_batch_size", size, previous, trials, statement)
        previous = size
    return miss_of(trials.space_of(min(values)))


def largest_global_batch(inquiry: Inquiry) -> Recommendation | Infeasible:
    """The fastest plan with the largest global batch that needs no gradient accumulation (3).

    The global batch of the inquiry itself is ignored.

    Raises:
        InputError: for stated values that break a rule by themselves.
    """
    inquiry.refuse_stated("micro_batch_size", "--maximize global_batch_size")
    best: tuple[int, BatchLayout, _Trials] | None = None
    least: Space | None = None
    for layout in batch_layouts(inquiry):
        inquiry.report(
            f"trying tensor_parallel_size {layout.tensor}{layout.cut_words}, pipeline_parallel_size {layout.pipeline}"
        )
        trials = _Trials(lambda size, layout=layout: layout.space(inquiry, size))  # type: ignore[misc]
        most = MAX_GLOBAL_BATCH_SIZE // layout.unit
        start = 1 if best is None else best[0] // layout.unit + 1  # what is no better need not be tried
        size = largest(trials.fits, start=start, step=1, period=1, limit=most)
        if size is not None:
            best = (size * layout.unit, layout, trials)
        elif best is None and 1 in trials.made:
            least = _lesser(least, trials.space_of(1))
    if best is None:
        return miss_of(least if least is not None else inquiry.space())
    return _batch_answer(inquiry, *best)


def _batch_answer(inquiry: Inquiry, value: int, layout: BatchLayout, trials: _Trials) -> Recommendation | Infeasible:
    size = value // layout.unit
    training = inquiry.training.model_copy(update={"global_batch_size": value})
    beyond = size + 1 if size + 1 in trials.made else None
    tried = _Trials(lambda batch: trials.space_of(batch // layout.unit))
    tried.made = {
        number * layout.unit: trial.model_copy(update={"value": number * layout.unit})
        for number, trial in trials.made.items()
    }
    statement = (
        f"{value:,} sequences a step without gradient accumulation (num_micro_batches {layout.micro_batches}"
        f"{layout.cut_words}, pipeline_parallel_size {layout.pipeline}): no layout of the space holds more at once; "
        "accumulation allows any multiple"
    )
    following = beyond * layout.unit if beyond else None
    space = trials.space_of(size)
    return _answer(inquiry.changed(training=training), space, "global_batch_size", value, following, tried, statement)


def _lesser(one: Space | None, other: Space) -> Space:
    """The space whose nearest miss needs less; of layouts that all break rules, the first."""
    if one is None:
        return other
    needs = [try_space(space, 1).needed_bytes for space in (one, other)]
    return other if needs[1] is not None and (needs[0] is None or needs[1] < needs[0]) else one


def _verdict(trials: _Trials, value: int) -> str:
    """Why nothing fits at a value."""
    return "breaks a rule in every layout" if trials.made[value].reason else "does not fit"


def _answer(
    inquiry: Inquiry,
    space: Space,
    quantity: Quantity,
    value: int,
    following: int | None,
    trials: _Trials,
    statement: str,
    granularity: int | None = None,
) -> Recommendation | Infeasible:
    """The fastest plan at the largest value, beside why the next value does not fit."""
    answer = inquiry.answer(space)
    if isinstance(answer, Infeasible):
        return answer
    trials.made[value] = searched(trials.made[value], answer)
    maximum = Maximum(
        quantity=quantity,
        value=value,
        next_value=following,
        statement=statement,
        trials=tuple(trials.made[key] for key in sorted(trials.made)),
        granularity=granularity,
        nearest_miss=None
        if following is None
        else nearest_miss(trials.space_of(following), f"set {quantity} to {value}"),
    )
    return answer.model_copy(update={"maximum": maximum})

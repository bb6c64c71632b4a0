"""The fastest plan on all devices, or on fewer where their network makes more of them slower.

Candidates on all devices come first. A plan on n devices computes each layer of each micro-batch on tp x cp devices at once, so

    (1) T(n) >= min over (tp, cp, micro-batch, ...) of micro-batches x tp x cp x (forward + backward without communication) / n

and numbers of devices whose (1) is not below the best step time found hold no faster plan: on most clusters these are all. Of the
others rules, memory and bounds decide, and where they do not, a search:

    (2) U = min U(n), L = min of L(n) over what was searched, and of the bounds of the others
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules import RuleContext, divisors, valid_tensor_parallel_sizes
from costmodel.specs import ClusterSpec, Infeasible, Objective, ParallelConfig, Recommendation, Trial
from costmodel.work_bound import compute_seconds
from planner.completion import problem_of
from planner.context_values import context_sizes
from planner.enumeration import Declared, micro_batch_values, tensor_parallel_values
from planner.inquiry import Inquiry, searched, told, try_space
from planner.objectives import on_fewer
from planner.space import Space


def fastest(inquiry: Inquiry) -> Recommendation | Infeasible:
    """The fastest plan on all devices or an even share of them (`even_shares`), or on the stated numbers.

    Raises:
        InputError: for stated values that break a rule by themselves.
    """
    space = inquiry.space()
    found = inquiry.search(space)
    if isinstance(found, Infeasible) or inquiry.stated("num_devices_used"):
        return told(found, space)
    least = least_device_seconds(space.context, space.declared)
    most = max(space.num_devices)
    numbers = [number for number in even_shares(inquiry.cluster) if number < most]
    open_numbers = [number for number in numbers if least / number < found.certificate.upper_seconds]
    if not open_numbers:
        return told(found, space)
    return _of_several(inquiry, found, space, open_numbers)


def even_shares(cluster: ClusterSpec) -> list[int]:
    """Devices of a node, or nodes, such that a whole number of such parts makes up all of them."""
    node = cluster.devices_per_node
    return [*divisors(node), *(node * count for count in divisors(cluster.num_nodes) if count > 1)]


def _of_several(inquiry: Inquiry, first: Recommendation, space: Space, numbers: list[int]) -> Recommendation:
    """Equation (2) over all devices and some smaller numbers, the largest first."""
    best, best_space, most = first, space, max(space.num_devices)
    trials = [searched(Trial(value=most, candidates=first.certificate.candidates, fits=True), first)]
    for number in reversed(numbers):
        inquiry.report(f"trying {number} device{'s' * (number > 1)}")
        narrowed = inquiry.narrowed(num_devices_used=number)
        trial = try_space(narrowed, number)
        if trial.fits and (trial.lower_seconds or 0.0) < best.certificate.upper_seconds:
            found = inquiry.search(narrowed)
            assert isinstance(found, Recommendation)  # a candidate fits
            trial = searched(trial, found)
            if found.certificate.upper_seconds < best.certificate.upper_seconds:
                best, best_space = found, narrowed
        trials.append(trial)
    answer = told(best, best_space)
    assert isinstance(answer, Recommendation)
    upper = best.certificate.upper_seconds
    lower = min(upper, *(trial.lower_seconds for trial in trials if trial.fits and trial.lower_seconds is not None))
    if best is first:
        statement = f"fewer devices are not faster (tried: {_listed(numbers)})"
    else:
        used, slowdown = best.best.num_devices_used, first.certificate.upper_seconds / upper - 1
        statement = f"{used:,} devices are faster than {most:,}, which take {slowdown:.1%} longer"
    objective = Objective(
        name="step-time",
        value=upper,
        bound=lower,
        gap=(upper - lower) / upper,
        statement=f"{statement}; over all numbers of devices gap {(upper - lower) / upper:.2%}",
        trials=tuple(sorted(trials, key=lambda trial: trial.value)),
    )
    return on_fewer(answer, objective, reason=f"with {most:,} of them the step takes longer")


def _listed(numbers: list[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def least_device_seconds(context: RuleContext, declared: Declared) -> float:
    """N T(n) of equation (1): seconds of one step's computation, of all devices together."""
    batch = context.training.global_batch_size
    micro = declared.get("micro_batch_size", micro_batch_values(batch, context.training.sequence_length))
    valid = set(valid_tensor_parallel_sizes(context))
    sizes = [size for size in tensor_parallel_values(context, declared) if size in valid] or [1]
    cuts = context_sizes(context, declared.get("context_parallel_size"), declared.get("context_parallel_method"))
    rows = [
        (tensor, cut, sequence, loss, size)
        for tensor, cut, size in product(sizes, cuts, micro)
        for sequence, loss in (product((0, 1), repeat=2) if tensor > 1 else [(0, 0)])
        if batch % size == 0
    ]
    if not rows:
        return 0.0
    tensors, cut, sequence, loss, size = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    one = Grid.from_parallel(ParallelConfig(), "none").take(np.zeros(len(rows), dtype=np.int64))
    grid = replace(
        one,
        tensor_parallel_size=tensors,
        context_parallel_size=cut,
        sequence_parallel=sequence,
        loss_parallel=loss,
        micro_batch_size=size,
    )
    return float((compute_seconds(problem_of(context), grid) * tensors * cut * (batch // size)).min())

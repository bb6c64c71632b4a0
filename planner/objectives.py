"""The fewest devices and the lowest cost, each from searches for the step time over parts of the space.

T(n) is the step time of the fastest plan on n devices, with U(n) found and L(n) a bound from the certificate of that part.

Devices: the fewest devices on which a plan fits, then the fastest plan on them. Numbers are tried in ascending order until one
fits: whether plans fit is not monotone in n, because sizes must multiply to n and divide the model and the batch.   (1)

Cost per token is price x n x T(n) / tokens of a step; among plans on equally many devices the fastest is the cheapest, so

    value = min over n of price n U(n) / tokens,    bound = min over n of price n L(n) / tokens                      (2)

and a number of devices whose bound is above a value found needs no search. The price scales both alike, so it changes neither the
choice nor the gap.
"""

from __future__ import annotations

from costmodel.runtimes.rules import divisors
from costmodel.specs import ClusterSpec, Infeasible, Objective, Recommendation, Trial
from planner.inquiry import Inquiry, miss_of, nearest_miss, searched, try_space
from planner.rivals import with_rivals
from planner.space import Space

_MOST_NODES = 16


def every_number(cluster: ClusterSpec) -> list[int]:
    """1, 2, ... devices of one node, then whole nodes: what `fewest_devices` tries."""
    node = cluster.devices_per_node
    return [*range(1, node + 1), *(node * count for count in range(2, cluster.num_nodes + 1))]


def worthwhile_numbers(cluster: ClusterSpec) -> list[int]:
    """Divisors of one node, then whole nodes; of more than 16 nodes the powers of two and the divisors of their number."""
    node, nodes = cluster.devices_per_node, cluster.num_nodes
    counts = list(range(2, nodes + 1))
    if nodes > _MOST_NODES:
        counts = sorted({*(2**k for k in range(1, nodes.bit_length())), *divisors(nodes)} - {1})
    return [*divisors(node), *(node * count for count in counts)]


def fewest_devices(inquiry: Inquiry) -> Recommendation | Infeasible:
    """The fastest plan on the fewest devices on which a plan fits (1).

    Raises:
        InputError: for stated values that break a rule by themselves.
    """
    trials: list[Trial] = []
    spaces: list[Space] = []
    for number in sorted(inquiry.stated("num_devices_used") or every_number(inquiry.cluster)):
        inquiry.report(f"trying {number} device{'s' * (number > 1)}")
        spaces.append(inquiry.narrowed(num_devices_used=number))
        trials.append(try_space(spaces[-1], number))
        if trials[-1].fits:
            break
    if not trials[-1].fits:
        return miss_of(spaces[_closest(trials)])
    found = inquiry.answer(spaces[-1])
    assert isinstance(found, Recommendation)  # a candidate fits
    trials[-1] = searched(trials[-1], found)
    number = trials[-1].value
    smaller = f"none of the {len(trials) - 1} smaller numbers tried holds a plan that fits"
    objective = Objective(
        name="devices",
        value=number,
        bound=number,
        gap=0.0,
        statement=f"{number} device{'s' * (number > 1)} of {inquiry.cluster.num_devices}: "
        f"{smaller if trials[:-1] else 'the smallest number tried'}; among plans on {number} the fastest, gap "
        f"{found.certificate.gap:.2%}",
        trials=tuple(trials),
        nearest_miss=nearest_miss(spaces[-2] if spaces[:-1] else None, f"use {number} devices"),
    )
    return on_fewer(found, objective)


def cheapest(inquiry: Inquiry, price_per_device_hour: float) -> Recommendation | Infeasible:
    """The plan with the lowest cost per token (2).

    Args:
        inquiry: the question.
        price_per_device_hour: of one device, above 0, in any currency.

    Raises:
        InputError: for stated values that break a rule by themselves.
    """
    numbers = sorted(inquiry.stated("num_devices_used") or worthwhile_numbers(inquiry.cluster))
    spaces = {number: inquiry.narrowed(num_devices_used=number) for number in numbers}
    trials = {number: _reported(inquiry, spaces[number], number) for number in numbers}
    if not any(trial.fits for trial in trials.values()):
        return miss_of(spaces[numbers[_closest(list(trials.values()))]])
    training = inquiry.training
    per_token = price_per_device_hour / 3600 / (training.global_batch_size * training.sequence_length)

    def cost(number: int, seconds: float | None) -> float:
        return float("inf") if seconds is None else per_token * number * seconds * 1e9

    best: tuple[float, Recommendation, Space] | None = None
    for number in sorted(numbers, key=lambda number: cost(number, trials[number].lower_seconds)):
        if not trials[number].fits or (best is not None and cost(number, trials[number].lower_seconds) >= best[0]):
            continue
        inquiry.report(f"searching {number} devices")
        found = inquiry.search(spaces[number])
        assert isinstance(found, Recommendation)
        trials[number] = searched(trials[number], found)
        value = cost(number, trials[number].step_time_seconds)
        best = (value, found, spaces[number]) if best is None or value < best[0] else best
    assert best is not None
    bound = min(best[0], *(cost(number, trials[number].lower_seconds) for number in numbers))
    return on_fewer(
        with_rivals(best[1], best[2]), _cost_objective(best[0], bound, price_per_device_hour, tuple(trials.values()))
    )


def _cost_objective(value: float, bound: float, price: float, trials: tuple[Trial, ...]) -> Objective:
    gap = (value - bound) / value
    held = sum(trial.fits for trial in trials)
    return Objective(
        name="cost",
        value=value,
        bound=bound,
        gap=gap,
        statement=f"{value:,.4g} per 1e9 tokens at {price:g} per device-hour of the devices used: the lowest over {len(trials)} "
        f"numbers of devices, {held} of which hold a plan that fits, under this cost model, gap {gap:.2%}",
        trials=trials,
        price_per_device_hour=price,
    )


def _reported(inquiry: Inquiry, space: Space, number: int) -> Trial:
    inquiry.report(f"trying {number} device{'s' * (number > 1)}")
    return try_space(space, number)


def _closest(trials: list[Trial]) -> int:
    """Of trials of which none fits, the one whose nearest miss needs least; the last where all break rules."""
    missed = [index for index, trial in enumerate(trials) if trial.needed_bytes is not None]
    return min(missed, key=lambda index: trials[index].needed_bytes or 0) if missed else len(trials) - 1


def on_fewer(answer: Recommendation, objective: Objective, *, reason: str | None = None) -> Recommendation:
    """The answer with its objective; devices beyond those it uses are free for others, so their hours do not count.

    ``reason``: why they are idle, in words; None for that the objective asks for it.
    """
    reason = reason or f"as the objective {objective.name} asks"
    warnings = tuple(text.replace("as num_devices_used states", reason) for text in answer.warnings)
    duration = answer.duration
    if duration is not None:
        hours = duration.seconds * answer.best.num_devices_used / 3600
        duration = duration.model_copy(update={"device_hours": hours})
    return answer.model_copy(update={"objective": objective, "warnings": warnings, "duration": duration})

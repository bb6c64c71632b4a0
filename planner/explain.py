"""Say in sentences why a plan is what it is, from the numbers stored with it; nothing is computed anew or invented.

A plan alone explains its own terms. A recommendation adds the guide, the neighbours, the runner-up and the certificate.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from costmodel.specs import Communication, Estimate, Guide, InputError, Neighbour, Plan, Recommendation
from hardware_profiles.spec import Spec
from planner.candidates import GIB
from planner.evaluation import step_seconds
from planner.guide import deciding_terms
from planner.summary import summarize

_LARGEST = 3
_ENGLISH = {
    "gemm": "matrix multiplications",
    "attention": "attention kernels",
    "memory_bound": "memory-bound kernels",
    "launch": "kernel launches",
    "recompute": "recomputation of activations",
    "tensor_parallel": "tensor-parallel collectives",
    "context_parallel": "context-parallel collectives",
    "zero_gather": "gathering of sharded parameters",
    "data_parallel_gradient": "gradient reduction",
    "pipeline_p2p": "messages between pipeline stages",
    "bubble": "the pipeline bubble",
    "optimizer": "the optimizer step",
}


class Explanation(Spec):
    """One sentence of one section; ``numbers`` are those it speaks of."""

    section: str
    sentence: str
    numbers: dict[str, float | int | str] = Field(default_factory=dict)


def explain(subject: Recommendation | Plan) -> tuple[Explanation, ...]:
    """Why this plan.

    Args:
        subject: a recommendation, or a plan with its estimate.

    Returns:
        Sentences in reading order, grouped by section.

    Raises:
        InputError: when the plan carries no estimate.
    """
    plan = subject.best if isinstance(subject, Recommendation) else subject
    if plan.estimate is None:
        raise InputError(f"plan {plan.plan_hash[:12]} carries no estimate; estimate it first")
    own = [*_time(plan, plan.estimate), *_memory(plan.estimate), *_links(plan.estimate)]
    if isinstance(subject, Plan):
        return (_what(plan), *own)
    return (
        _what(plan),
        *_guide(subject.guide),
        *own,
        *_neighbours(subject.neighbours),
        *_runner_up(subject),
        *_certificate(subject),
    )


def _name(term: str) -> str:
    return _ENGLISH.get(term, term.replace("_", " "))


def _spell(name: str, value: float | int | str) -> str:
    """A number with the unit that its name ends in."""
    if isinstance(value, str):
        return f"{name.replace('_', ' ')} {value}"
    units = {"_bytes_per_second": (1e9, "GB/s"), "_bytes": (GIB, "GiB"), "_seconds": (1, "s")}
    for ending, (scale, unit) in units.items():
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')} {_digits(value / scale)} {unit}"
    return f"{name.replace('_', ' ')} {_digits(value)}"


def _digits(value: float) -> str:
    """Three significant digits, without exponents for large numbers."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _what(plan: Plan) -> Explanation:
    seconds = step_seconds(plan)
    return Explanation(
        section="plan",
        sentence=f"{plan.model.name} on {plan.num_devices_used} of {plan.cluster.num_devices} devices of "
        f"{plan.cluster.name}: {summarize(plan)}, {seconds:.4g} s a step.",
        numbers={"step_time_seconds": seconds, "num_devices_used": plan.num_devices_used},
    )


def _guide(guide: Guide) -> Iterator[Explanation]:
    for step in guide.steps:
        told = ", ".join(_spell(name, value) for name, value in step.numbers.items())
        sentence = f"{step.question} {step.answer.capitalize()}: {told}."
        yield Explanation(section="guide", sentence=sentence, numbers=dict(step.numbers))
    order = ", then ".join(option.strategy for option in guide.options)
    yield Explanation(section="guide", sentence=f"The guide's branch is '{guide.branch}': {order}.")
    if guide.agrees:
        yield Explanation(
            section="guide", sentence="The search agrees with the guide's first strategy that has a plan."
        )
    else:
        yield Explanation(section="guide", sentence=f"They disagree: {guide.disagreement}.")


def _time(plan: Plan, estimate: Estimate) -> Iterator[Explanation]:
    """The largest parts of the step, and what is hidden behind them."""
    total = estimate.step_time_seconds.value
    exposed = sorted((term for term in estimate.terms if term.exposed_seconds > 0), key=lambda t: -t.exposed_seconds)
    for term in exposed[:_LARGEST]:
        share = term.exposed_seconds / total
        yield Explanation(
            section="time",
            sentence=f"{share:.0%} of the step, {term.exposed_seconds:.3g} s, is {_name(term.name)}.",
            numbers={"exposed_seconds": term.exposed_seconds, "formula": term.formula, "evidence": term.evidence},
        )
    hidden = max(estimate.terms, key=lambda term: term.hidden_seconds, default=None)
    if hidden is not None and hidden.hidden_seconds > 0:
        yield Explanation(
            section="time",
            sentence=f"{hidden.hidden_seconds:.3g} s of {_name(hidden.name)} hide behind computation.",
            numbers={"hidden_seconds": hidden.hidden_seconds},
        )
    rate = estimate.model_flops_utilization
    yield Explanation(
        section="time",
        sentence=f"The step is bound by {_name(estimate.bound_by)}; model FLOPs utilization is {rate:.1%} of "
        f"{plan.cluster.device.name}'s peak, recomputation not counted.",
        numbers={"model_flops_utilization": rate, "bound_by": estimate.bound_by},
    )


def _memory(estimate: Estimate) -> Iterator[Explanation]:
    """How full the fullest device is, and of what."""
    peak, capacity = estimate.peak_memory_bytes.device, estimate.memory_capacity_bytes
    stage = max(estimate.memory, key=lambda memory: memory.peak_bytes)
    terms = sorted((term for term in stage.terms if term.phase == stage.peak_phase), key=lambda term: -term.bytes)
    held = ", ".join(f"{term.name.replace('_', ' ')} {term.bytes / GIB:.1f} GiB" for term in terms[:_LARGEST])
    verb = "fits" if estimate.fits else "does not fit"
    yield Explanation(
        section="memory",
        sentence=f"The fullest device (pipeline rank {stage.rank}) needs {peak / GIB:.1f} of {capacity / GIB:.1f} GiB, "
        f"{peak / capacity:.0%}, in phase {stage.peak_phase}; it {verb}. Most of it: {held}.",
        numbers={"needed_bytes": peak, "capacity_bytes": capacity, "pipeline_rank": stage.rank},
    )


def _links(estimate: Estimate) -> Iterator[Explanation]:
    """The heaviest traffic on every link that carries any."""
    heaviest: dict[str, Communication] = {}
    for traffic in estimate.communication:
        if traffic.link not in heaviest or traffic.bytes_per_rank > heaviest[traffic.link].bytes_per_rank:
            heaviest[traffic.link] = traffic
    for traffic in sorted(heaviest.values(), key=lambda traffic: -traffic.bytes_per_rank):
        if traffic.bytes_per_rank == 0:
            continue
        yield Explanation(
            section="links",
            sentence=f"Over {traffic.link} the heaviest traffic is {traffic.op.replace('_', ' ')} along "
            f"{traffic.axis}: "
            f"{_digits(traffic.bytes_per_rank / 1e9)} GB a device and step in {traffic.count} calls.",
            numbers={"bytes_per_rank": traffic.bytes_per_rank, "count": traffic.count},
        )


def _neighbours(neighbours: tuple[Neighbour, ...]) -> Iterator[Explanation]:
    """What every single step away from the plan would cost."""
    for neighbour in neighbours:
        head = f"With {neighbour.axis} {neighbour.value}"
        if neighbour.slowdown is None or neighbour.step_time_seconds is None:
            yield Explanation(section="neighbours", sentence=f"{head} this plan would not run: {neighbour.rejection}.")
            continue
        way = "slower" if neighbour.slowdown >= 0 else "faster"
        yield Explanation(
            section="neighbours",
            sentence=f"{head} the step would be {abs(neighbour.slowdown):.1%} {way} "
            f"({neighbour.step_time_seconds:.4g} s).",
            numbers={"step_time_seconds": neighbour.step_time_seconds, "slowdown": neighbour.slowdown},
        )


def _runner_up(answer: Recommendation) -> Iterator[Explanation]:
    """Why the next different layout lost."""
    other = next((plan for plan in answer.alternatives if plan.estimate is not None), None)
    if other is None:
        return
    slower = step_seconds(other) / step_seconds(answer.best) - 1
    yield Explanation(
        section="runner-up",
        sentence=f"The runner-up {summarize(other)} is {slower:.1%} slower because of "
        f"{deciding_terms(other, answer.best)}.",
        numbers={"step_time_seconds": step_seconds(other), "slowdown": slower},
    )
    if answer.ties:
        yield Explanation(
            section="runner-up",
            sentence=f"{len(answer.ties)} other layouts lie within the model's own error and are worth measuring; the "
            f"simplest is {answer.ties[0]}.",
            numbers={"ties": len(answer.ties)},
        )


def _certificate(answer: Recommendation) -> Iterator[Explanation]:
    certificate = answer.certificate
    yield Explanation(
        section="certificate",
        sentence=f"{certificate.candidates:,} candidates: {certificate.rejected_by_rule:,} broke a rule, "
        f"{certificate.rejected_by_memory:,} did not fit, {certificate.pruned_by_bound:,} cannot be faster, "
        f"{certificate.evaluated:,} were evaluated; the answer is {certificate.statement}.",
        numbers={
            "candidates": certificate.candidates,
            "upper_seconds": certificate.upper_seconds,
            "lower_seconds": certificate.lower_seconds,
            "gap": certificate.gap,
        },
    )

"""What bounds a plan: where its step goes, what fills its memory, which link it waits for."""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.specs import Communication, Estimate, Plan, Recommendation, Term
from planner.evaluation import estimate_of
from planner.figures import Explanation, Telling

_LARGEST = 3
_SAID_FROM = 5e-4  # smaller shares of the step would print as 0.0%
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
# The collectives of a term: mesh axis and operations.
_TRAFFIC: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tensor_parallel": (("tp",), ("all_reduce", "all_gather", "reduce_scatter")),
    "context_parallel": (("cp",), ("send", "all_gather", "reduce_scatter", "all_to_all")),
    "zero_gather": (("dp_shard",), ("all_gather",)),
    "data_parallel_gradient": (("dp_shard", "dp_replicate", "world"), ("reduce_scatter", "all_reduce")),
    "pipeline_p2p": (("pp",), ("send",)),
}


def term_words(name: str) -> str:
    """A term of the step in English."""
    return _ENGLISH.get(name, name.replace("_", " "))


def capacity_place(estimate: Estimate, place: str) -> str:
    """Where the estimate at ``place`` says how much of a device a plan may use: all, or what a stated limit leaves."""
    return f"{place}.memory_capacity_bytes" if estimate.memory_limit is None else f"{place}.memory_limit.usable_bytes"


def explain_bounds(subject: Recommendation | Plan) -> Iterator[Explanation]:
    """Time, memory and links of a plan that carries an estimate, or of the best plan of an answer."""
    plan, base = (subject.best, "best.") if isinstance(subject, Recommendation) else (subject, "")
    estimate, place = estimate_of(plan), f"{base}estimate"
    yield _kinds(subject, plan, estimate, base)
    yield from _time(subject, estimate, place)
    yield _bound_by(subject, estimate, place)
    yield from _bubble(subject, plan, base)
    yield _fullest(subject, estimate, place)
    yield _contents(subject, estimate, place)
    yield from _waiting(subject, estimate, place)
    yield from _traffic(subject, estimate, place)


def _time(subject: Recommendation | Plan, estimate: Estimate, place: str) -> Iterator[Explanation]:
    """The largest parts of the step, and what is hidden behind them."""
    terms = list(enumerate(estimate.terms))
    for index, term in sorted(terms, key=lambda pair: -pair[1].exposed_seconds)[:_LARGEST]:
        if term.exposed_seconds == 0:
            continue
        tell, path = Telling(subject, "time"), f"{place}.terms[{index}].exposed_seconds"
        share = tell.share([path], f"{place}.step_time_seconds.value")
        yield tell.say(f"{share} of the step, {tell.number(path, 'seconds')}, is {term_words(term.name)}.")
    index, term = max(terms, key=lambda pair: pair[1].hidden_seconds)
    if term.hidden_seconds > 0:
        tell = Telling(subject, "time")
        hidden = tell.number(f"{place}.terms[{index}].hidden_seconds", "seconds")
        yield tell.say(f"{hidden} of {term_words(term.name)} hide behind computation.")


def _kinds(subject: Recommendation | Plan, plan: Plan, estimate: Estimate, base: str) -> Explanation:
    """Shares of the step by what limits them; but for the least of them they add up to all of it."""
    tell, whole = Telling(subject, "time"), f"{base}estimate.step_time_seconds.value"
    device, precision = f"{base}cluster.device", plan.training.precision.compute
    peak = tell.number(f"{device}.peak_flops_per_second.{precision}", "flops")
    bandwidth = tell.number(f"{device}.memory_bandwidth_bytes_per_second", "rate")
    kinds: tuple[tuple[str, tuple[str, ...]], ...] = (
        (f"compute-bound (matrix multiplications and attention at a peak of {peak})", ("gemm", "attention")),
        (f"memory-bound (other kernels and the optimizer at {bandwidth})", ("memory_bound", "optimizer")),
        ("waiting for links", tuple(_TRAFFIC)),
        ("recomputation", ("recompute",)),
        ("pipeline bubble", ("bubble",)),
        ("kernel launches", ("launch",)),
    )
    told = []
    for kind, names in kinds:
        terms = [(index, term) for index, term in enumerate(estimate.terms) if term.name in names]
        paths = [f"{base}estimate.terms[{index}].exposed_seconds" for index, _ in terms]
        if sum(term.exposed_seconds for _, term in terms) >= _SAID_FROM * estimate.step_time_seconds.value:
            told.append(f"{tell.share(paths, whole)} {kind}")
    return tell.say(f"The step is {', '.join(told)}.")


def _bound_by(subject: Recommendation | Plan, estimate: Estimate, place: str) -> Explanation:
    tell = Telling(subject, "time")
    rate = tell.number(f"{place}.model_flops_utilization", "percent")
    return tell.say(
        f"The step is bound by {term_words(estimate.bound_by)}; model FLOPs utilization is {rate} of the peak, recomputation "
        "not counted."
    )


def _bubble(subject: Recommendation | Plan, plan: Plan, base: str) -> Iterator[Explanation]:
    """What the bubble of a pipeline comes from."""
    parallel = plan.parallel
    if parallel.pipeline_parallel_size == 1:
        return
    tell, place = Telling(subject, "time"), f"{base}parallel"
    chunks = (
        "" if parallel.num_model_chunks == 1 else f", {tell.number(f'{place}.num_model_chunks')} model chunks on each"
    )
    yield tell.say(
        f"Its pipeline works through {tell.number(f'{place}.num_micro_batches')} micro-batches on "
        f"{tell.number(f'{place}.pipeline_parallel_size')} stages{chunks}."
    )


def _fullest(subject: Recommendation | Plan, estimate: Estimate, place: str) -> Explanation:
    """How full the fullest device is."""
    tell, peak, capacity = (
        Telling(subject, "memory"),
        f"{place}.peak_memory_bytes.device",
        capacity_place(estimate, place),
    )
    needs, held, share = tell.number(peak, "memory"), tell.number(capacity, "memory"), tell.share([peak], capacity)
    if estimate.fits:
        rest = f"{tell.difference(capacity, peak, 'memory')} stay free"
    else:
        rest = f"{tell.difference(peak, capacity, 'memory')} too much, it does not fit"
    return tell.say(f"The fullest device needs {needs} of {held}, {share}; {rest}.")


def _contents(subject: Recommendation | Plan, estimate: Estimate, place: str) -> Explanation:
    """What the fullest device holds at its peak."""
    number, stage = max(enumerate(estimate.memory), key=lambda pair: pair[1].peak_bytes)
    terms = [(index, term) for index, term in enumerate(stage.terms) if term.phase == stage.peak_phase]
    largest = sorted(terms, key=lambda pair: -pair[1].bytes)[:_LARGEST]
    tell, at = Telling(subject, "memory"), f"{place}.memory[{number}]"
    rank = tell.number(f"{at}.rank")
    held = ", ".join(
        f"{term.name.replace('_', ' ')} {tell.number(f'{at}.terms[{index}].bytes', 'memory')}"
        for index, term in largest
    )
    return tell.say(
        f"It is on pipeline rank {rank}, fullest in phase {stage.peak_phase.replace('_', ' ')}; most of it: {held}."
    )


def _waiting(subject: Recommendation | Plan, estimate: Estimate, place: str) -> Iterator[Explanation]:
    """The traffic that the step waits for longest, and the links it takes."""
    index, term = max(enumerate(estimate.terms), key=lambda pair: _waits(pair[1]))
    places = {
        entry.link: f"{place}.communication[{number}].link"
        for number, entry in enumerate(estimate.communication)
        if _waits(term) > 0 and _belongs(term, entry)
    }
    if not places:
        return
    tell, exposed = Telling(subject, "links"), f"{place}.terms[{index}].exposed_seconds"
    seconds, share = tell.number(exposed, "seconds"), tell.share([exposed], f"{place}.step_time_seconds.value")
    links = " and ".join(tell.word(path) for path in places.values())
    yield tell.say(
        f"Of all traffic the step waits longest for {term_words(term.name)}, {seconds} ({share}), over {links}."
    )


def _waits(term: Term) -> float:
    return term.exposed_seconds if term.name in _TRAFFIC else 0.0


def _belongs(term: Term, entry: Communication) -> bool:
    axes, operations = _TRAFFIC[term.name]
    return entry.axis in axes and entry.op in operations and entry.link != ""


def _traffic(subject: Recommendation | Plan, estimate: Estimate, place: str) -> Iterator[Explanation]:
    """The heaviest traffic on every link that carries any."""
    heaviest: dict[str, tuple[int, Communication]] = {}
    for number, entry in enumerate(estimate.communication):
        if entry.link not in heaviest or entry.bytes_per_rank > heaviest[entry.link][1].bytes_per_rank:
            heaviest[entry.link] = number, entry
    for number, entry in sorted(heaviest.values(), key=lambda pair: -pair[1].bytes_per_rank):
        if entry.bytes_per_rank == 0:
            continue
        tell, at = Telling(subject, "links"), f"{place}.communication[{number}]"
        yield tell.say(
            f"Over {tell.word(f'{at}.link')} the heaviest traffic is {entry.op.replace('_', ' ')} along {entry.axis}: "
            f"{tell.number(f'{at}.bytes_per_rank', 'traffic')} a device and step in {tell.number(f'{at}.count')} calls."
        )

"""The answer of the planner."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from costmodel.specs.miss import NearestMiss
from costmodel.specs.plan import Plan
from costmodel.specs.question import Maximum, Objective
from costmodel.specs.rejection import RejectionCount
from hardware_profiles.spec import Spec


class AxisValues(Spec):
    """One axis of the declared space and the values searched."""

    axis: str
    values: tuple[str, ...]


class Certificate(Spec):
    """What was searched and what is proven.

    ``upper`` (U) is the best step time found, ``lower`` (L) a bound on every plan of the space.

    gap = (U - L) / U. "Optimal over the declared space under this cost model, gap g".
    """

    space: tuple[AxisValues, ...]
    candidates: NonNegativeInt
    rejected_by_rule: NonNegativeInt
    rejected_by_memory: NonNegativeInt
    pruned_by_bound: NonNegativeInt
    evaluated: NonNegativeInt
    upper_seconds: NonNegativeFloat
    lower_seconds: NonNegativeFloat
    gap: NonNegativeFloat
    search_seconds: NonNegativeFloat
    statement: str


class GuideStep(Spec):
    """One question of the decision guide with the numbers that answered it."""

    question: str
    answer: str
    numbers: dict[str, float | int | str] = Field(default={})
    source: str


class TermDifference(Spec):
    """Exposed seconds of one term of the step in a slower plan and in the best one."""

    name: str
    seconds: NonNegativeFloat
    best_seconds: NonNegativeFloat


class GuideOption(Spec):
    """One entry of the guide's ordered list; ``plan`` is the fastest feasible plan of that kind, with its step time.

    ``deciding``: the terms that make it slower than the best plan.
    """

    rank: PositiveInt
    strategy: str
    reason: str
    model_code_change: str
    step_time_seconds: NonNegativeFloat | None = None
    plan_summary: str | None = None
    deciding: tuple[TermDifference, ...] = ()


class Guide(Spec):
    """The decision guide of the documents: the branch taken, its place there and its list, beside the search's answer."""

    branch: str
    source: str = ""
    steps: tuple[GuideStep, ...]
    options: tuple[GuideOption, ...]
    agrees: bool
    disagreement: str | None = None


class Neighbour(Spec):
    """A plan one step away from the best: what it costs, or why it cannot be.

    ``needed_bytes`` is given where memory alone stands against it.
    """

    axis: str
    value: str
    step_time_seconds: NonNegativeFloat | None = None
    slowdown: float | None = None
    needed_bytes: NonNegativeInt | None = None
    rejection: str | None = None


class Rival(Spec):
    """A layout that people ask about: the fastest of its kind that fits, or why there is none.

    ``layout``: what defines it. ``is_best``: its fastest is the best plan. ``deciding``: the terms that make it slower.
    A negative ``slowdown`` is a faster plan outside the searched space. Where no candidate fits, ``needed_bytes`` is
    what the leanest one, ``plan_summary``, needs a device.
    """

    name: str
    layout: str
    is_best: bool = False
    plan_summary: str | None = None
    num_devices_used: PositiveInt | None = None
    step_time_seconds: NonNegativeFloat | None = None
    slowdown: float | None = None
    deciding: tuple[TermDifference, ...] = ()
    needed_bytes: NonNegativeInt | None = None
    rejection: str | None = None


class SaferPlan(Spec):
    """The fastest plan that leaves more memory free than a borderline best plan."""

    plan_summary: str
    step_time_seconds: NonNegativeFloat
    needed_bytes: NonNegativeInt


class GradientExchange(Spec):
    """Summing the gradients of the whole model over all devices: a ring all-reduce beside a parameter server.

    Seconds are bytes over rates, without latency (costmodel/gradient_exchange.py has the formulas). ``server``: one
    server behind one node's ports; ``sharded``: a server on every device, each with its share of the parameters.
    """

    num_devices: PositiveInt
    gradient_bytes: NonNegativeInt
    ring_bytes_per_second: NonNegativeFloat
    ring_seconds: NonNegativeFloat
    server_link: str
    server_bytes_per_second: NonNegativeFloat
    server_seconds: NonNegativeFloat
    sharded_bytes_per_second: NonNegativeFloat
    sharded_seconds: NonNegativeFloat


class TrainingDuration(Spec):
    """Time to train on a given number of tokens with the best plan."""

    total_tokens: PositiveInt
    num_steps: PositiveInt
    seconds: NonNegativeFloat
    device_hours: NonNegativeFloat


class Recommendation(Spec):
    """The planner's answer; ``best`` has the smallest estimated step time of all plans evaluated.

    ``stated``: the axes that the user held or listed. ``safer`` is given where memory is borderline.
    ``objective``: what was optimised where it is not the step time, and over which spaces; the certificate is then that of the
    space of the best plan. ``maximum``: the input that was made as large as fits.
    """

    best: Plan
    alternatives: tuple[Plan, ...] = ()
    ties: tuple[str, ...] = ()
    rejections: tuple[RejectionCount, ...] = ()
    certificate: Certificate
    guide: Guide
    neighbours: tuple[Neighbour, ...] = ()
    rivals: tuple[Rival, ...] = ()
    gradient_exchange: GradientExchange | None = None
    safer: SaferPlan | None = None
    stated: tuple[AxisValues, ...] = ()
    warnings: tuple[str, ...] = ()
    duration: TrainingDuration | None = None
    objective: Objective | None = None
    maximum: Maximum | None = None


class Infeasible(Spec):
    """The planner's answer when the declared space holds no feasible plan (exit code 3).

    ``guide``: what the documents advise all the same; none of its options has a plan.
    """

    rejections: tuple[RejectionCount, ...]
    nearest_miss: NearestMiss | None
    space: tuple[AxisValues, ...]
    guide: Guide | None = None

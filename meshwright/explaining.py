"""Why a plan is what it is, in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.specs import Infeasible, Plan, Recommendation, SiteProfile
from meshwright.estimating import estimate, with_estimate
from meshwright.plan_files import load_explained, load_plan
from meshwright.sites import load_site, runtime_of, with_site

if TYPE_CHECKING:
    from planner.figures import Explanation


def explain(
    subject: Plan | Recommendation | Infeasible | str | Path,
    *,
    search: bool = True,
    site: SiteProfile | str | Path | None = None,
) -> tuple[Explanation, ...]:
    """Where the time and the memory go, what the decision guide says, and what changing one size would do.

    A recommendation is explained from its own numbers. A plan alone knows nothing of its rivals, so the
    default space of its model, cluster and training is searched again.

    Args:
        subject: a recommendation, a plan or the answer that no plan is feasible, or a file of one of them.
        search: False explains a plan from its own numbers only.
        site: corrections to predict with; a recommendation made with others is explained as its best plan.

    Returns:
        Sentences in reading order, each with its section and the numbers it speaks of, which name the JSON paths they were
        read from.

    Raises:
        InputError: when the file is no valid plan, or the plan breaks a rule.
    """
    from planner.explain import explain as tell
    from planner.figures import in_search

    answer = load_explained(subject)
    if isinstance(answer, Infeasible):
        return tell(answer)
    if site is not None and load_site(site) != (answer.best if isinstance(answer, Recommendation) else answer).site:
        answer = with_site(load_plan(answer), site)
    if isinstance(answer, Recommendation):
        return tell(answer)
    plan = answer if answer.estimate is not None else with_estimate(answer, estimate(answer))
    if not search:
        return tell(plan)
    found = _search_again(plan)
    if isinstance(found, Recommendation) and found.best.plan_hash == plan.plan_hash:
        return in_search(tell(found))
    return (*tell(plan), _beside(plan, found))


def _search_again(plan: Plan) -> Recommendation | Infeasible:
    from planner.rivals import with_rivals
    from planner.search import search
    from planner.space import declare_space

    context = (plan.model, plan.cluster, plan.training, runtime_of(plan))
    limit = None if plan.estimate is None else plan.estimate.memory_limit
    space = declare_space(*context, memory_limit=limit)
    answer = search(*context, space)
    return answer if isinstance(answer, Infeasible) else with_rivals(answer, space)


def _beside(plan: Plan, found: Recommendation | Infeasible) -> Explanation:
    """The plan beside the best one of the default space."""
    from planner.figures import SEARCH, Explanation, Telling

    if isinstance(found, Infeasible):
        return Explanation(section="search", sentence="The default space holds no plan that fits.")
    own, other = "estimate.step_time_seconds.value", f"{SEARCH}best.estimate.step_time_seconds.value"
    tell = Telling(plan, "search", search=found)
    best = f"{tell.plan(f'{SEARCH}best')}, {tell.number(other, 'seconds')} a step"
    return tell.say(f"The best plan of the default space is {best}: this plan {tell.beside(own, other)}.")

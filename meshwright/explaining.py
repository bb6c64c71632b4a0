"""Why a plan is what it is, in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.specs import Infeasible, Plan, Recommendation, SiteProfile
from meshwright.estimating import estimate, with_estimate
from meshwright.plan_files import load_answer, load_plan
from meshwright.sites import load_site, runtime_of, with_site

if TYPE_CHECKING:
    from planner.explain import Explanation


def explain(
    subject: Plan | Recommendation | str | Path, *, search: bool = True, site: SiteProfile | str | Path | None = None
) -> tuple[Explanation, ...]:
    """Where the time and the memory go, what the decision guide says, and what changing one size would do.

    A recommendation is explained from its own numbers. A plan alone knows nothing of its rivals, so the
    default space of its model, cluster and training is searched again.

    Args:
        subject: a recommendation or a plan, or a file of either.
        search: False explains a plan from its own numbers only.
        site: corrections to predict with; a recommendation made with others is explained as its best plan.

    Returns:
        Sentences in reading order, each with its section and the numbers it speaks of.

    Raises:
        InputError: when the file is no valid plan, or the plan breaks a rule.
    """
    from planner.explain import explain as tell

    answer = load_answer(subject)
    if site is not None and load_site(site) != (answer.best if isinstance(answer, Recommendation) else answer).site:
        answer = with_site(load_plan(answer), site)
    if isinstance(answer, Recommendation):
        return tell(answer)
    plan = answer if answer.estimate is not None else with_estimate(answer, estimate(answer))
    if not search:
        return tell(plan)
    rivals = _search_again(plan)
    if isinstance(rivals, Recommendation) and rivals.best.plan_hash == plan.plan_hash:
        return tell(rivals)
    return (*tell(plan), _beside(plan, rivals))


def _search_again(plan: Plan) -> Recommendation | Infeasible:
    from planner.search import search
    from planner.space import declare_space

    context = (plan.model, plan.cluster, plan.training, runtime_of(plan))
    limit = None if plan.estimate is None else plan.estimate.memory_limit
    return search(*context, declare_space(*context, memory_limit=limit))


def _beside(plan: Plan, rivals: Recommendation | Infeasible) -> Explanation:
    """The plan beside the best one of the default space."""
    from planner.evaluation import step_seconds
    from planner.explain import Explanation
    from planner.summary import summarize

    if isinstance(rivals, Infeasible):
        return Explanation(section="search", sentence="The default space holds no plan that fits.")
    best, own = step_seconds(rivals.best), step_seconds(plan)
    return Explanation(
        section="search",
        sentence=f"The best plan of the default space is {summarize(rivals.best)}, {best:.4g} s a step: this plan takes "
        f"{own / best - 1:+.1%}.",
        numbers={"best_step_time_seconds": best, "step_time_seconds": own},
    )

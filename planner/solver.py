"""Integer linear programs through PuLP: HiGHS where it is installed, else CBC. Nothing is printed, no status taken on trust.

PuLP calls a solution that a time limit cut short "Optimal"; ``sol_status`` tells the two apart. HiGHS writes a banner to file
descriptor 1 when it is first used, whatever it is told, so the descriptor points elsewhere meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pulp


@dataclass(frozen=True, slots=True)
class Solved:
    """What a solver proved and found: ``bound`` on the minimum, and the values of a solution, None where it found none."""

    bound: float
    values: dict[str, float] | None


def minimise(problem: pulp.LpProblem, *, seconds: float) -> Solved | None:
    """Solve a minimisation with a time limit.

    Returns:
        None where the problem has no solution. Where the time ran out, ``bound`` is the solver's dual bound, or minus infinity
        where it tells none.
    """
    if pulp.HiGHS().available():
        return _highs(problem, seconds)
    problem.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=None if seconds == float("inf") else seconds))
    return _read(problem, -float("inf"))


def _highs(problem: pulp.LpProblem, seconds: float) -> Solved | None:
    limit = None if seconds == float("inf") else seconds
    with _quiet():
        problem.solve(pulp.HiGHS(msg=False, timeLimit=limit, threads=1))
    info = problem.solverModel.getInfo()
    bound = info.mip_dual_bound if problem.isMIP() else -float("inf")
    return _read(problem, bound)


def _read(problem: pulp.LpProblem, bound: float) -> Solved | None:
    if problem.sol_status == pulp.LpSolutionInfeasible:
        return None
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Solved(bound, None)
    if problem.sol_status == pulp.LpSolutionOptimal:
        bound = float(pulp.value(problem.objective))
    return Solved(bound, {variable.name: float(variable.varValue) for variable in problem.variables()})


@contextmanager
def _quiet() -> Iterator[None]:
    """File descriptor 1 leads nowhere meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)

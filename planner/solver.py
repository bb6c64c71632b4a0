"""Linear programs: with integers through PuLP (HiGHS where it is installed, else CBC), large ones without them as arrays straight
to HiGHS. Nothing is printed, no status taken on trust.

PuLP calls a solution that a time limit cut short "Optimal"; ``sol_status`` tells the two apart. HiGHS writes a banner to file
descriptor 1 when it is first used, whatever it is told, so the descriptor points elsewhere meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pulp
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Solved:
    """What a solver proved and found: ``bound`` on the minimum, and the values of a solution, None where it found none."""

    bound: float
    values: dict[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearProgram:
    """Minimise ``cost`` x where every row of the matrix times x is at least ``least`` and low <= x <= high, all finite.

    The matrix is given by its entries: ``row``, ``column``, ``value``, rows in ascending order.
    """

    cost: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    row: NDArray[np.int64]
    column: NDArray[np.int64]
    value: NDArray[np.float64]
    least: NDArray[np.float64]


def minimise_linear(program: LinearProgram) -> tuple[float, NDArray[np.float64]] | None:
    """A lower bound on the minimum and where it lies, or None where HiGHS is missing or finds nothing.

    The bound does not rest on the solver's tolerances: of any multipliers y >= 0 of the rows, y least + the least that
    (cost - y matrix) x can be between low and high is one (A. Neumaier, O. Shcherbina, Safe bounds in linear and mixed-integer
    linear programming, 2004, equation 4).
    """
    if not pulp.HiGHS().available():
        return None
    import highspy

    infinite = np.full(len(program.least), highspy.kHighsInf)
    wanted = highspy.HighsLp()
    wanted.num_col_, wanted.num_row_ = len(program.cost), len(program.least)
    wanted.col_cost_, wanted.col_lower_, wanted.col_upper_ = program.cost, program.low, program.high
    wanted.row_lower_, wanted.row_upper_ = program.least, infinite
    wanted.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    wanted.a_matrix_.start_ = np.searchsorted(program.row, np.arange(len(program.least) + 1))
    wanted.a_matrix_.index_, wanted.a_matrix_.value_ = program.column, program.value
    with _quiet():
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1), ("solver", "simplex")):
            solver.setOptionValue(option, value)
        solver.passModel(wanted)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        found = solver.getSolution()
    weight = np.maximum(0.0, np.array(found.row_dual))
    left = program.cost - np.bincount(
        program.column, weights=weight[program.row] * program.value, minlength=len(program.cost)
    )
    return float(weight @ program.least + np.minimum(left * program.low, left * program.high).sum()), np.array(
        found.col_value
    )


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

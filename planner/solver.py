"""Linear programs: with integers through PuLP (HiGHS where it is installed, else CBC), those without them as arrays straight to
HiGHS. Nothing is printed, no status taken on trust.

PuLP calls a solution that a time limit cut short "Optimal"; ``sol_status`` tells the two apart. HiGHS writes a banner to file
descriptor 1 when it is first used, whatever it is told, so the descriptor points elsewhere meanwhile.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import highspy
    import pulp

Vector = NDArray[np.float64]
_TIGHT = 1e-9


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

    def proven(self, weight: Vector) -> tuple[float, Vector, Vector]:
        """What multipliers y >= 0 [rows] say of every x that obeys the rows: cost x >= y least + (cost - y matrix) x.

        Returns:
            Y least, cost - y matrix [columns], and the least that each column of its product with x can be.
        """
        paid = np.bincount(self.column, weights=weight[self.row] * self.value, minlength=len(self.cost))
        left = self.cost - paid
        return float(weight @ self.least), left, np.minimum(left * self.low, left * self.high)


@cache
def has_highs() -> bool:
    """Whether HiGHS is installed; PuLP, which takes a while to import, is not asked."""
    try:
        import highspy  # noqa: F401
    except ImportError:
        return False
    return True


class Minimum(NamedTuple):
    """A lower ``bound`` on a minimum, where it lies ``at`` [columns], and the multipliers [rows] that prove the bound."""

    bound: float
    at: Vector
    weight: Vector


def minimise_linear(program: LinearProgram) -> Minimum | None:
    """The minimum, or None where HiGHS is missing or finds nothing.

    The bound does not rest on the solver's tolerances: of any multipliers y >= 0 of the rows, y least + the least that
    (cost - y matrix) x can be between low and high is one, `LinearProgram.proven` (A. Neumaier, O. Shcherbina, Safe bounds in
    linear and mixed-integer linear programming, 2004, equation 4).
    """
    if not has_highs():
        return None
    import highspy

    with _quiet():
        solver = _solver(program, solver="simplex")
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        found = solver.getSolution()
    weight = np.maximum(0.0, np.array(found.row_dual))
    constant, _, least = program.proven(weight)
    return Minimum(constant + float(least.sum()), np.array(found.col_value), weight)


def minimise_whole(program: LinearProgram, *, whole: int, seconds: float, nodes: int) -> tuple[float, Vector | None]:
    """A lower bound on the minimum with whole numbers in the first columns, infinite where there is none, and the best found.

    Args:
        program: the rest of it.
        whole: columns with whole numbers.
        seconds: time limit.
        nodes: of branch and bound, at most.

    Raises:
        KeyboardInterrupt: at once, though HiGHS is at work.
    """
    import highspy

    with _quiet():
        tight = dict.fromkeys(("primal_feasibility_tolerance", "mip_feasibility_tolerance", "mip_rel_gap"), _TIGHT)
        limits = {"mip_max_nodes": nodes, **({} if seconds == float("inf") else {"time_limit": seconds})}
        solver = _solver(program, **tight, **limits)
        kinds = [highspy.HighsVarType.kInteger] * whole
        solver.changeColsIntegrality(whole, np.arange(whole, dtype=np.int32), np.array(kinds))
        solver.HandleUserInterrupt = True
        solver.startSolve()
        try:
            while not solver.wait(0.1)[0]:
                pass
        except KeyboardInterrupt:
            # Another program may be solved after this one, so it must have ended; a joined thread would only look so.
            solver.cancelSolve()  # type: ignore[no-untyped-call]
            solver.wait()
            raise
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return float("inf"), None
    info = solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return float(info.mip_dual_bound), np.array(solver.getSolution().col_value) if found else None


def _solver(program: LinearProgram, **options: str | float) -> highspy.Highs:
    import highspy

    wanted = highspy.HighsLp()
    wanted.num_col_, wanted.num_row_ = len(program.cost), len(program.least)
    wanted.col_cost_, wanted.col_lower_, wanted.col_upper_ = program.cost, program.low, program.high
    wanted.row_lower_, wanted.row_upper_ = program.least, np.full(len(program.least), highspy.kHighsInf)
    wanted.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    wanted.a_matrix_.start_ = np.searchsorted(program.row, np.arange(len(program.least) + 1))
    wanted.a_matrix_.index_, wanted.a_matrix_.value_ = program.column, program.value
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in {"output_flag": False, "threads": 1, **options}.items():
        solver.setOptionValue(option, value)
    solver.passModel(wanted)
    return solver


def minimise(problem: pulp.LpProblem, *, seconds: float) -> Solved | None:
    """Solve a minimisation with a time limit.

    Returns:
        None where the problem has no solution. Where the time ran out, ``bound`` is the solver's dual bound, or minus infinity
        where it tells none.
    """
    import pulp

    if has_highs():
        return _highs(problem, seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of PuLP 4, which comes without CBC
        solver = pulp.PULP_CBC_CMD(msg=False, timeLimit=None if seconds == float("inf") else seconds)
    problem.solve(solver)
    return _read(problem, -float("inf"))


def _highs(problem: pulp.LpProblem, seconds: float) -> Solved | None:
    import pulp

    limit = None if seconds == float("inf") else seconds
    with _quiet():
        problem.solve(pulp.HiGHS(msg=False, timeLimit=limit, threads=1))
    info = problem.solverModel.getInfo()
    bound = info.mip_dual_bound if problem.isMIP() else -float("inf")
    return _read(problem, bound)


def _read(problem: pulp.LpProblem, bound: float) -> Solved | None:
    import pulp

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

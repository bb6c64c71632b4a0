"""The integer program over recomputed layers of several chunks: its bound, its answer, and what the solver prints."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pulp
import pytest

from costmodel.completions import StageColumns, completion_bytes, completion_seconds
from costmodel.runtimes.grid import Grid
from costmodel.runtimes.rules import RuleContext
from costmodel.specs import ParallelConfig
from meshwright.inputs import load_cluster, load_model, load_runtime, make_training
from planner import solver
from planner.chunk_counts import Durations, longest_path_cut
from planner.completion import Completer
from planner.count_solving import count_problem
from planner.solver import minimise


def worlds(capacity_share: float) -> tuple[Completer, Grid]:
    """Two ranks of two chunks of two layers; memory between all layers recomputed (0) and none (1)."""
    model = load_model("llama-3-8b")
    model = model.model_copy(update={"layers": (model.layers[0].model_copy(update={"count": 8}),)})
    cluster, runtime = load_cluster("2xH100-SXM"), load_runtime("torch")
    training = make_training(cluster, runtime, global_batch_size=6, sequence_length=4096)
    context = RuleContext(model=model, cluster=cluster, training=training, runtime=runtime)
    parallel = ParallelConfig(
        pipeline_parallel_size=2, pipeline_schedule="interleaved_1f1b", num_model_chunks=2, micro_batch_size=1,
        num_micro_batches=6,
    )  # fmt: skip
    one = Grid.from_parallel(parallel, "full")
    completer = Completer(context, np.inf, free=False, counts="per_stage")
    layers = np.full((1, 4), 2)
    ends = [
        completion_bytes(completer._problem, one, StageColumns.contiguous(layers, counts)).max()
        for counts in (layers, np.zeros_like(layers))
    ]
    capacity = ends[0] + capacity_share * (ends[1] - ends[0])
    return Completer(context, float(capacity), free=False, counts="per_stage"), one


def brute_force(completer: Completer, one: Grid) -> float:
    counts = np.array(list(itertools.product(range(3), repeat=4)))
    layers = np.full_like(counts, 2)
    rows, stages = one.take(np.zeros(len(counts), dtype=np.int64)), StageColumns.contiguous(layers, counts)
    fits = completion_bytes(completer._problem, rows, stages).max(axis=1) <= completer.capacity_bytes
    return float(completion_seconds(completer._problem, rows, stages)[fits].min())


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_the_program_finds_the_fastest_counts_that_fit(share: float) -> None:
    completer, one = worlds(share)
    truth = brute_force(completer, one)
    quick = completer.best(one)
    assert quick.lower[0] <= truth * (1 + 1e-9)
    assert quick.seconds[0] >= truth * (1 - 1e-9)
    counts, known = quick.recomputed[0], float(quick.seconds[0])
    solved = completer.solved(one, counts, known=known, upper=np.inf, seconds=60.0, most_cuts=100)
    assert solved.lower[0] <= truth * (1 + 1e-9)
    assert min(known, float(solved.seconds[0])) == pytest.approx(truth, rel=1e-9)
    assert solved.lower[0] == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_without_highs_cbc_finds_the_same(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no graph is a program, and paths alone prove what they did before."""
    monkeypatch.setattr(solver, "has_highs", lambda: False)
    completer, one = worlds(share)
    truth, quick = brute_force(completer, one), completer.best(one)
    counts, known = quick.recomputed[0], float(quick.seconds[0])
    solved = completer.solved(one, counts, known=known, upper=np.inf, seconds=60.0, most_cuts=100)
    assert min(known, float(solved.seconds[0])) == pytest.approx(truth, rel=1e-9)
    assert solved.lower[0] == pytest.approx(truth, rel=1e-6)


def test_a_cut_is_a_path_of_the_graph() -> None:
    """Its length is at most the step time of any counts, and equal at those it was made for; on it are whole backwards."""
    completer, one = worlds(0.5)
    given = completer._given(one)
    problem = replace(count_problem(given), short=np.zeros(2), least=np.zeros(2, dtype=np.int64))
    durations = Durations(problem)
    at = np.array([2.0, 0.0, 1.0, 2.0])
    cut, length = longest_path_cut(durations, at)
    assert cut is not None
    backwards_on_it = cut.slope / durations.per_layer
    assert backwards_on_it.sum() >= 6
    assert backwards_on_it == pytest.approx(np.rint(backwards_on_it), abs=1e-9)
    everywhere = np.array(list(itertools.product(range(3), repeat=4)), dtype=np.float64)
    backwards = np.array([durations.of(counts) for counts in everywhere])
    lengths, steps = cut.constant + everywhere @ cut.slope, durations.seconds(backwards)
    assert (lengths <= steps * (1 + 1e-9)).all()
    here = int(np.flatnonzero((everywhere == at).all(axis=1))[0])
    assert lengths[here] == pytest.approx(steps[here], rel=1e-3)
    assert length == pytest.approx(steps[here], rel=1e-12)
    stages = StageColumns.contiguous(np.full((81, 4), 2), everywhere.astype(np.int64))
    real = completion_seconds(completer._problem, one.take(np.zeros(81, dtype=np.int64)), stages)
    assert (steps <= real * (1 + 1e-9)).all()


def test_an_impossible_program_has_no_solution_and_a_possible_one_its_minimum() -> None:
    program = pulp.LpProblem("small", pulp.LpMinimize)
    x = program.add_variable("x", 0, 10, cat=pulp.LpInteger)
    program += x
    program += 2 * x >= 5
    found = minimise(program, seconds=10.0)
    assert found is not None
    assert found.values == {"x": 3}
    assert found.bound == pytest.approx(3)
    program += x <= 2
    assert minimise(program, seconds=10.0) is None


def test_the_solver_prints_nothing() -> None:
    """HiGHS writes a banner to file descriptor 1 at its first use; JSON stands there alone."""
    script = (
        "import pulp\nfrom planner.solver import minimise\n"
        "p = pulp.LpProblem('p', pulp.LpMinimize)\nx = p.add_variable('x', 0, 10, cat=pulp.LpInteger)\n"
        "p += x\np += 2 * x >= 5\nprint(minimise(p, seconds=5.0).bound)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "3.0\n"

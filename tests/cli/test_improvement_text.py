"""A better plan beside the given one, in words: made-up plans, so that the text changes only when the text changes."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from rich.console import Console
from sample_documents import sample_infeasible, sample_plan, sample_recommendation

from costmodel.specs import Infeasible, Recommendation, TermDifference
from meshwright.cli.render.improvement import render_improvement
from meshwright.improving import Change, Improvement, changes


def text_of(found: Improvement) -> str:
    console = Console(file=StringIO(), width=100, highlight=False)
    render_improvement(console, found)
    output = console.file
    assert isinstance(output, StringIO)
    return output.getvalue()


def beside(answer: Recommendation | Infeasible, seconds: float) -> Improvement:
    """A given plan of so many seconds a step, beside the sample's 8."""
    given = sample_plan(seconds, tensor_parallel_size=8, data_parallel_shard_size=2, num_micro_batches=512)
    if isinstance(answer, Infeasible):
        return Improvement(given=given, answer=answer)
    return Improvement(
        given=given,
        answer=answer,
        changes=changes(given, answer.best),
        gained_seconds=seconds - 8.0,
        saved_bytes=-3 * 1024**3,
        deciding=(TermDifference(name="tensor_parallel", seconds=3.0, best_seconds=1.0),) if seconds > 8 else (),
    )


def test_a_faster_plan(golden: Callable[[str, str], None]) -> None:
    golden("improvement.txt", text_of(beside(sample_recommendation(), 10.0)))


def test_no_plan_of_the_searched_space_is_faster() -> None:
    told = text_of(beside(sample_recommendation(), 7.0))
    assert "Better  nothing that is searched: the best other plan of runtime torch is tp4+sp pp4 dp4" in told
    assert "1 s a step more (14.3%)" in told


def test_the_given_plan_is_the_best() -> None:
    answer = sample_recommendation()
    same = Improvement(given=answer.best, answer=answer, gained_seconds=0.0, saved_bytes=0)
    assert text_of(same).strip() == "Better  nothing: this is the best plan of runtime torch"


def test_nothing_fits() -> None:
    assert "Better  no plan of runtime torch fits" in text_of(beside(sample_infeasible(), 10.0))


def test_a_change_holds_words() -> None:
    found = beside(sample_recommendation(), 10.0)
    assert Change(field="tensor_parallel_size", given="8", better="4") in found.changes

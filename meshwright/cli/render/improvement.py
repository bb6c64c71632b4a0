"""A better plan beside the given one."""

from __future__ import annotations

from rich.console import Console

from costmodel.specs import Infeasible
from meshwright import units
from meshwright.cli.render.tables import heading, lines, rows
from meshwright.improving import Improvement
from planner.evaluation import estimate_of, step_seconds
from planner.explain_bounds import term_words
from planner.summary import summarize


def render_improvement(console: Console, found: Improvement) -> None:
    """What would be better within the runtime: settings that change, seconds and bytes, and the terms that decide."""
    name = found.given.runtime.name
    if isinstance(found.answer, Infeasible):
        heading(console, "Better", f"no plan of runtime {name} fits")
        return
    best = found.answer.best
    if not found.changes:
        heading(console, "Better", f"nothing: this is the best plan of runtime {name}")
        return
    given = estimate_of(found.given)
    if given.fits and found.gained_seconds is not None and found.gained_seconds <= 0:
        # The planner's spaces leave some layouts out, tensor parallelism across nodes among them.
        heading(
            console, "Better", f"nothing that is searched: the best other plan of runtime {name} is {summarize(best)}"
        )
    else:
        heading(console, "Better", f"the best plan of runtime {name}: {summarize(best)}")
    body = [(change.field, change.given, change.better) for change in found.changes]
    body.append(("step time", units.seconds(step_seconds(found.given)), units.seconds(step_seconds(best))))
    peak, other = given.peak_memory_bytes.device, estimate_of(best).peak_memory_bytes.device
    body.append(("memory of a device", units.memory(peak), units.memory(other)))
    rows(console, ("", "given", "better"), body, left=("",))
    lines(console, _reasons(found))


def _reasons(found: Improvement) -> list[str]:
    assert found.gained_seconds is not None
    assert found.saved_bytes is not None
    seconds, percent = abs(found.gained_seconds), abs(found.gained_seconds) / step_seconds(found.given)
    faster = f"{units.seconds(seconds)} a step {'less' if found.gained_seconds >= 0 else 'more'} ({percent:.1%})"
    memory = f"{units.memory(abs(found.saved_bytes))} a device {'less' if found.saved_bytes >= 0 else 'more'}"
    told = [
        f"{term_words(term.name)}: {units.seconds(term.best_seconds)} instead of {units.seconds(term.seconds)}"
        for term in found.deciding
    ]
    fits = [] if estimate_of(found.given).fits else ["the given plan does not fit"]
    return [*fits, f"{faster}, {memory}", *told]

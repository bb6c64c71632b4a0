"""Sentences whose every number names the place in the answer's JSON that it was read from.

A `Telling` reads values by path (``best.estimate.terms[3].exposed_seconds``), spells them, and keeps a `Figure` of each, so
that a program can read the same JSON, work the number out again and find it in the sentence (benchmarks/explanations.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10, prod
from typing import Any

from hardware_profiles.spec import Spec
from planner.summary import summarize

SEARCH = "search:"
_STEP = re.compile(r"([A-Za-z_]\w*)|\[(\d+)\]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "seconds": ((1, "s"), (1e-3, "ms"), (1e-6, "us")),
    "memory": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
    "traffic": ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")),
    "rate": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "KB/s")),
    "flops": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")),
    "percent": ((1e-2, "%"),),
    "number": ((1, ""),),
}
_SMALLEST = {"memory": 0.1, "seconds": 0.1}  # tenths are still said in GiB and in seconds


class Figure(Spec):
    """A number or name as a sentence prints it, and where it comes from.

    ``value`` is ``formula`` over a, b, c, ...: the values at ``paths`` of the JSON document explained, in their order. The
    formula ``len(a)`` counts the entries of a list, ``summary(a)`` writes a plan in short form. A path that starts with
    ``search:`` leads into the answer of the search that the explanation made again.
    """

    text: str
    value: float | int | str
    paths: tuple[str, ...]
    formula: str = "a"


class Explanation(Spec):
    """One sentence of one section; ``numbers`` are those it speaks of, in its order."""

    section: str
    sentence: str
    numbers: tuple[Figure, ...] = ()


def value_at(document: Any, path: str) -> Any:
    """The value at a path of a spec, as its JSON has it.

    Raises:
        KeyError: when the document has no such place.
    """
    value = document
    for name, index in _STEP.findall(path):
        try:
            value = value[int(index)] if index else value[name] if isinstance(value, dict) else getattr(value, name)
        except (AttributeError, IndexError, KeyError, TypeError):
            raise KeyError(path) from None
    return value


def in_search(explanations: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """Sentences about the answer of a search made again: their paths say so."""
    return tuple(
        explanation.model_copy(
            update={
                "numbers": tuple(
                    figure.model_copy(update={"paths": tuple(SEARCH + path for path in figure.paths)})
                    for figure in explanation.numbers
                )
            }
        )
        for explanation in explanations
    )


def spell(value: float, unit: str, *, beside: float = 0.0) -> str:
    """A number with three significant digits, a percentage with one decimal, in the largest unit that it reaches.

    Args:
        value: in SI.
        unit: a key of the scales.
        beside: a number that it stands beside; the larger of the two chooses the unit and the decimals.
    """
    size = max(abs(value), abs(beside))
    scales = _SCALES[unit]
    scale, name = next((pair for pair in scales if size >= _SMALLEST.get(unit, 1.0) * pair[0]), scales[-1])
    if size == 0:
        scale, name = scales[0]
    scaled = value / scale
    if unit == "percent":
        return f"{scaled:,.1f}%"
    if isinstance(value, int) and scale == 1:
        return f"{value:,}"
    decimals = 0 if size == 0 else max(0, 2 - floor(log10(size / scale)))
    return f"{scaled:,.{decimals}f} {name}".rstrip()


class Telling:
    """One sentence in the making: every method returns the text to print and keeps the figure."""

    def __init__(self, document: Spec | Mapping[str, Any], section: str, *, search: Spec | None = None) -> None:
        self._document = document
        self._search = search
        self._section = section
        self._figures: list[Figure] = []

    def say(self, sentence: str) -> Explanation:
        """The sentence with the figures that went into it."""
        return Explanation(section=self._section, sentence=sentence, numbers=tuple(self._figures))

    def value(self, path: str) -> Any:
        """What stands at a path, without printing it."""
        inner = path.removeprefix(SEARCH)
        return value_at(self._document if inner == path else self._search, inner)

    def word(self, path: str) -> str:
        """A name as it stands in the document."""
        word = str(self.value(path))
        return self._keep(word, word, (path,), "a")

    def plan(self, path: str) -> str:
        """A plan in short form."""
        text = summarize(self.value(path))
        return self._keep(text, text, (path,), "summary(a)")

    def number(self, path: str, unit: str = "number", *, beside: str | None = None) -> str:
        """A number as it stands in the document, in the unit of the one at ``beside`` where that is larger."""
        value, other = self.value(path), 0.0 if beside is None else self.value(beside)
        return self._keep(spell(value, unit, beside=other), value, (path,), "a")

    def pair(self, first: str, second: str) -> str:
        """Two times against each other, in one unit."""
        one, two = self.number(first, "seconds", beside=second), self.number(second, "seconds", beside=first)
        return f"{one} against {two}"

    def share(self, parts: Sequence[str], whole: str) -> str:
        """The sum of some values over another."""
        paths = (*parts, whole)
        total = sum(self.value(part) for part in parts)
        letters = _LETTERS[: len(parts)]
        above = letters if len(parts) == 1 else f"({' + '.join(letters)})"
        value = total / self.value(whole)
        return self._keep(spell(value, "percent"), value, paths, f"{above} / {_LETTERS[len(parts)]}")

    def excess(self, path: str, reference: str) -> str:
        """How much larger one value is than another, as a percentage; how many times as large from twice on."""
        ratio = self.value(path) / self.value(reference)
        if ratio >= 2:
            return self._keep(f"{spell(ratio, 'number')} times", ratio, (path, reference), "a / b")
        return self._keep(spell(ratio - 1, "percent"), ratio - 1, (path, reference), "a / b - 1")

    def shortfall(self, path: str, reference: str) -> str:
        """How much smaller one value is than another, as a percentage."""
        value = 1 - self.value(path) / self.value(reference)
        return self._keep(spell(value, "percent"), value, (path, reference), "1 - a / b")

    def difference(self, path: str, less: str, unit: str) -> str:
        """One value less another."""
        value = self.value(path) - self.value(less)
        return self._keep(spell(value, unit), value, (path, less), "a - b")

    def window_share(self, window: str, length: str) -> str:
        """The share w s - w^2 / 2 of the s^2 scores of a sequence that causal attention in a window looks at."""
        inside, whole = self.value(window), self.value(length)
        value = (inside * whole - inside * inside / 2) / (whole * whole)
        return self._keep(spell(value, "percent"), value, (window, length), "(a * b - a * a / (1 + 1)) / (b * b)")

    def product(self, paths: Sequence[str]) -> str:
        """The product of some whole numbers."""
        value = prod(self.value(path) for path in paths)
        return self._keep(spell(value, "number"), value, tuple(paths), " * ".join(_LETTERS[: len(paths)]))

    def remainder(self, factors: Sequence[str], less: str) -> str:
        """The product of some whole numbers less another."""
        value = prod(self.value(path) for path in factors) - self.value(less)
        formula = f"{' * '.join(_LETTERS[: len(factors)])} - {_LETTERS[len(factors)]}"
        return self._keep(spell(value, "number"), value, (*factors, less), formula)

    def beside(self, path: str, best: str) -> str:
        """A step time beside the best one: ``takes 45 s, 7.1% longer``."""
        seconds = self.number(path, "seconds")
        if self.value(path) < self.value(best):
            return f"takes {seconds}, {self.shortfall(path, best)} less"
        as_long = self.value(path) >= 2 * self.value(best)
        return f"takes {seconds}, {self.excess(path, best)} {'as long' if as_long else 'longer'}"

    def length(self, path: str) -> str:
        """How many entries a list has."""
        value = len(self.value(path))
        return self._keep(spell(value, "number"), value, (path,), "len(a)")

    def _keep(self, text: str, value: float | int | str, paths: tuple[str, ...], formula: str) -> str:
        self._figures.append(Figure(text=text, value=value, paths=paths, formula=formula))
        return text

"""A scatter plot of predicted against measured step times, as SVG text.

(1) both axes are logarithmic over the same decades, so that an error of x% is the same distance everywhere
(2) dots: rounded and square ends of lines of no length, one path a dataset
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from meshwright.validation.metrics import NEAR
from meshwright.validation.results import ReplayRow

_LEFT, _TOP, _SIZE, _LEGEND = 64, 24, 480, 200
_WIDTH, _HEIGHT = _LEFT + _SIZE + _LEGEND, _TOP + _SIZE + 56
_LINE = 17
# Told apart on white and on black.
_COLOURS = ("#3b82c4", "#e07b1a", "#d0454c", "#1f9e89", "#58a03c", "#a873b8", "#b7880b", "#8a7468")
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.grid{stroke:#888;stroke-opacity:.3;fill:none}.guide{stroke:#888;fill:none}"
    ".dots{fill:none;stroke-width:5;stroke-opacity:.75}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)


def scatter_plot(rows: Iterable[ReplayRow]) -> str:
    """Predicted against measured seconds of the judged runs, coloured by dataset, between lines at 20% error.

    Returns:
        A whole SVG document; of no run with a step time, one that says so.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        measured = row.measured.step_time_seconds
        if row.judged and row.predicted is not None and measured is not None:
            points[row.dataset].append((measured, row.predicted.step_time_seconds))
    body = _plot(dict(sorted(points.items()))) if points else ['<text x="64" y="48">no run has a step time</text>']
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'role="img">\n<title>Predicted against measured step times</title>\n'
        f"<style>{_STYLE}</style>"
    )
    return "\n".join([head, *body, "</svg>\n"])


def _plot(points: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    values = [value for pairs in points.values() for pair in pairs for value in pair if value > 0]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    scale = _Scale(low, max(high, low + 1))
    return [*_axes(scale), *_guides(scale), *_dots(points, scale)]


class _Scale:
    """Number (1): seconds to places in the plot, whose corner is below on the left."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def x(self, seconds: float) -> float:
        return round(_LEFT + self._along(seconds), 1)

    def y(self, seconds: float) -> float:
        return round(_TOP + _SIZE - self._along(seconds), 1)

    def _along(self, seconds: float) -> float:
        decades = log10(max(seconds, 10.0**self.low)) - self.low
        return _SIZE * decades / (self.high - self.low)


def _axes(scale: _Scale) -> list[str]:
    """A frame, a line at every power of ten, and what the axes show."""
    right, bottom = _LEFT + _SIZE, _TOP + _SIZE
    marks, lines = [], []
    for power in range(scale.low, scale.high + 1):
        x, y = scale.x(10.0**power), scale.y(10.0**power)
        lines.append(f"M{x} {_TOP}V{bottom}M{_LEFT} {y}H{right}")
        marks.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{10.0**power:g}</text>')
        marks.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{10.0**power:g}</text>')
    middle = _TOP + _SIZE // 2
    return [
        f'<path class="grid" d="{"".join(lines)}"/>',
        *marks,
        f'<text x="{_LEFT + _SIZE // 2}" y="{bottom + 42}" text-anchor="middle">measured step time, seconds</text>',
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">predicted, seconds</text>',
    ]


def _guides(scale: _Scale) -> list[str]:
    """Lines of equal prediction and measurement, and of an error of 20% either way, inside the frame."""
    paths = []
    for factor, dash in ((1.0, ""), (1 + NEAR, ' stroke-dasharray="5 4"'), (1 - NEAR, ' stroke-dasharray="5 4"')):
        start, end = 10.0**scale.low * max(1.0, 1 / factor), 10.0**scale.high * min(1.0, 1 / factor)
        line = f"M{scale.x(start)} {scale.y(start * factor)}L{scale.x(end)} {scale.y(end * factor)}"
        paths.append(f'<path class="guide" d="{line}"{dash}/>')
    return paths


def _dots(points: Mapping[str, Sequence[tuple[float, float]]], scale: _Scale) -> list[str]:
    """Number (2), and the legend beside them."""
    found, x = [], _LEFT + _SIZE + 20
    for index, (name, pairs) in enumerate(points.items()):
        cap = ("round", "square")[index // len(_COLOURS) % 2]
        look = f'class="dots" stroke="{_COLOURS[index % len(_COLOURS)]}" stroke-linecap="{cap}"'
        dots = "".join(f"M{scale.x(measured)} {scale.y(predicted)}h0" for measured, predicted in pairs)
        y = _TOP + 12 + index * _LINE
        found.append(f'<path {look} d="{dots}M{x} {y - 4}h0"/>')
        found.append(f'<text x="{x + 12}" y="{y}">{escape(name)} ({len(pairs)})</text>')
    return found

"""Chooses the combinations of the parity matrix: ``python tests/executor/parity_covering.py`` writes them again.

A greedy covering array (as AETG, Cohen et al. 1997): the next row is the valid structure that covers most uncovered pairs,
its free axes chosen one after another. Valid structures are all known, so every pair that is valid gets covered.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from parity_axes import AXES, ROWS_FILE, STRUCTURE, kinds, name_of, num_devices, read_rows, valid_structures, values

BoolTable = NDArray[np.bool_]
_NAMES = tuple(AXES)
_PAIRS = tuple(combinations(range(len(_NAMES)), 2))
_NUM_SLOW = 120
_FEW_DEVICES, _PENALTY = 4, 3.0  # more processes than these cost a row as much as this many pairs
_NUM_TRIES = 40  # orders of the structures: which of equally good ones is chosen decides how many rows are needed


class Covering:
    """What is still to be covered: pairs of kinds (or of values) and single values."""

    def __init__(self, *, by_kind: bool, seed: int = 0) -> None:
        self.labels = [np.array(list(kinds(axis).values())) for axis in _NAMES]
        if not by_kind:
            self.labels = [np.arange(len(labels)) for labels in self.labels]
        self.structures = np.random.default_rng(seed).permutation(valid_structures())
        self.num_devices = num_devices(self.structures)
        self.num_structure = len(STRUCTURE)
        self.cells = [labels[column] for labels, column in zip(self.labels, self.structures.T, strict=False)]
        self.unused = [np.ones(len(labels), dtype=np.bool_) for labels in self.labels]
        self.open = {pair: self._valid(*pair) for pair in _PAIRS}

    def _valid(self, first: int, second: int) -> BoolTable:
        """Which pairs some valid combination holds; a free axis goes with everything."""
        table = np.ones((self.labels[first].max() + 1, self.labels[second].max() + 1), dtype=np.bool_)
        if second < self.num_structure:
            table[:] = False
            table[self.cells[first], self.cells[second]] = True
        return table

    def done(self) -> bool:
        """Whether nothing is left."""
        return not any(table.any() for table in (*self.open.values(), *self.unused))

    def next_row(self) -> tuple[int, ...]:
        """The best row, numbers of values; counted as covered."""
        gain = self._structure_gain()
        score = np.where(gain > 0, gain - _PENALTY * (self.num_devices > _FEW_DEVICES), -np.inf)
        row = [int(number) for number in self.structures[score.argmax() if (gain > 0).any() else 0]]
        for axis in range(self.num_structure, len(_NAMES)):
            row.append(self._free_value(axis, row))
        self.cover(row)
        return tuple(row)

    def _structure_gain(self) -> NDArray[np.float64]:
        """Pairs and values that every structure would cover, free axes at their best."""
        gain = np.zeros(len(self.structures))
        for axis in range(self.num_structure):
            gain += self.unused[axis][self.structures[:, axis]]
            for other in range(axis + 1, self.num_structure):
                gain += self.open[axis, other][self.cells[axis], self.cells[other]]
        for free in range(self.num_structure, len(_NAMES)):
            each = sum(self.open[axis, free].astype(int)[self.cells[axis]] for axis in range(self.num_structure))
            gain += np.asarray(each).max(axis=1)
        return gain

    def _free_value(self, axis: int, row: Sequence[int]) -> int:
        """The value that covers most with what is chosen; of equals, the one with most left to cover."""

        def worth(value: int) -> tuple[int, int]:
            label = self.labels[axis][value]
            now = sum(self.open[other, axis][self.labels[other][number], label] for other, number in enumerate(row))
            later = sum(self.open[axis, other][label].sum() for other in range(axis + 1, len(_NAMES)))
            return int(now) + int(self.unused[axis][value]), int(later)

        return max(range(len(self.labels[axis])), key=worth)

    def cover(self, row: Sequence[int]) -> None:
        """Count a row as chosen."""
        labels = [self.labels[axis][number] for axis, number in enumerate(row)]
        for first, second in _PAIRS:
            self.open[first, second][labels[first], labels[second]] = False
        for axis, number in enumerate(row):
            self.unused[axis][number] = False


def choose(*, by_kind: bool, seed: int, given: Iterable[Sequence[int]] = ()) -> list[tuple[int, ...]]:
    """Rows that cover, beside the ``given`` ones, all valid pairs of kinds (or of values)."""
    covering = Covering(by_kind=by_kind, seed=seed)
    for row in given:
        covering.cover(row)
    chosen = []
    while not covering.done():
        chosen.append(covering.next_row())
    return chosen


def cost(rows: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Number of rows, and of processes over all rows."""
    return len(rows), int(num_devices(np.array(rows)[:, : len(STRUCTURE)]).sum())


def add_random(given: Sequence[tuple[int, ...]], total: int) -> list[tuple[int, ...]]:
    """Different combinations drawn with a fixed seed until there are ``total``."""
    generator, structures = np.random.default_rng(4), valid_structures()
    rows = dict.fromkeys(given)
    while len(rows) < total:
        structure = structures[generator.integers(len(structures))]
        free = [generator.integers(len(values(axis))) for axis in _NAMES[len(STRUCTURE) :]]
        rows[tuple(int(number) for number in (*structure, *free))] = None
    return list(rows)[len(given) :]


def main() -> None:
    """Write the matrix."""
    ci = min((choose(by_kind=True, seed=seed) for seed in range(_NUM_TRIES)), key=cost)
    slow = choose(by_kind=False, seed=0, given=ci)
    slow += add_random([*ci, *slow], _NUM_SLOW)
    with ROWS_FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", *_NAMES])
        for run, rows in (("ci", ci), ("slow", slow)):
            for row in rows:
                names = [values(axis)[number].name for axis, number in zip(_NAMES, row, strict=True)]
                writer.writerow([run, *names])
    print(*map(name_of, read_rows("ci").values()), f"{len(ci)} + {len(slow)} rows", sep="\n")


if __name__ == "__main__":
    main()

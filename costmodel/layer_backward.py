"""What the backward of one layer of a pipeline rank needs beside the activations in flight.

Backward comes to the layers of a chunk from the last to the first. When it recomputes the first layers of a stage, those behind
them, which may have kept everything, are freed:

    needed = what is made again + gradients of activations + those of weights so far
             - what the layer and those behind it have freed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from costmodel.layer_bytes import LayerBytes
from costmodel.shard_sizes import Column
from costmodel.stage_contents import Chunks, Part


@dataclass(frozen=True, slots=True)
class LayerBackward:
    """One layer under its recomputation: six columns, in one array [6, n] or [6, v, n]."""

    columns: Column

    @property
    def kept(self) -> Column:
        """What it keeps."""
        return self.columns[0, ...]

    @property
    def recomputed(self) -> Column:
        """What its backward makes again."""
        return self.columns[1, ...]

    @property
    def backward(self) -> Column:
        """Its widest gradients of activations."""
        return self.columns[2, ...]

    @property
    def formed(self) -> Column:
        """Gradients of its weights by then."""
        return self.columns[3, ...]

    @property
    def freed(self) -> Column:
        """What of the layer backward is through with."""
        return self.columns[4, ...]

    @property
    def behind(self) -> Column:
        """What the layers behind it in its chunk kept."""
        return self.columns[5, ...]

    @property
    def needed(self) -> Column:
        """Bytes beside the activations in flight."""
        return self.recomputed + self.backward + self.formed - self.freed - self.behind

    def before(self, behind: Column) -> LayerBackward:
        """The same with layers that kept ``behind`` behind it."""
        columns = self.columns.copy()
        columns[5] = behind
        return LayerBackward(columns)


Modes = dict[int, list[LayerBackward]]


def layer_modes(layers: Sequence[LayerBytes], chunks: Chunks) -> Modes:
    """Of every kind of layer, by the identity of a part's recompute column."""
    columns = {id(part.recompute): part.recompute for part in chunks.parts}
    return {key: [_mode(layer, kind) for layer in layers] for key, kind in columns.items()}


def _mode(layer: LayerBytes, recompute: Column) -> LayerBackward:
    kept = layer.kept_under(recompute)
    return LayerBackward(np.array([kept, *layer.working_set(recompute), np.zeros_like(kept)]))


def part_kept(part: Part, modes: Modes) -> Column:
    """What the layers of a part keep of one micro-batch [v, n]."""
    kinds = zip(modes[id(part.recompute)], part.layers, strict=True)
    return reduce(np.add, (mode.kept * count for mode, count in kinds))


def largest_layer(chunks: Chunks, modes: Modes) -> Column:
    """The most that one layer of the rank keeps [n]."""
    kinds = [
        (mode.kept * (counts > 0)).max(axis=0)
        for part in chunks.parts
        for mode, counts in zip(modes[id(part.recompute)], part.layers, strict=True)
    ]
    return reduce(np.maximum, kinds)


def widest_backward(chunks: Chunks, modes: Modes) -> LayerBackward:
    """`RankTotals.widest` [n]: backward comes to the parts of a chunk from the last to the first."""
    *others, last = chunks.parts
    widest, behind = widest_layer(last, modes), part_kept(last, modes)
    for part in reversed(others):
        widest = _wider(widest, widest_layer(part, modes).before(behind))
        behind = behind + part_kept(part, modes)
    chunk = np.argmax(widest.needed, axis=0)
    return LayerBackward(widest.columns[:, chunk, np.arange(len(chunk))])


def first_layer(chunks: Chunks, modes: Modes) -> LayerBackward:
    """The layer of the first chunk's first part with layers whose backward needs most [n]."""
    found = _widest_of_first(chunks.parts[-1], modes)
    for part in reversed(chunks.parts[:-1]):
        holds = sum(count[0] for count in part.layers) > 0
        found = LayerBackward(np.where(holds, _widest_of_first(part, modes).columns, found.columns))
    return found


def _widest_of_first(part: Part, modes: Modes) -> LayerBackward:
    """`widest_layer` of the first chunk alone [n]."""
    kinds = zip(modes[id(part.recompute)], part.layers, strict=True)
    return reduce(_wider, (LayerBackward(_of_chunks(mode)[:, 0] * (count[0] > 0)) for mode, count in kinds))


def widest_layer(part: Part, modes: Modes) -> LayerBackward:
    """The layer of a part whose backward needs most [v, n]."""
    kinds = zip(modes[id(part.recompute)], part.layers, strict=True)
    return reduce(_wider, (LayerBackward(_of_chunks(mode) * (count > 0)) for mode, count in kinds))


def _of_chunks(mode: LayerBackward) -> Column:
    """Its columns [6, 1 or v, n]."""
    return mode.columns if mode.columns.ndim == 3 else mode.columns[:, None]


def _wider(one: LayerBackward, other: LayerBackward) -> LayerBackward:
    """Row by row, the one that needs more."""
    wider = other.needed > one.needed
    return LayerBackward(np.where(wider, other.columns, one.columns))

"""What the backward of one layer of a pipeline rank needs beside the activations in flight.

Backward comes to the layers of a chunk from the last to the first. When it recomputes the first layers of a stage, those behind
them, which may have kept everything, are freed:

    needed = what is made again + gradients of activations + those of weights so far
             - what the layer and those behind it have freed
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from costmodel.layer_bytes import LayerBytes
from costmodel.shard_sizes import Column
from costmodel.stage_contents import Chunks, Part


class LayerBackward(NamedTuple):
    """What one layer keeps under its recomputation, what its backward makes again, its widest gradients and those of its weights
    by then; ``freed``: what of the layer backward is through with, ``behind``: what the layers behind it in its chunk kept.
    """

    kept: Column
    recomputed: Column
    backward: Column
    formed: Column
    freed: Column
    behind: Column

    @property
    def needed(self) -> Column:
        """Bytes beside the activations in flight."""
        return self.recomputed + self.backward + self.formed - self.freed - self.behind


Modes = dict[int, list[LayerBackward]]


def layer_modes(layers: Sequence[LayerBytes], chunks: Chunks) -> Modes:
    """Of every kind of layer, by the identity of a part's recompute column."""
    columns = {id(part.recompute): part.recompute for part in chunks.parts}
    zero = np.zeros_like(chunks.exists)
    return {
        key: [LayerBackward(layer.kept_under(kind), *layer.working_set(kind), zero) for layer in layers]
        for key, kind in columns.items()
    }


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
    behind, parts = np.zeros_like(chunks.exists), []
    for part in reversed(chunks.parts):
        parts.append(widest_layer(part, modes)._replace(behind=behind))
        behind = behind + part_kept(part, modes)
    widest = reduce(_wider, parts)
    chunk = np.argmax(widest.needed, axis=0)
    return LayerBackward(*(column[chunk, np.arange(len(chunk))] for column in widest))


def first_layer(chunks: Chunks, modes: Modes) -> LayerBackward:
    """The layer of the first chunk's first part with layers whose backward needs most [n]."""
    found = _first_chunk(widest_layer(chunks.parts[-1], modes))
    for part in reversed(chunks.parts[:-1]):
        holds = sum(count[0] for count in part.layers) > 0
        first = _first_chunk(widest_layer(part, modes))
        found = LayerBackward(*(np.where(holds, a, b) for a, b in zip(first, found, strict=True)))
    return found


def _first_chunk(layer: LayerBackward) -> LayerBackward:
    return LayerBackward(*(column[0] for column in layer))


def widest_layer(part: Part, modes: Modes) -> LayerBackward:
    """The layer of a part whose backward needs most [v, n]."""
    present = [
        LayerBackward(*(column * (count > 0) for column in mode))
        for mode, count in zip(modes[id(part.recompute)], part.layers, strict=True)
    ]
    return reduce(_wider, present)


def _wider(one: LayerBackward, other: LayerBackward) -> LayerBackward:
    """Row by row, the one that needs more."""
    wider = other.needed > one.needed
    return LayerBackward(*(np.where(wider, b, a) for a, b in zip(one, other, strict=True)))

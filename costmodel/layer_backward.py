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
from costmodel.stage_contents import Chunk, Part


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


def layer_modes(layers: Sequence[LayerBytes], chunks: Sequence[Chunk]) -> Modes:
    """Of every kind of layer, by the identity of the recompute column, which the chunks of a grid share."""
    columns = {id(part.recompute): part.recompute for chunk in chunks for part in chunk.parts}
    zero = np.zeros_like(chunks[0].exists)
    return {
        key: [LayerBackward(layer.kept_under(kind), *layer.working_set(kind), zero) for layer in layers]
        for key, kind in columns.items()
    }


def part_kept(part: Part, modes: Modes) -> Column:
    """What the layers of a part keep of one micro-batch."""
    kinds = zip(modes[id(part.recompute)], part.layers, strict=True)
    return reduce(np.add, (mode.kept * count for mode, count in kinds))


def largest_layer(chunks: Sequence[Chunk], modes: Modes) -> Column:
    """The most that one layer of the rank keeps."""
    kinds = [
        mode.kept * (counts > 0)
        for chunk in chunks
        for part in chunk.parts
        for mode, counts in zip(modes[id(part.recompute)], part.layers, strict=True)
    ]
    return reduce(np.maximum, kinds)


def widest_backward(chunks: Sequence[Chunk], modes: Modes) -> LayerBackward:
    """`RankTotals.widest`: backward comes to the parts of a chunk from the last to the first."""
    widest = widest_layer(chunks[0].parts[-1], modes)
    for chunk in chunks:
        behind = np.zeros_like(chunk.exists)
        for part in reversed(chunk.parts):
            widest = _wider(widest, widest_layer(part, modes)._replace(behind=behind))
            behind = behind + part_kept(part, modes)
    return widest


def widest_layer(part: Part, modes: Modes) -> LayerBackward:
    """The layer of a part whose backward needs most."""
    present = [
        LayerBackward(*(column * (count > 0) for column in mode))
        for mode, count in zip(modes[id(part.recompute)], part.layers, strict=True)
    ]
    return reduce(_wider, present)


def _wider(one: LayerBackward, other: LayerBackward) -> LayerBackward:
    """Row by row, the one that needs more."""
    wider = other.needed > one.needed
    return LayerBackward(*(np.where(wider, b, a) for a, b in zip(one, other, strict=True)))

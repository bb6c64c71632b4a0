"""The kinds of a model's layers: groups of layers that differ in nothing but their number are of one kind.

Models whose layers alternate (gemma2: local and global attention) have as many groups as layers, but two kinds. What a layer
takes and holds depends on its kind alone, so everything is computed once a kind; cumulative counts say what a stage holds:

    (1) layers a to b of kind k = C_k[b] - C_k[a]        C_k[i]: layers of kind k before layer i
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.memo import Identical
from costmodel.specs import LayerGroup, ModelSpec

Counts = NDArray[np.int64]


class LayerKind(NamedTuple):
    """One kind: a group with all its layers, and the index (0-based) of the first of them."""

    group: LayerGroup
    first: int


def layer_kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    """The kinds of a model's layers, in the order of their first layers."""
    return _sorted_out(Identical(model.layers)).kinds


def kind_of_layer(model: ModelSpec, index: Counts) -> Counts:
    """Which of `layer_kinds` the layers ``index`` (0-based, any shape) are of; the nearest layer's where there is none."""
    return _sorted_out(Identical(model.layers)).of_layers.take(index, mode="clip")


def layers_of_kinds(model: ModelSpec, start: Counts, stop: Counts) -> tuple[Counts, ...]:
    """How many of the layers ``start`` to ``stop`` (of one shape, start <= stop) are of each of `layer_kinds`, equation (1)."""
    before = _sorted_out(Identical(model.layers)).before
    return tuple(count.take(stop, mode="clip") - count.take(start, mode="clip") for count in before)


def models_of_one_kind(model: ModelSpec) -> tuple[ModelSpec, ...] | None:
    """The model with all layers of each of its kinds in turn, where kinds differ in nothing but what attention sees: one of them
    then holds no more of anything than any mixture. None where kinds differ otherwise.
    """
    kinds = [kind.group.model_copy(update={"count": model.num_hidden_layers}) for kind in layer_kinds(model)]
    alike = {
        kind.model_copy(update={"attention": kind.attention.model_copy(update={"window": None})}) for kind in kinds
    }
    return None if len(alike) > 1 else tuple(model.model_copy(update={"layers": (kind,)}) for kind in kinds)


class _SortedOut(NamedTuple):
    kinds: tuple[LayerKind, ...]
    of_layers: Counts  # [layers]
    before: Counts  # [kinds, layers + 1]


@lru_cache(maxsize=256)
def _sorted_out(layers: Identical[tuple[LayerGroup, ...]]) -> _SortedOut:
    alike: dict[LayerGroup, int] = {}
    numbers = [alike.setdefault(group.model_copy(update={"count": 1}), len(alike)) for group in layers.value]
    of_layers = np.repeat(np.array(numbers, dtype=np.int64), [group.count for group in layers.value])
    held = of_layers == np.arange(len(alike))[:, None]
    kinds = tuple(
        LayerKind(group.model_copy(update={"count": int(one.sum())}), int(np.argmax(one)))
        for group, one in zip(alike, held, strict=True)
    )
    before = np.concatenate([np.zeros((len(alike), 1), dtype=np.int64), np.cumsum(held, axis=1)], axis=1)
    return _SortedOut(kinds, of_layers, before)
